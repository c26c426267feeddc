"""PySpark's daemon with all imports done: a worker that replaces a killed one starts at once."""

from __future__ import annotations

import pandas  # noqa: F401
import pyarrow.fs
import pyarrow.parquet  # noqa: F401
import pyspark.sql.connect.conversion
import pyspark.sql.pandas.serializers
import pyspark.sql.streaming.state
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import dedup.catalog.store
import dedup.spark.executor.group
import dedup.spark.executor.pack
import dedup.spark.executor.unpack  # noqa: F401

if __name__ == "__main__":
    manager()
