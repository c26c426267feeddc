"""Lets PySpark's daemons import what workers of the sink need: who replaces a killed one is quick.

Python imports a module of this name when it starts, where the folder is on its path.
"""

import sys

if "pyspark.daemon" in sys.orig_argv:
    import confluent_kafka.admin  # noqa: F401
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import pyspark.sql.pandas.serializers
    import pyspark.worker  # noqa: F401

    import dedup.sinks.data_source
    import dedup.sinks.kafka.function  # noqa: F401
