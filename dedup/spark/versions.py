"""Which releases of PySpark and pyarrow do not work together, told before a stream starts."""

from __future__ import annotations

import re
import socket
import sys
from dataclasses import dataclass

import pyarrow as pa
import pyspark
from pyspark.sql.utils import is_remote

from dedup.errors import ConfigError, ExecutorError


@dataclass(frozen=True, slots=True)
class Broken:
    """Releases of PySpark that fail with newer releases of pyarrow.

    Parameters
    ----------
    first, mended : str
        The oldest release of PySpark concerned, and the first of its line that is well again.
    pyarrow : str
        The first release of pyarrow that fails.
    """

    first: str
    mended: str
    pyarrow: str


#: Spark counts rows in floats there, which `RecordBatch.slice` of pyarrow 26 no longer takes.
BROKEN = (
    Broken(first="4.0.0", mended="4.0.5", pyarrow="26"),
    Broken(first="4.1.0", mended="4.1.4", pyarrow="26"),
)


def problem(spark: str, arrow: str) -> str | None:
    """Say why these releases of PySpark and pyarrow cannot run a stream and what to install.

    None where they can.
    """
    for broken in BROKEN:
        old = _numbers(broken.first) <= _numbers(spark) < _numbers(broken.mended)
        if old and _numbers(arrow) >= _numbers(broken.pyarrow):
            return (
                f"PySpark {spark} does not work with pyarrow {arrow}: every query that keeps "
                "state in Python fails in its first micro-batch. Run either pip install "
                f"'pyspark~={broken.mended}' or pip install 'pyarrow<{broken.pyarrow}'"
            )
    return None


def check_driver() -> None:
    """Refuse releases that do not work together, before a query starts.

    Raises
    ------
    ConfigError
        With what to install. Not through Spark Connect, whose client runs no task.
    """
    found = problem(pyspark.__version__, pa.__version__)
    if found and not is_remote():
        raise ConfigError(f"{found}, for the executors as well.")


def check_executor() -> None:
    """Refuse in a task what `check_driver` refuses: an executor may have other releases.

    Raises
    ------
    ExecutorError
        With the machine, its Python, and what to install.
    """
    found = problem(pyspark.__version__, pa.__version__)
    if found:
        raise ExecutorError(
            f"The executor on {socket.gethostname()} cannot run the operator: {found}. Its Python "
            f"is {sys.executable}.",
            remedy="executor-package",
        )


def _numbers(release: str) -> tuple[int, ...]:
    """The numbers that a release begins with: those of 4.1.3 for 4.1.3.dev0 and 4.1.3+vendor."""
    found = re.match(r"\d+(?:\.\d+)*", release)
    return tuple(map(int, found.group().split("."))) if found else ()
