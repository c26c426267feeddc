"""A disk has no room, or no files, left for the catalog or the local cache; later it has."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedup.catalog.layout import catalog_files
from dedup.errors import CatalogError
from dedup.storage.root import Root
from tests.support.catalog import Bench, answers_or_refuses, check_answers, fixed, write, written
from tests.support.small_disk import fill, small_disk, take_inodes


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as folder:
        yield folder


@pytest.mark.parametrize("leave_bytes", [0, 4096, 20_000, 60_000, 150_000])
@pytest.mark.parametrize("where", ["root", "cache"])
def test_a_full_disk_leaves_no_half_written_segment_and_a_retry_works(
    tmp_path: Path, disk: Path, where: str, leave_bytes: int
) -> None:
    """If space runs out at any write, the write fails and leaves no segment; a retry works."""
    bench = Bench(disk if where == "cache" else tmp_path)
    bench.root = Root((disk if where == "root" else tmp_path) / "root")
    cache = bench.cache()
    made = fixed(9000)
    ballast = fill(disk, leave_bytes)
    store = bench.store(cache=cache)
    with pytest.raises(CatalogError, match=r"(?si)No space left on device.*(free space|free its)"):
        write(store, made)
    assert not [found for found in catalog_files(bench.root) if found.name.endswith(".sst")]
    ballast.unlink()
    seg = write(store, made)
    reader = bench.store(cache=cache)
    check_answers(reader, seg, made)


@pytest.mark.parametrize("leave_bytes", [0, 4096, 8192, 16384, 65536])
@pytest.mark.parametrize("harm", [False, True], ids=["sidecar", "no sidecar"])
def test_a_view_that_does_not_fit_on_the_disk_is_not_called_damage(
    tmp_path: Path, disk: Path, leave_bytes: int, harm: bool
) -> None:
    """The segment is whole: the error must not advise to accept its loss."""
    bench, small = Bench(tmp_path), Bench(disk)
    made, seg = written(bench.store(), 9000)
    if harm:
        bench.file(seg, ".filter").unlink()
    small.cache()
    ballast = fill(disk, leave_bytes)
    reader = bench.store(cache=small.cache())
    refused = answers_or_refuses(reader, seg, made)
    assert ("free space" in refused) == (leave_bytes <= 16384 or bool(refused))
    ballast.unlink()
    check_answers(reader, seg, made)


INODES = 100


@pytest.mark.parametrize("where", ["root", "cache"])
def test_a_used_up_file_quota_leaves_no_segment_and_a_retry_works(
    tmp_path: Path, where: str
) -> None:
    """A quota of files runs out at each file that a write makes."""
    made = fixed(500)
    with small_disk(tmp_path / "disk", inodes=INODES) as disk:
        for free in range(INODES):
            other = tmp_path / f"other {free}"
            bench = Bench(disk / "cache" if where == "cache" else other)
            bench.root = Root((disk if where == "root" else other) / "root")
            bench.path.mkdir(exist_ok=True)
            store, refused = bench.store(), ""
            ballast = take_inodes(disk, free)
            try:
                write(store, made)
            except CatalogError as error:
                refused = str(error)
                assert "No space left on device" in refused
                kinds = {file.parsed.kind for file in catalog_files(bench.root)}
                assert kinds.isdisjoint({"segment", "temp"})
            shutil.rmtree(ballast)
            check_answers(bench.store(), write(store, made), made)
            if not refused:
                assert free > 2
                return
            for folder in ("root", "cache"):
                shutil.rmtree(disk / folder, ignore_errors=True)
    pytest.fail("a segment takes more files than there are")
