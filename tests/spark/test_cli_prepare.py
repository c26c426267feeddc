"""`dedup prepare` writes an archive of Java's classes, and the commands start with it."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.support import class_archive
from tests.support.cli_job import FileDrop
from tests.support.processes import dedup

IN_CACHE = {"XDG_CACHE_HOME": str(class_archive.CACHE)}


@pytest.fixture(scope="module")
def archive() -> Path:
    """The archive of the tests, which another run may have made."""
    return Path(class_archive.prepare()["file"])


@pytest.mark.slow
def test_a_run_takes_its_classes_from_the_archive(
    archive: Path, files: FileDrop, tmp_path: Path
) -> None:
    files.text("a.csv", "id\na\nb\na\n")
    loaded = tmp_path / "loaded"
    # The tests name the archive themselves, and silence Java.
    java = f"{class_archive.QUICK_JAVA} -Xlog:class+load:file={loaded}"
    done = dedup("run", files.folder, "--id", "id", "--horizon", "1 day",
                 "--output", tmp_path / "out", SPARK_SUBMIT_OPTS=java, **IN_CACHE)  # fmt: skip
    assert done.returncode == 0, done.stderr
    sources = Counter(line.partition(" source: ")[2] for line in loaded.read_text().splitlines())
    from_jars = sum(n for source, n in sources.items() if "/jars/" in source)
    assert sources["shared objects file (top)"] > max(5_000, 10 * from_jars)


def test_it_says_what_a_session_of_ones_own_needs(archive: Path) -> None:
    done = dedup("prepare", **IN_CACHE)
    assert done.returncode == 0
    assert "--again" in done.stdout
    assert f'spark.driver.extraJavaOptions  "-XX:SharedArchiveFile={archive}"' in done.stdout


def test_java_does_without_an_archive_that_is_damaged(archive: Path, tmp_path: Path) -> None:
    damaged = tmp_path / archive.name
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)

    def said(path: Path) -> str:
        # As use_option of class_archive says it.
        options = [f"-XX:SharedArchiveFile={path}", "-XX:+VerifySharedSpaces", "-Xlog:cds"]
        done = subprocess.run(
            ["java", *options, "-version"], capture_output=True, text=True, check=True
        )
        return done.stdout + done.stderr

    assert "checksum" not in said(archive).lower()
    assert "checksum verification failed" in said(damaged).lower()
