"""Segments read without RocksDB: the same answers, and RocksDB reads any that look damaged."""

from __future__ import annotations

import errno
import gc
import os
import resource
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rocksdict

from dedup import kernel
from dedup.catalog import segment_file
from dedup.catalog.blocks import block_numbers, encode_blocks
from dedup.catalog.database import View, build_view, decode_all, decode_range, find, open_view
from dedup.catalog.open_views import OpenViews
from dedup.catalog.segment_file import RocksError, rocks_errors, write_segment_file
from dedup.catalog.table import Table
from dedup.core.entries import Entries
from dedup.core.keys import Keys
from dedup.core.ports import ABSENT_MS
from dedup.core.segment import SegmentPlan
from dedup.kernel import tables
from dedup.kernel.arrays import I64
from tests.support.memory_store import HASH_KEY

pytestmark = pytest.mark.skipif(
    not tables.AVAILABLE,
    reason="the C extension is not built: install a C compiler, then pip install --editable .",
)


def entries_of(n: int, name: str = "%d", *, first: int = 0) -> Entries:
    keys = Keys.from_list([(name % i).encode() for i in range(first, first + n)])
    hashes = kernel.hash64(keys.data, keys.offsets, HASH_KEY)
    return Entries.in_order(keys, hashes, np.arange(n, dtype=np.int64) % 1000)


def view_of(folder: Path, entries: Entries, *, end_ms: int = 1000) -> View:
    sst = folder / "segment"
    write_segment_file(
        sst, name="s", shard=0, plan=SegmentPlan(0, end_ms, 0.01), pieces=[entries], hash_key_id=1
    )
    build_view(sst, folder / "view")
    return open_view(folder / "view")


def without_rocksdb(view: View) -> View:
    return replace(view, db=None)


def file_of(folder: Path) -> Path:
    (sst,) = (folder / "view").glob("*.sst")
    return sst


def numbers_of(view: View, entries: Entries) -> I64:
    return block_numbers(entries.hashes, view.meta.nblocks)


@pytest.mark.parametrize("end_ms", [1000, 1 << 40])
@pytest.mark.parametrize("name", ["%d", "%016d", "%d" + "x" * 3000])
@pytest.mark.parametrize("n", [1, 64, 65, 3000])
def test_every_id_is_found_and_no_other(tmp_path: Path, n: int, name: str, end_ms: int) -> None:
    held = entries_of(n, name)
    view = view_of(tmp_path, held, end_ms=end_ms)
    assert view.table is not None
    times_ms, blocks_read = view.table.find(numbers_of(view, held), held.keys)
    assert times_ms.tolist() == held.times_ms.tolist()
    assert blocks_read == view.meta.nblocks
    unknown = entries_of(200, name, first=n)
    times_ms, _ = view.table.find(numbers_of(view, unknown), unknown.keys)
    assert set(times_ms.tolist()) == {-1}


@pytest.mark.parametrize("every", [1, 3, 40, 700])
def test_few_and_many_ids_are_found_from_disk_and_page_cache(tmp_path: Path, every: int) -> None:
    held = entries_of(20_000)
    view = without_rocksdb(view_of(tmp_path, held))
    index = np.arange(0, len(held), every)
    asked = Entries(held.keys.take(index), held.hashes[index], held.times_ms[index])
    with open(file_of(tmp_path), "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    for _ in ("from the disk", "from the page cache"):
        times_ms, blocks_read = find(view, asked.keys, asked.hashes, sst_bytes=1)
        assert times_ms.tolist() == asked.times_ms.tolist()
        assert blocks_read == len(np.unique(numbers_of(view, asked)))


def test_all_entries_or_a_range_of_blocks_can_be_read(tmp_path: Path) -> None:
    held = entries_of(200_000)
    view = without_rocksdb(view_of(tmp_path, held))
    whole = decode_all(view, HASH_KEY)
    keys, times_ms = whole.keys, whole.times_ms
    assert keys.data.tobytes() == held.keys.data.tobytes()
    assert times_ms.tolist() == held.times_ms.tolist()
    first, last = view.meta.nblocks // 4, view.meta.nblocks // 2
    part = decode_range(view, HASH_KEY, first, last).keys
    inside = (numbers_of(view, held) >= first) & (numbers_of(view, held) <= last)
    assert held.keys.take(np.flatnonzero(inside)).data.tobytes() in part.data.tobytes()
    assert len(part) < 0.3 * len(held)


@pytest.mark.parametrize("option", ["checksum", "version"])
def test_a_segment_written_in_another_way_is_read_by_rocksdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    def options() -> rocksdict.Options:
        made, table = rocksdict.Options(raw_mode=True), rocksdict.BlockBasedOptions()
        made.set_compression_type(rocksdict.DBCompressionType.none())
        table.set_format_version(6 if option == "checksum" else 5)
        xxh3, xxh64 = rocksdict.ChecksumType.xxh3(), rocksdict.ChecksumType.xxhash64()
        table.set_checksum_type(xxh3 if option == "checksum" else xxh64)
        made.set_block_based_table_factory(table)
        return made

    monkeypatch.setattr(segment_file, "table_options", options)
    held = entries_of(3000)
    view = view_of(tmp_path, held)
    assert view.table is None
    times_ms, _ = find(view, held.keys, held.hashes, sst_bytes=1)
    assert times_ms.tolist() == held.times_ms.tolist()
    assert len(decode_all(view, HASH_KEY).keys) == 3000


@pytest.mark.parametrize("by", ["table", "rocksdb"])
@pytest.mark.parametrize("how", ["swapped", "foreign"])
def test_a_table_block_in_another_place_is_damage(tmp_path: Path, how: str, by: str) -> None:
    held = entries_of(20_000, "%05d")
    view = view_of(tmp_path, held)
    assert view.table is not None
    starts = view.table.directory.starts
    whole, sizes = file_of(tmp_path).read_bytes(), np.diff(starts).tolist()
    data = bytearray(whole)
    if how == "swapped":
        one, other = next(
            (i, j) for i in range(len(sizes)) for j in range(i) if sizes[i] == sizes[j]
        )
        for to, source in (one, other), (other, one):
            data[starts[to] : starts[to + 1]] = whole[starts[source] : starts[source + 1]]
    else:
        # The same IDs at other times: only the file that a table block belongs to tells them apart.
        (tmp_path / "other").mkdir()
        later = Entries(held.keys, held.hashes, held.times_ms[::-1].copy())
        view_of(tmp_path / "other", later)
        foreign, one = file_of(tmp_path / "other").read_bytes(), 0
        data[: starts[1]] = foreign[: starts[1]]
    file_of(tmp_path).write_bytes(bytes(data))
    read = view if by == "table" else replace(view, table=None)
    numbers = numbers_of(view, held)
    lasts = view.table.directory.lasts.astype(np.int64)
    here = np.flatnonzero((numbers <= lasts[one]) & (numbers > (lasts[one - 1] if one else -1)))
    asked = Entries(held.keys.take(here), held.hashes[here], held.times_ms[here])
    if by == "table":
        with pytest.raises(ValueError, match="not as expected"):
            view.table.find(numbers[here], asked.keys)
        with pytest.raises(ValueError, match="not as expected"):
            list(view.table.blocks(0, view.meta.nblocks - 1))
    for at in range(len(asked)):
        few = asked.keys.take(np.array([at]))
        with pytest.raises((ValueError, RocksError)), rocks_errors():
            find(read, few, asked.hashes[at : at + 1], sst_bytes=1)
    with pytest.raises((ValueError, RocksError)), rocks_errors():
        find(read, held.keys, held.hashes, sst_bytes=1)
    with pytest.raises((ValueError, RocksError)), rocks_errors():
        decode_all(read, HASH_KEY)
    with pytest.raises((ValueError, RocksError)), rocks_errors():
        decode_range(read, HASH_KEY, int(numbers[here[0]]), int(numbers[here[-1]]))


def test_damage_to_any_byte_of_footer_or_metaindex_is_detected(tmp_path: Path) -> None:
    view_of(tmp_path, entries_of(300))
    file = file_of(tmp_path)
    whole = file.read_bytes()
    metaindex_bytes = int.from_bytes(whole[-40:-36], "little") + 5
    for at in range(len(whole) - 53 - metaindex_bytes, len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises((ValueError, OSError)):
            Table.open(file)
    file.write_bytes(whole)
    Table.open(file).file.close()


@pytest.mark.parametrize("by", ["table", "rocksdb"])
def test_an_id_that_falls_into_an_empty_block_is_absent(tmp_path: Path, by: str) -> None:
    """A block is empty only if hashes are far from uniform, which hardly ever happens."""
    some = entries_of(200)
    alike = Entries.in_order(some.keys, some.hashes >> np.uint64(3), some.times_ms)
    view = view_of(tmp_path, alike)
    view = view if by == "table" else replace(view, table=None)
    times_ms, _ = find(view, alike.keys, alike.hashes, sst_bytes=1)
    assert times_ms.tolist() == alike.times_ms.tolist()
    elsewhere = some.keys.take(np.array([0])), np.array([1 << 63], np.uint64)
    assert find(view, *elsewhere, sst_bytes=1)[0].tolist() == [ABSENT_MS]
    assert find(view, some.keys, some.hashes, sst_bytes=1)[0].tolist().count(ABSENT_MS) > 100


@pytest.mark.parametrize("by", ["table", "rocksdb"])
def test_a_missing_block_is_damage(tmp_path: Path, by: str) -> None:
    held = entries_of(3000)
    view = view_of(tmp_path, held)
    gap = numbers_of(view, held) != 7
    index = np.flatnonzero(gap)
    (tmp_path / "gap").mkdir()
    part = Entries(held.keys.take(index), held.hashes[index], held.times_ms[index])
    sst = tmp_path / "gap" / "segment"
    writer = rocksdict.SstFileWriter(segment_file.table_options())
    writer.open(str(sst))
    blocks = encode_blocks(
        part.keys, part.hashes, part.times_ms, view.meta.nblocks, wide_times=False
    )
    for key, block in blocks:
        writer[key] = block
    writer[segment_file.META_KEY] = view.meta_bytes
    writer.finish()
    build_view(sst, tmp_path / "gap" / "view")
    other = open_view(tmp_path / "gap" / "view")
    assert other.table is not None
    with pytest.raises(ValueError, match="not as expected"):
        other.table.find(numbers_of(view, held), held.keys)
    other = other if by == "table" else replace(other, table=None)
    with pytest.raises(ValueError, match="its metadata says 3000"):
        find(other, held.keys, held.hashes, sst_bytes=1)
    lost = np.flatnonzero(~gap)[:1]
    with pytest.raises(ValueError, match="its metadata says 3000"):
        find(other, held.keys.take(lost), held.hashes[lost], sst_bytes=1)
    with pytest.raises(ValueError, match="its metadata says 3000"):
        decode_all(other, HASH_KEY)


def descriptors_of(file: Path) -> int:
    opened = map(os.path.realpath, Path("/proc/self/fd").iterdir())
    return list(opened).count(str(file))


def test_a_closed_view_holds_no_file(tmp_path: Path) -> None:
    view_of(tmp_path, entries_of(100)).close()
    views = OpenViews(1)
    view = open_view(tmp_path / "view")
    views.add(tmp_path, view)
    assert view.table is not None
    assert descriptors_of(file_of(tmp_path)) == 2, "what the bound of open views counts"
    views.close_all()
    assert descriptors_of(file_of(tmp_path)) == 0
    damaged = tmp_path / "damaged"
    damaged.write_bytes(file_of(tmp_path).read_bytes()[:-1])
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with pytest.raises(ValueError, match="checksum, version or layout"):
            Table.open(damaged)
        gc.collect()


def test_a_forked_process_closes_the_files_of_the_parents_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, views = view_of(tmp_path, entries_of(100)), OpenViews(4)
    views.add(tmp_path, view)
    assert view.table is not None
    file = view.table.file
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert views.get(tmp_path) is None
    assert file.closed


def test_views_take_a_quarter_of_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (128, 4096))
    assert OpenViews().max_views == 16


def descriptors_up_to_the_highest() -> list[int]:
    """New descriptors in all gaps, and one above: a limit counts from there."""
    highest = max(map(int, os.listdir("/dev/fd")))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] <= highest:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    return taken


def test_too_few_descriptors_are_never_taken_for_damage(tmp_path: Path) -> None:
    held = entries_of(300)
    view_of(tmp_path, held).close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    failed: set[int | bool | None] = set()
    for extra in range(12):
        taken = descriptors_up_to_the_highest()
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1 + extra, limits[1]))
            with rocks_errors():
                view = open_view(tmp_path / "view")
            assert len(find(view, held.keys, held.hashes, sst_bytes=1)[0]) == 300
            view.close()
        except OSError as exc:
            failed.add(exc.errno)
        except RocksError as exc:
            failed.add(exc.is_corruption)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for descriptor in taken:
                os.close(descriptor)
    assert failed == {errno.EMFILE, False}


def test_a_descriptor_may_be_zero(tmp_path: Path) -> None:
    held = entries_of(300)
    view = view_of(tmp_path, held)
    assert view.table is not None
    columns = (numbers_of(view, held), held.keys.data, held.keys.offsets)
    kept = os.dup(0)
    try:
        os.dup2(view.table.file.fileno(), 0)
        found, _ = tables.table_find(0, view.table.directory, *columns)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert found.tolist() == held.times_ms.tolist()


def test_an_extension_without_table_functions_still_serves_the_rest() -> None:
    code = (
        "from dedup.kernel import _native; del _native.table_checksum\n"
        "from dedup import kernel; from dedup.kernel import tables\n"
        "print(kernel.PATH != 'numpy', tables.AVAILABLE)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["True", "False"]


def test_arguments_are_checked(tmp_path: Path) -> None:
    held = entries_of(300)
    view = view_of(tmp_path, held)
    assert view.table is not None
    numbers = numbers_of(view, held)
    with pytest.raises(ValueError, match="never fall"):
        view.table.find(np.ascontiguousarray(numbers[::-1]), held.keys)
    with pytest.raises(ValueError, match="items"):
        view.table.find(numbers[1:], held.keys)
    directory = view.table.directory
    columns = (numbers, held.keys.data, held.keys.offsets)
    with pytest.raises(ValueError, match="fd"):
        tables.table_find(-1, directory, *columns)
    with pytest.raises(ValueError, match="context"):
        tables.table_find(1, replace(directory, context=0), *columns)
    falling = replace(directory, starts=np.ascontiguousarray(directory.starts[::-1]))
    with pytest.raises(ValueError, match="starts"):
        tables.table_find(1, falling, *columns)
    with pytest.raises(ValueError, match="data"):
        tables.table_unpack(directory, 0, 1, np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match="first"):
        tables.table_unpack(directory, 2, 1, np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match="not as expected"):
        tables.table_unpack(directory, 0, 1, np.zeros(directory.starts[1], np.uint8))
    with pytest.raises(ValueError, match="offset"):
        tables.table_checksum(np.zeros(3, np.uint8), 0, -1)
    assert find(view, held.keys, held.hashes, sst_bytes=1)[1] == view.meta.nblocks
