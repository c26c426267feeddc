from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dedup.catalog.blocks import encode_blocks
from dedup.core.entries import Entries
from dedup.core.segment import SegmentPlan
from dedup.errors import CatalogError
from dedup.storage.root import Root
from tests.support.catalog import (
    END_MS,
    RUN,
    START_MS,
    Bench,
    check_answers,
    fixed,
    knows,
    varied,
    write,
    written,
)


def test_a_lookup_larger_than_its_memory_bound_is_cut_in_pieces(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dedup.catalog.database._LOOKUP_BYTES", 4000)
    made, seg = written(bench.store(), 3000)
    store = bench.store()
    assert store.lookup(seg, made.keys, made.hashes).tolist() == made.times_ms.tolist()
    assert store.counters.catalog_reads == 47


def test_segment_and_sidecar_are_there_when_write_returns_and_never_change(bench: Bench) -> None:
    made = fixed(1000)
    store = bench.store(shard=3)
    seg = write(store, made)
    assert seg.name == f"000000000007-{RUN}-1-0000"
    before = [bench.file(seg, suffix, shard=3).read_bytes() for suffix in (".sst", ".filter")]
    assert [len(data) for data in before] == [seg.sst_bytes, seg.filter_bytes]
    assert store.counters.bytes_written == seg.sst_bytes + seg.filter_bytes
    for _ in range(2):
        reader = bench.store(shard=3)
        reader.lookup(seg, made.keys, made.hashes)
        reader.read_segment(seg)
        assert knows(reader, seg, made)
    after = [bench.file(seg, suffix, shard=3).read_bytes() for suffix in (".sst", ".filter")]
    assert after == before
    assert write(store, made).name == f"000000000007-{RUN}-1-0001"


def test_the_sidecar_is_written_before_the_segment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[str] = []
    real = Root.put_file
    monkeypatch.setattr(
        Root, "put_file", lambda self, name, path: (put.append(name), real(self, name, path))
    )
    write(bench.store(), fixed(10))
    assert [Path(name).suffix for name in put] == [".filter", ".sst"]


def test_a_name_that_is_taken_is_never_overwritten(bench: Bench) -> None:
    store = bench.store()
    first = write(store, fixed(10))
    data = bench.file(first).read_bytes()
    bench.attempts -= 1  # an attempt that claims the other's identity
    with pytest.raises(CatalogError, match="names of segments are unique"):
        write(bench.store(), fixed(20))
    assert bench.file(first).read_bytes() == data


def test_shards_of_one_task_may_write_the_same_name(bench: Bench) -> None:
    made, other = fixed(100), fixed(100, seed=9)
    first = write(bench.store(shard=1), made)
    bench.attempts -= 1
    second = write(bench.store(shard=2), other)
    assert first.name == second.name
    for shard, seg, expected in ((1, first, made), (2, second, other)):
        times_ms = bench.store(shard=shard).lookup(seg, expected.keys, expected.hashes)
        assert times_ms.tolist() == expected.times_ms.tolist()


def test_contradicting_arguments_write_nothing(bench: Bench) -> None:
    made = fixed(10)
    entries = Entries.in_order(made.keys, made.hashes, made.times_ms)
    keys, hashes, times_ms = entries.keys, entries.hashes, entries.times_ms
    back = np.arange(len(keys))[::-1].copy()
    half = len(keys) // 2
    other = 0 if int(hashes[0]) >> 63 else 1
    wrong: list[tuple[list[Entries], int, str]] = [
        ([Entries(keys, hashes, times_ms + (END_MS - START_MS))], 1, "leave the bucket"),
        ([Entries(keys, hashes, np.full(10, END_MS))], 1, "leave the bucket"),
        ([Entries(keys, hashes + np.uint64(1), times_ms)], 1, "do not belong to the keys"),
        ([Entries(keys.take(back), hashes[back], times_ms)], 1, "not in the order"),
        ([entries[0:1]], 2, "leave range"),
        ([entries, entries[half:10]], 1, "occurs twice"),
    ]
    for pieces, parts, message in wrong:
        plan = SegmentPlan(START_MS, END_MS, 0.01, parts, other if parts == 2 else 0)
        with pytest.raises(ValueError, match=message):
            bench.store().write_segment(plan, pieces)
    assert bench.root.list() == ()
    assert list((bench.cache().top / "tmp").iterdir()) == []


def test_values_that_are_not_hashes_of_the_ids_are_rejected() -> None:
    zeros = np.zeros(70_000, np.uint64), np.zeros(70_000, np.int64)
    with pytest.raises(ValueError, match="not hashes of the IDs"):
        list(encode_blocks(fixed(70_000).keys, *zeros, 1, wide_times=False))


def test_deleting_removes_all_files_and_local_copies(bench: Bench) -> None:
    store, made = bench.store(), fixed(100)
    seg, kept = write(store, made), write(store, made)
    for each in (seg, kept):
        store.lookup(each, made.keys, made.hashes)
        assert knows(store, each, made)
    assert store.delete([seg.name, "000000000001-gone-1-0000"]) == 1
    left = [entry.path.name for entry in bench.cache().entries()]
    assert left == [kept.name + ".view"]
    left = {Path(found.name).name for found in bench.root.list()}
    assert left == {kept.name + ".sst", kept.name + ".filter"}
    assert store.delete([seg.name]) == 0


def test_remote_roots_serve_the_same_answers_from_fetched_copies(bench: Bench) -> None:
    root = bench.remote
    made = varied(5000)
    seg = write(bench.store(root=root), made)
    bench.lose_cache()
    reader = bench.store(root=root)
    check_answers(reader, seg, made)
    assert reader.counters.bytes_fetched == seg.sst_bytes + seg.filter_bytes
    again = bench.store(root=root)
    assert knows(again, seg, made)
    again.lookup(seg, made.keys, made.hashes)
    assert again.counters.bytes_fetched == 0
    assert again.delete([seg.name]) == 1
    assert root.list() == ()


def test_a_segment_that_was_just_written_is_not_fetched_again(bench: Bench) -> None:
    root = bench.remote
    made = varied(5000)
    seg, unread = (write(bench.store(root=root), made) for _ in range(2))
    reader = bench.store(root=root)
    check_answers(reader, seg, made)
    assert reader.counters.bytes_fetched == 0
    left = {path.name for path in bench.cache().folder.glob("shard=00000/*")}
    assert left == {f"{seg.name}.view", f"{seg.name}.filter", f"{unread.name}.sst",
                    f"{unread.name}.filter"}  # fmt: skip
    reader.delete([seg.name, unread.name])
    assert list(bench.cache().folder.glob("shard=00000/*")) == []


def test_taking_the_counters_returns_the_counts_and_resets_them(bench: Bench) -> None:
    made = fixed(1000)
    store = bench.store()
    seg = write(store, made)
    store.lookup(seg, made.keys, made.hashes)
    store.read_segment(seg)
    assert knows(store, seg, made)
    counts = store.counters.take()
    assert (counts.views_built, counts.views_rebuilt, counts.filters_rebuilt) == (1, 0, 0)
    assert (counts.catalog_reads, counts.bytes_fetched) == (16, 0)
    assert counts.bytes_written == seg.sst_bytes + seg.filter_bytes
    assert store.counters == type(counts)()


def test_a_pending_list_leaves_no_file_behind(bench: Bench) -> None:
    store, made = bench.store(), fixed(20)
    seg, kept = (write(store, made) for _ in range(2))
    assert bench.store().delete_pending(store.spill_pending([seg.name])) == 1
    left = sorted(path.name for path in bench.file(kept).parent.iterdir())
    assert left == [kept.name + ".filter", kept.name + ".sst"]
