"""Rejects releases of PySpark and pyarrow that do not work together, before a stream starts."""

from __future__ import annotations

import socket
import sys

import pyarrow as pa
import pyspark
from pyspark.loose_version import LooseVersion
from pyspark.sql.utils import is_remote

from dedup.errors import ConfigError, ExecutorError

#: First release of each PySpark series that works with new releases of pyarrow. Earlier releases
#: count rows in floats, which pyarrow's `RecordBatch.slice` no longer accepts.
FIXED = {"4.0": "4.0.5", "4.1": "4.1.4"}
PYARROW = "26"


def problem(spark: str, arrow: str) -> str | None:
    """Return why these releases of PySpark and pyarrow cannot run a stream, or None."""
    fixed = FIXED.get(".".join(spark.split(".")[:2]))
    if fixed is None or LooseVersion(spark) >= LooseVersion(fixed):
        return None
    if LooseVersion(arrow) < LooseVersion(PYARROW):
        return None
    return (
        f"PySpark {spark} does not work with pyarrow {arrow}: every query that keeps state in "
        "Python fails in its first micro-batch. Run either pip install "
        f"'pyspark~={fixed}' or pip install 'pyarrow<{PYARROW}'"
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
