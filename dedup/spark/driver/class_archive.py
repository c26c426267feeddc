"""Spark's Java classes as Java maps them into memory, stored once for all later starts.

A start of Spark loads and verifies some 20,000 classes, and a query's first micro-batch thousands
more. Java can keep them in a file (class data sharing, JEP 350). It trusts the file only for the
same Java and the same jars, and does without it otherwise.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from dedup.spark.machine import home_path

_PREFIX, _SUFFIX = "spark-classes-", ".jsa"


def class_archive() -> Path | None:
    """Return the archive of this Java and this Spark, None where there is none that is whole."""
    for path in cache_folder().glob(f"{_PREFIX}{fingerprint()}-*{_SUFFIX}"):
        # Java checks what the file holds, and would crash where it ends too early.
        if path.name == _name(path.stat().st_size):
            return path
    return None


def use_option(archive: Path) -> str:
    """Return what ``spark.driver.extraJavaOptions`` needs to start with an archive."""
    return f"{_quoted('-XX:SharedArchiveFile', archive)} -XX:+VerifySharedSpaces"


def write_option(archive: Path) -> str:
    """Return what ``spark.driver.extraJavaOptions`` needs to write an archive when Java ends."""
    return _quoted("-XX:ArchiveClassesAtExit", archive)


def keep(written: Path) -> Path:
    """Move an archive that Java wrote to its place; return that.

    Parameters
    ----------
    written : Path
        A file below `cache_folder`, complete.
    """
    place = cache_folder() / _name(written.stat().st_size)
    for former in cache_folder().glob(f"{_PREFIX}{fingerprint()}-*{_SUFFIX}"):
        former.unlink()
    written.rename(place)
    return place


def cache_folder() -> Path:
    """Return the folder of archives, which need not exist: in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or home_path("~/.cache"), "rolling-dedup")


def fingerprint() -> str:
    """Return what tells this Java and this Spark from others, as 16 hexadecimal digits."""
    from pyspark.find_spark_home import _find_spark_home

    java = _java()
    files = [java, java.parent.parent / "lib" / "server" / "libjvm.so"]
    files += sorted(Path(_find_spark_home(), "jars").glob("*.jar"))
    told = [(str(p), (s := p.stat()).st_size, s.st_mtime_ns) for p in files if p.exists()]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def _java() -> Path:
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    return found.resolve()


def _name(size_bytes: int) -> str:
    return f"{_PREFIX}{fingerprint()}-{size_bytes}{_SUFFIX}"


def _quoted(option: str, path: Path) -> str:
    """An option as Spark splits several: quotes and backslashes are its own."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{option}={text}"'
