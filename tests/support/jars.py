"""Jars from Maven Central, by way of Ivy, which PySpark has; nothing else needs installing."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from tests.support.processes import python

_RESOLVE = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
# Ivy looks into Maven's folder first, which may name a jar that it does not hold.
builder = builder.config("spark.driver.extraJavaOptions", f'"-Duser.home={sys.argv[1]}"')
spark = builder.config("spark.jars.ivy", sys.argv[1]).getOrCreate()
for name in sys.argv[2:]:
    spark.sql(f"ADD JAR 'ivy://{name}'")
"""


def alone(coordinates: str) -> str:
    """The jar without what it depends on."""
    return f"{coordinates}?transitive=false"


def maven_jars(wanted: Sequence[str]) -> Path:
    """Return the folder of these jars, kept for the next call on this machine.

    Parameters
    ----------
    wanted : sequence of str
        Coordinates, of jars that are wanted `alone` or with what they depend on.

    Raises
    ------
    OSError
        When they are not to be had, saying why.
    """
    known = zlib.crc32(" ".join(wanted).encode())
    folder = Path(tempfile.gettempdir()) / f"dedup-test-jars-{known:08x}"
    if not (folder / "ready").exists():
        done = python("-c", _RESOLVE, folder, *wanted, timeout_s=280)
        if done.returncode:
            raise OSError(done.stderr.strip().splitlines()[-1])
        (folder / "ready").touch()
    return folder / "jars"
