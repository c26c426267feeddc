"""A record for which Java has no room is found before Spark reads its file."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pytest

from dedup.cli.run.input import text as long_records
from dedup.cli.run.input.text import refuse_long_json
from dedup.errors import DataError


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_records, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(long_records, "_BLOCK_BYTES", 1 << 18)


def refused(path: Path, data: bytes, **settings: str) -> str | None:
    packers = {".gz": gzip.compress, ".bz2": bz2.compress}
    path.write_bytes(packers.get(path.suffix, bytes)(data))
    try:
        refuse_long_json(path, settings)
    except DataError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.json.bz2"])
def test_a_line_that_is_too_long(tmp_path: Path, name: str) -> None:
    path, line = tmp_path / name, b'{"id":"' + b"x" * (1 << 20) + b'"}'
    for end in (b"\n", b"\r\n", b""):
        told = refused(path, b"{}\n" * 400_000 + line + end)
        assert told is not None
        assert "line 400,001 is a record of more than 1 MiB" in told
        assert str(path) in told
    fits = b"x" * (1 << 20)
    assert refused(path, fits + b"\n" + fits + b"\r" + fits + b"\r\n" + fits) is None
    assert refused(path, b"{};" * 400_000, linesep=";") is None
    assert refused(path, b"{}\n" * 400_000, multiline="true") is not None


def test_what_cannot_be_unpacked_is_left_to_spark(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(b"no gzip" * 1_000)
    refuse_long_json(tmp_path / "a.json.gz", {})
    refuse_long_json(tmp_path / "gone.json", {})
