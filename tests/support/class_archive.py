"""Spark's Java classes in a form that every JVM of the tests maps into its memory (JEP 350).

To load and check them takes each JVM five seconds of processor time. The archive is made once on a
machine, by `dedup prepare`, in the background of the first whole run. Java passes over an archive
that is missing or belongs to another Java or Spark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.support.quick_spark import QUICK_JAVA

_PYSPARK = find_spec("pyspark")
assert _PYSPARK is not None
assert _PYSPARK.origin is not None
#: Java refuses an archive of classes that have been installed again since.
_INSTALLED_NS = Path(_PYSPARK.origin).stat().st_mtime_ns
_SET = zlib.crc32(f"{sys.prefix} {_INSTALLED_NS} {os.environ.get('JAVA_HOME')}".encode())
FILE = Path(tempfile.gettempdir()) / f"dedup-test-classes-{_SET:08x}.jsa"
CACHE = FILE.with_suffix("")
_MAKING = FILE.with_suffix(".making")
_MAKING_S = 600
#: Java would print what it thinks of an archive.
OPTIONS = f"{QUICK_JAVA} -XX:SharedArchiveFile={FILE} -Xlog:disable"


def make_in_background() -> None:
    """Begin to make the archive, unless it exists or another process makes it."""
    with suppress(OSError):
        if _MAKING.exists() and time.time() - _MAKING.stat().st_mtime > _MAKING_S:
            _MAKING.unlink()  # whoever made it was killed
    with suppress(FileExistsError):
        if not FILE.exists():
            _MAKING.touch(exist_ok=False)
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.class_archive"],
                cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip


def prepare() -> dict[str, Any]:
    """Make the archive by the command that users have; return what it says."""
    own = {"SPARK_SUBMIT_OPTS": QUICK_JAVA, "XDG_CACHE_HOME": str(CACHE)}
    command = [sys.executable, "-m", "dedup.cli.main", "prepare", "--json"]
    done = subprocess.run(
        command, env=os.environ | own, check=True, timeout=300, stdout=subprocess.PIPE
    )
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def main() -> None:
    try:
        link = FILE.with_suffix(".link")
        link.symlink_to(prepare()["file"])
        link.rename(FILE)
    finally:
        _MAKING.unlink()


if __name__ == "__main__":
    main()
