"""Jars from Maven Central, by way of Ivy, which PySpark has; nothing else needs installing."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.support.downloads import check_files, fetched_once, pinned
from tests.support.processes import python

#: The SHA-256 of every jar that tests and benchmarks run.
PINS = Path(__file__).with_name("jars.sha256")
_FETCH_S = 270
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
    """Return the folder of these jars, kept in the user's cache folder.

    Jars are wanted `alone` or with what they depend on. This raises an OSError if they cannot be
    fetched, or one of them is not the pinned one.
    """
    return _checked(tuple(wanted))


@cache
def _checked(wanted: tuple[str, ...]) -> Path:
    known = zlib.crc32(" ".join(wanted).encode())
    folder = fetched_once(f"jars-{known:08x}", lambda place: _fetch(wanted, place))
    _check(folder)
    return folder / "jars"


def _fetch(wanted: Sequence[str], place: Path) -> None:
    """Fetch the jars with Ivy; a network that fails once gets a second chance."""
    ends = time.monotonic() + _FETCH_S
    for _ in range(2):
        done = python("-c", _RESOLVE, place, *wanted, timeout_s=ends - time.monotonic())
        if done.returncode == 0:
            break
    else:
        raise OSError(reason(done.stderr))
    _check(place)


def _check(folder: Path) -> None:
    check_files(sorted(folder.rglob("*.jar")), pinned(PINS), f"tests/support/{PINS.name}")


def reason(told: str) -> str:
    """Return the lines of a program's errors that name the failure, without stack frames."""
    lines = [line.strip(":\t ") for line in told.strip().splitlines()]
    problems = [
        line for line in lines if re.search(r"Exception|Error\b|not found|unresolved", line)
    ]
    found = problems[-3:] or lines[-1:]
    return "; ".join(dict.fromkeys(filter(None, found))) or "it ended without a word"
