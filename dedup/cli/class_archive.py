"""The archive of Spark's Java classes that `dedup prepare` writes once for all later starts.

A start of Spark loads and verifies some 20,000 classes, and a query's first micro-batch thousands
more. Java can map these classes from a file (class data sharing, JEP 350), if Java and jars have
not changed since. Java 17 needs this module to write the file. Java 19 and later could write it
without help (``-XX:+AutoCreateSharedArchive``).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from dedup.spark.machine import home_path

_PREFIX, _SUFFIX = "spark-classes-", ".jsa"


def class_archive() -> Path | None:
    """Return the archive of this Java and Spark, or None if it is missing or incomplete."""
    for path in cache_folder().glob(f"{_PREFIX}{fingerprint()}-*{_SUFFIX}"):
        # Check the size, because Java checks the content, but crashes if the file is too short.
        if path.name == _name(path.stat().st_size):
            return path
    return None


def use_option(archive: Path) -> str:
    """Return the option of Java with which it uses an archive."""
    return f"{_quoted('-XX:SharedArchiveFile', archive)} -XX:+VerifySharedSpaces"


def write_option(archive: Path) -> str:
    return _quoted("-XX:ArchiveClassesAtExit", archive)


def keep(written: Path) -> Path:
    """Rename a complete archive in `cache_folder`, so that later starts use it. Return its path."""
    place = cache_folder() / _name(written.stat().st_size)
    for former in cache_folder().glob(f"{_PREFIX}{fingerprint()}-*{_SUFFIX}"):
        former.unlink()
    written.rename(place)
    return place


def cache_folder() -> Path:
    """Return the folder of archives, which is in the user's cache folder and may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or home_path("~/.cache"), "rolling-dedup")


def fingerprint() -> str:
    from pyspark.find_spark_home import _find_spark_home

    java = _java()
    files = [java, java.parent.parent / "lib" / "server" / "libjvm.so"]
    files += sorted(Path(_find_spark_home(), "jars").glob("*.jar"))
    stats = [(str(p), (s := p.stat()).st_size, s.st_mtime_ns) for p in files if p.exists()]
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:16]


def _java() -> Path:
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    return java.resolve()


def _name(size_bytes: int) -> str:
    return f"{_PREFIX}{fingerprint()}-{size_bytes}{_SUFFIX}"


def _quoted(option: str, path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{option}={text}"'
