"""Rejects releases of PySpark and pyarrow that do not work together, before a stream starts."""

from __future__ import annotations

import re
import socket
import sys

import pyarrow as pa
import pyspark
from pyspark.sql.utils import is_remote

from dedup.errors import ConfigError, ExecutorError

#: First release of each PySpark series that works with new releases of pyarrow. Earlier releases
#: count rows in floats, which pyarrow's `RecordBatch.slice` no longer accepts.
FIXED = {"4.0": "4.0.5", "4.1": "4.1.4"}
PYARROW = "26"


def problem(spark: str, arrow: str) -> str | None:
    """Return why these releases of PySpark and pyarrow cannot run a stream, or None."""
    fixed = FIXED.get(".".join(map(str, _numbers(spark)[:2])))
    if fixed is None or _numbers(spark) >= _numbers(fixed) or _numbers(arrow) < _numbers(PYARROW):
        return None
    return (
        f"PySpark {spark} does not work with pyarrow {arrow}: every query that keeps state in "
        "Python fails in its first micro-batch. Run either pip install "
        f"'pyspark~={fixed}' or pip install 'pyarrow<{PYARROW}'"
    )


def check_driver() -> None:
    """Raise ConfigError if the driver's releases do not work together. Skip Connect clients."""
    found = problem(pyspark.__version__, pa.__version__)
    if found and not is_remote():
        raise ConfigError(f"{found}, for the executors as well.")


def check_executor() -> None:
    """Raise ExecutorError if the releases on this executor do not work together."""
    found = problem(pyspark.__version__, pa.__version__)
    if found:
        raise ExecutorError(
            f"The executor on {socket.gethostname()} cannot run the operator: {found}. Its Python "
            f"is {sys.executable}.",
            remedy="executor-package",
        )


def _numbers(release: str) -> tuple[int, ...]:
    """Return the leading numbers of a release, such as 4, 1, 3 for 4.1.3.dev0."""
    found = re.match(r"\d+(?:\.\d+)*", release)
    return tuple(map(int, found.group().split("."))) if found else ()
