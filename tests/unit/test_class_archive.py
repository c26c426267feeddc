"""An archive of classes is used by the Java and the Spark that it belongs to, if it is whole."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from dedup.cli import class_archive as archives


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only jar of a Spark that was made up; the cache folder is empty."""
    jar = tmp_path / "spark" / "jars" / "spark.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"classes")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return jar


def made(content: bytes = b"archive") -> Path:
    folder = archives.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "written").write_bytes(content)
    return archives.keep(folder / "written")


def test_an_archive_is_found_only_if_it_is_whole_and_the_jars_are_unchanged(jar: Path) -> None:
    assert archives.class_archive() is None
    first = made()
    assert archives.class_archive() == first
    second = made(b"another archive")
    assert archives.class_archive() == second
    assert list(archives.cache_folder().iterdir()) == [second]
    # Java would crash.
    os.truncate(second, 3)
    assert archives.class_archive() is None
    made()
    jar.write_bytes(b"other classes")
    assert archives.class_archive() is None


def test_another_java_needs_another_archive(
    jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made()
    for part in ("bin/java", "lib/server/libjvm.so"):
        (tmp_path / "java" / part).parent.mkdir(parents=True)
        (tmp_path / "java" / part).touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    assert archives.class_archive() is None
    made()
    assert archives.class_archive() is not None
    (tmp_path / "java/lib/server/libjvm.so").write_bytes(b"updated")
    assert archives.class_archive() is None


def test_a_path_with_blanks_and_quotes_stays_one_option() -> None:
    path = Path('/a b/"c"/d\\e.jsa')
    assert shlex.split(archives.write_option(path)) == [f"-XX:ArchiveClassesAtExit={path}"]
    assert shlex.split(archives.use_option(path))[0] == f"-XX:SharedArchiveFile={path}"
