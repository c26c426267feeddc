"""Limits on a disk other than its size: on the number of files, and on the size of each."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedup.catalog.listing import list_catalog
from dedup.catalog.root import Root
from dedup.errors import CatalogError
from tests.support.catalog import Bench, answers_or_refuses, check_answers, fixed, write
from tests.support.small_disk import small_disk, take_inodes

INODES = 100


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", inodes=INODES) as folder:
        yield folder


def bench_on(where: str, disk: Path, other: Path) -> Bench:
    """A catalog of which the root or the cache is on the disk."""
    bench = Bench(disk / "cache" if where == "cache" else other)
    bench.root = Root((disk if where == "root" else other) / "root")
    bench.path.mkdir(exist_ok=True)
    return bench


def named(bench: Bench) -> list[str]:
    return [
        file.name for file in list_catalog(bench.root) if file.parsed.kind in ("segment", "temp")
    ]


@pytest.mark.parametrize("where", ["root", "cache"])
def test_no_more_files_at_any_step_of_a_segment(tmp_path: Path, disk: Path, where: str) -> None:
    """A quota of files runs out at each file that a write makes; later it works."""
    made = fixed(500)
    for free in range(INODES):
        bench = bench_on(where, disk, tmp_path / f"other {free}")
        store = bench.store()
        ballast = take_inodes(disk, free)
        refused = ""
        try:
            write(store, made)
        except CatalogError as error:
            refused = str(error)
            assert "No space left on device" in refused
            assert named(bench) == []
        shutil.rmtree(ballast)
        seg = write(store, made)
        assert len(named(bench)) == 1 + (not refused)
        reader = bench.store()
        check_answers(reader, seg, made)
        if not refused:
            assert free > 2
            return
        for folder in ("root", "cache"):
            shutil.rmtree(disk / folder, ignore_errors=True)
    pytest.fail("a segment takes more files than there are")


@pytest.mark.parametrize("harm", [False, True], ids=["sidecar", "no sidecar"])
def test_no_file_for_a_view_is_no_damage(tmp_path: Path, disk: Path, harm: bool) -> None:
    """The segment is whole: the error must not advise to accept its loss."""
    made = fixed(500)
    bench = Bench(tmp_path / "other")
    seg = write(bench.store(), made)
    if harm:
        bench.file(seg, ".filter").unlink()
    for free in range(INODES):
        small = Bench(disk / "cache")
        small.path.mkdir()
        reader = bench.store(cache=small.cache())
        ballast = take_inodes(disk, free)
        refused = answers_or_refuses(reader, seg, made)
        assert not refused or "ree space" in refused
        shutil.rmtree(ballast)
        check_answers(reader, seg, made)
        shutil.rmtree(small.path)
        if not refused:
            assert free > 2
            return
    pytest.fail("a view takes more files than there are")


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size_bytes", [0, 100, 10_000, 50_000, 100_000])
def test_a_limit_on_the_size_of_a_file(tmp_path: Path, size_bytes: int) -> None:
    bench, made = Bench(tmp_path), fixed(9000)
    store = bench.store()
    with (
        files_of_at_most(size_bytes),
        pytest.raises(CatalogError, match=r"[Cc]annot write .*File too large"),
    ):
        write(store, made)
    assert named(bench) == []
    seg = write(store, made)
    reader = bench.store()
    check_answers(reader, seg, made)
