"""What differs between releases of PySpark.

Releases of PySpark and pyarrow that do not work together are rejected before a stream starts.
"""

from __future__ import annotations

import re
import socket
import sys

import pyarrow as pa
import pyspark
from pyspark.sql import Column, DataFrame
from pyspark.sql.utils import is_remote

from dedup.errors import ConfigError, ExecutorError

#: First release of each PySpark series that works with new releases of pyarrow, or None. Earlier
#: releases count rows in floats, which pyarrow's `RecordBatch.slice` no longer accepts.
FIXED = {"3.5": None, "4.0": "4.0.5", "4.1": "4.1.4"}
PYARROW = "26"


def numbers(release: str) -> tuple[int, ...]:
    """Return a release as numbers that can be compared. A platform may add a text to them."""
    return tuple(map(int, re.findall(r"\d+", release)[:3]))


#: Spark 3.5 has neither Python data sources nor newer parts of PySpark's interface.
IS_SPARK_3 = numbers(pyspark.__version__) < (4,)


def problem(spark: str, arrow: str) -> str | None:
    """Return why these releases of PySpark and pyarrow cannot run a stream, or None."""
    series = ".".join(spark.split(".")[:2])
    fixed = FIXED.get(series)
    if series not in FIXED or (fixed is not None and numbers(spark) >= numbers(fixed)):
        return None
    if numbers(arrow) < numbers(PYARROW):
        return None
    newer = f"either pip install 'pyspark~={fixed}' or " if fixed else ""
    return (
        f"PySpark {spark} does not work with pyarrow {arrow}: every query that keeps state in "
        f"Python fails in its first micro-batch. Run {newer}pip install 'pyarrow<{PYARROW}'"
    )


def check_driver() -> None:
    """Raise ConfigError if the driver's releases do not work together. Skip Connect clients."""
    issue = problem(pyspark.__version__, pa.__version__)
    if issue and not is_remote():
        raise ConfigError(f"{issue}, for the executors as well.")


def check_executor() -> None:
    """Raise ExecutorError if the releases on this executor do not work together."""
    issue = problem(pyspark.__version__, pa.__version__)
    if issue:
        raise ExecutorError(
            f"The executor on {socket.gethostname()} cannot run the operator: {issue}. Its Python "
            f"is {sys.executable}.",
            remedy="executor-package",
        )


def file_metadata(frame: DataFrame) -> Column:
    """Return Spark's column `_metadata`, even if the data has a column of this name."""
    if IS_SPARK_3:
        return Column(frame._jdf.metadataColumn("_metadata"))
    return frame.metadataColumn("_metadata")


def to_arrow(frame: DataFrame) -> pa.Table:
    """Return all rows of a DataFrame."""
    if IS_SPARK_3:
        from pyspark.sql.pandas.types import to_arrow_schema

        batches = frame._collect_as_arrow()  # type: ignore[operator]
        return pa.Table.from_batches(batches, None if batches else to_arrow_schema(frame.schema))
    return frame.toArrow()
