"""The contract of `SegmentStore`, which its docstring states: every store passes the same tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dedup.core.entries import Entries
from dedup.core.hash_ranges import hash_range
from dedup.core.keys import Keys
from dedup.core.ports import ABSENT_MS, SegmentStore
from dedup.core.segment import SegmentPlan, SegmentRef
from dedup.errors import SegmentDamaged
from tests.support.catalog import (
    END_MS,
    HASH_KEY,
    START_MS,
    Bench,
    Content,
    content,
    fixed,
    hashes_of,
    knows,
    varied,
    write,
    written,
)
from tests.support.memory_store import MemoryStore

#: Opens the segments of one shard as every task attempt does.
OpenStore = Callable[[], SegmentStore]


@pytest.fixture(params=["in memory", "local root", "remote root"])
def open_store(request: pytest.FixtureRequest, bench: Bench) -> OpenStore:
    if request.param == "in memory":
        shared = MemoryStore(hash_key=HASH_KEY)
        return lambda: shared
    if request.param == "remote root":
        bench.root = bench.remote
    return bench.store


CONTENTS = {
    "none": lambda: fixed(0),
    "one": lambda: fixed(1),
    "64": lambda: fixed(64),
    "65": lambda: fixed(65),
    "100k": lambda: fixed(100_000),
    "varied": lambda: varied(3000),
    "empty key": lambda: content(Keys.from_list([b"", b"a", b"\x00"])),
    "only the empty key": lambda: content(Keys.from_list([b""])),
    "1 MB key": lambda: content(Keys.from_list([b"x" * (1 << 20), b"y" * (1 << 20), b"z"])),
    "before 1970": lambda: fixed(100, start_ms=-(10**14), end_ms=-(10**14) + 5),
    "a bucket of years": lambda: fixed(100, start_ms=0, end_ms=10**14),
}
BUCKETS = {"before 1970": (-(10**14), -(10**14) + 5), "a bucket of years": (0, 10**14)}


@pytest.mark.parametrize("case", CONTENTS)
def test_a_written_segment_is_found_and_read_back(open_store: OpenStore, case: str) -> None:
    made = CONTENTS[case]()
    start_ms, end_ms = BUCKETS.get(case, (START_MS, END_MS))
    seg = write(open_store(), made, start_ms=start_ms, end_ms=end_ms)
    reader = open_store()
    assert seg.count == len(made)
    assert reader.lookup(seg, made.keys, made.hashes).tolist() == made.times_ms.tolist()

    entries = reader.read_segment(seg)
    expected = dict(zip(made.keys, made.times_ms.tolist(), strict=True))
    assert dict(zip(entries.keys, entries.times_ms.tolist(), strict=True)) == expected
    assert len(entries) == len(made)
    assert (entries.hashes == hashes_of(entries.keys)).all()
    assert (np.diff(entries.hashes.astype(object)) >= 0).all()

    assert knows(reader, seg, made)


@pytest.mark.parametrize("asked", [1, 50, 4000])
def test_lookups_mix_hits_and_misses_in_any_order(open_store: OpenStore, asked: int) -> None:
    made, strange = varied(20_000), fixed(asked, prefix="other")
    rng = np.random.default_rng(5)
    chosen = rng.permutation(20_000)[:asked].astype(np.int64)
    order = rng.permutation(2 * asked).astype(np.int64)
    keys = Keys.concat([made.keys.take(chosen), strange.keys]).take(order)
    expected = np.concatenate([made.times_ms[chosen], np.full(asked, ABSENT_MS)])[order]
    seg = write(open_store(), made)
    assert open_store().lookup(seg, keys, hashes_of(keys)).tolist() == expected.tolist()


@pytest.mark.parametrize("parts", [1, 2])
def test_pieces_are_written_as_one_segment(open_store: OpenStore, parts: int) -> None:
    """More blocks than are merged at a time, of pieces that interleave; one is empty."""
    made = fixed(80_000)
    whole = Entries.in_order(made.keys, made.hashes, made.times_ms)
    whole = whole[hash_range(whole.hashes, parts, parts - 1)]
    pieces = []
    for nth in range(3):
        some = np.arange(nth, len(whole), 3)
        pieces.append(Entries(whole.keys.take(some), whole.hashes[some], whole.times_ms[some]))
    plan = SegmentPlan(START_MS, END_MS, 0.01, parts, parts - 1)
    written = [
        open_store().write_segment(plan, content)[0] for content in ([whole], [*pieces, whole[0:0]])
    ]
    assert written[0].filter_crc32 == written[1].filter_crc32
    reader = open_store()
    for seg in written:
        assert seg.count == len(whole)
        read = reader.read_segment(seg)
        assert list(read.keys) == list(whole.keys)
        assert read.times_ms.tolist() == whole.times_ms.tolist()
        found_ms = reader.lookup(seg, whole.keys, whole.hashes)
        assert found_ms.tolist() == whole.times_ms.tolist()
        assert reader.may_hold(seg, whole.hashes).all()


@pytest.mark.parametrize("some", ["all", "some", "none"])
def test_digests_are_kept_beside_the_keys(open_store: OpenStore, some: str) -> None:
    """Some pieces have no digests. Segments are read whole, in part, and by key."""
    made = varied(3000)
    digests = np.arange(1, 3001).astype(np.uint64) << np.uint64(50)
    whole = Entries.in_order(made.keys, made.hashes, made.times_ms, digests)
    pieces = []
    for nth in range(2):
        at = np.arange(nth, len(whole), 2)
        beside = None if some == "none" or (some == "some" and nth) else whole.digests[at]
        columns = whole.keys.take(at), whole.hashes[at], whole.times_ms[at]
        pieces.append(Entries(*columns, beside))
    expected = {"all": digests.tolist(), "none": [0] * 3000}.get(some)
    if expected is None:
        has = set(pieces[0].keys)
        expected = [
            digest if key in has else 0
            for key, digest in zip(made.keys, digests.tolist(), strict=True)
        ]
    seg, _ = open_store().write_segment(SegmentPlan(START_MS, END_MS, 0.01), pieces)
    reader = open_store()
    found = np.full(3000, 5, np.uint64)
    times_ms = reader.lookup(seg, made.keys, made.hashes, found)
    assert times_ms.tolist() == made.times_ms.tolist()
    assert found.tolist() == expected
    by_key = dict(zip(made.keys, expected, strict=True))
    for entries in (reader.read_segment(seg), reader.read_segment(seg, 4, 2)):
        if some == "none":
            assert entries.digests is None
        else:
            assert entries.digests.tolist() == [by_key[key] for key in entries.keys]
    strange, asked = fixed(10, prefix="other"), np.full(10, 5, np.uint64)
    assert reader.lookup(seg, strange.keys, strange.hashes, asked).tolist() == [ABSENT_MS] * 10
    assert not asked.any()


@pytest.mark.parametrize("parts", [1, 2, 8])
def test_ranges_of_hashes_make_up_the_whole_segment(open_store: OpenStore, parts: int) -> None:
    made = varied(3000)
    seg = write(open_store(), made)
    whole = open_store().read_segment(seg)
    read = [open_store().read_segment(seg, parts, part) for part in range(parts)]
    assert [hash_range(piece.hashes, parts, part) for part, piece in enumerate(read)] == [
        slice(0, len(piece)) for piece in read
    ]
    assert [key for piece in read for key in piece.keys] == list(whole.keys)


def test_a_filter_is_read_back_whole(open_store: OpenStore) -> None:
    made = fixed(500)
    entries = Entries.in_order(made.keys, made.hashes, made.times_ms)
    seg, built = open_store().write_segment(SegmentPlan(START_MS, END_MS, 0.01), [entries])
    again = open_store().read_filter(seg)
    assert again is not None
    assert again.to_bytes() == built.to_bytes()


def is_damaged(store: SegmentStore, seg: SegmentRef, made: Content) -> None:
    with pytest.raises(SegmentDamaged):
        store.lookup(seg, made.keys, made.hashes)
    with pytest.raises(SegmentDamaged):
        store.read_segment(seg)
    with pytest.raises(SegmentDamaged):
        store.may_hold(seg, np.sort(made.hashes))


def test_a_missing_segment_is_damage(open_store: OpenStore) -> None:
    made, seg = written(open_store(), 20)
    is_damaged(open_store(), replace(seg, name="000000000001-gone-1-0000"), made)
    store = open_store()
    assert store.delete([seg.name]) == 1
    is_damaged(store, seg, made)
    is_damaged(open_store(), seg, made)


def test_deleting_returns_how_many_segments_existed(open_store: OpenStore) -> None:
    made = fixed(20)
    seg, kept = (write(open_store(), made) for _ in range(2))
    assert open_store().delete([]) == 0
    assert open_store().delete([seg.name, "000000000001-gone-1-0000"]) == 1
    assert open_store().delete([seg.name]) == 0
    assert knows(open_store(), kept, made)


def test_a_pending_list_is_deleted_with_its_segments(open_store: OpenStore) -> None:
    made = fixed(20)
    segs = [write(open_store(), made) for _ in range(3)]
    pending_list = open_store().spill_pending([seg.name for seg in segs[:2]])
    assert knows(open_store(), segs[0], made), "nothing is deleted before it is due"
    assert open_store().delete_pending(pending_list) == 2
    assert knows(open_store(), segs[2], made)
    # An attempt that is run again finds that it is done.
    assert open_store().delete_pending(pending_list) == 0


def test_no_loss_is_accepted_unless_a_user_accepted_it(open_store: OpenStore) -> None:
    seg = write(open_store(), fixed(20))
    assert not open_store().loss_accepted(seg)
    open_store().delete([seg.name])
    assert not open_store().loss_accepted(seg)
