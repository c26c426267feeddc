"""Which filters the state row holds: the newest, as many as the load pays for."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from dedup.core import filter_choice
from dedup.core.bucket import Bucket
from dedup.core.filter import SplitBlockFilter, hash_key_id
from dedup.core.filter_choice import (
    BYTES_PER_RECORD,
    EVICTED_PART,
    LEAST_BYTES,
    filters_for_row,
    room_bytes,
)
from dedup.core.manifest import Manifest
from dedup.core.segment import SegmentRef
from tests.support.shard_driver import Driver, Rec, drive

KEY_ID = hash_key_id(bytes(16))
BOUND = 64 << 20


def filter_of(blocks: int) -> SplitBlockFilter:
    filters = (SplitBlockFilter.sized(n, 0.01, hash_key_id=KEY_ID) for n in count())
    return next(built for built in filters if built.blocks == blocks)


class Sidecars:
    """Segments of one bucket each, oldest first, with filters of so many blocks."""

    def __init__(self, *blocks: int) -> None:
        self.built = {f"s{n}": filter_of(each) for n, each in enumerate(blocks)}
        self.loaded: list[str] = []
        self.damaged: set[str] = set()
        buckets = []
        for n, (name, built) in enumerate(self.built.items()):
            segment = SegmentRef(name, n, n + 1, 1, 1, 0, built.nbytes, 0)
            buckets.append(Bucket(n, n + 1, runs=((segment,),)))
        self.manifest = Manifest(tuple(buckets))

    def load(self, segment: SegmentRef) -> SplitBlockFilter | None:
        self.loaded.append(segment.name)
        return None if segment.name in self.damaged else self.built[segment.name]

    def chosen(self, held: str, room: int, *, by_load: bool = True) -> str:
        filters = {name: self.built[name] for name in held.split()}
        found = filters_for_row(self.manifest, filters, room, self.load, by_load=by_load)
        return " ".join(found)

    def bytes_of(self, names: str) -> int:
        return sum(self.built[name].nbytes for name in names.split())


def by_load(records: int, held_bytes: int, most_bytes: int) -> int:
    return room_bytes(records, held_bytes, most_bytes, by_load=True)


def test_a_given_bound_does_not_depend_on_the_load() -> None:
    for records, held_bytes in ((0, 0), (10**9, 0), (0, BOUND)):
        assert room_bytes(records, held_bytes, 1_000, by_load=False) == 1_000


def test_more_records_allow_more_filter_bytes_up_to_the_bound() -> None:
    assert by_load(0, 0, BOUND) == LEAST_BYTES
    assert by_load(1_000, 0, BOUND) == LEAST_BYTES + 1_000 * BYTES_PER_RECORD
    assert by_load(10**9, 0, BOUND) == BOUND
    assert by_load(10**9, 0, 0) == 0


def test_the_room_falls_slowly_with_the_load_and_at_once_with_the_bound() -> None:
    held, steps = BOUND, 0
    while held > LEAST_BYTES:
        room = by_load(0, held, BOUND)
        assert held - room <= held // EVICTED_PART
        held, steps = room, steps + 1
    assert 10 < steps < 100
    assert by_load(0, BOUND, 1_000) == 1_000
    assert by_load(10**9, 1_000, BOUND) == BOUND


def test_the_newest_filters_stay() -> None:
    sidecars = Sidecars(2, 2, 2, 2)
    assert sidecars.chosen("s0 s1 s2 s3", sidecars.bytes_of("s1 s2 s3")) == "s1 s2 s3"
    assert sidecars.chosen("s0 s1 s2 s3", sidecars.bytes_of("s3") - 1) == ""
    assert not sidecars.loaded


def test_smaller_older_filters_fill_the_room_beside_one_that_is_too_large() -> None:
    sidecars = Sidecars(1, 9, 1)
    assert sidecars.chosen("s0 s1 s2", sidecars.bytes_of("s0 s2")) == "s0 s2"


def test_filters_return_once_half_of_the_room_is_empty() -> None:
    sidecars = Sidecars(1, 1, 1, 1)
    room = sidecars.bytes_of("s0 s1 s2 s3")
    assert sidecars.chosen("s2 s3", room) == "s2 s3"
    assert not sidecars.loaded, "half full"
    assert sidecars.chosen("s3", room) == "s0 s1 s2 s3"
    assert sidecars.loaded == ["s2", "s1", "s0"], "the newest first"


def test_filters_return_at_once_under_a_given_bound() -> None:
    sidecars = Sidecars(1, 1, 1, 1)
    room = sidecars.bytes_of("s0 s1 s2 s3")
    assert sidecars.chosen("s1 s2 s3", room, by_load=False) == "s0 s1 s2 s3"
    assert sidecars.chosen("s3", room - 1, by_load=False) == "s1 s2 s3"
    assert sidecars.loaded == ["s0", "s2", "s1"]


def test_a_damaged_sidecar_does_not_return() -> None:
    sidecars = Sidecars(1, 1, 1)
    sidecars.damaged.add("s1")
    assert sidecars.chosen("", BOUND) == "s0 s2"


def test_filters_of_segments_that_are_gone_leave() -> None:
    sidecars = Sidecars(1, 1)
    gone = {"gone": sidecars.built["s0"], "s1": sidecars.built["s1"]}
    assert list(filters_for_row(sidecars.manifest, gone, BOUND, sidecars.load, by_load=True)) == [
        "s0",
        "s1",
    ]


# In a shard.


def filled(**changes: int) -> Driver:
    driver = drive(state_budget_bytes=0, horizon_ms=5_000, bucket_ms=50, lateness_ms=100, **changes)
    for n in range(20):
        driver.feed([Rec(b"%d-%d" % (n, i), n * 25) for i in range(40)])
    return driver


def test_ids_that_a_sidecar_answered_for_are_counted() -> None:
    driver = filled()
    fresh = [Rec(b"fresh %d" % i, 480) for i in range(10)]
    driver.feed(fresh)
    cleared = driver.count("filter_negative")
    assert cleared > 0
    assert driver.count("filter_sidecar") == cleared, "no filter is in state"
    driver.policy = replace(driver.policy, max_filter_state_bytes=1 << 20)
    driver.feed([])
    driver.feed([Rec(b"fresher %d" % i, 480) for i in range(10)])
    assert driver.count("filter_sidecar") == 0, "all filters are in state"
    assert driver.count("filter_negative") > 0


@pytest.mark.parametrize("by_load", [True, False])
def test_all_filters_are_in_state_if_a_given_bound_has_room_for_them(
    by_load: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_choice, "LEAST_BYTES", 0)
    driver = filled()
    driver.policy = replace(driver.policy, max_filter_state_bytes=1 << 20, filters_by_load=by_load)
    driver.feed([])
    segments = {segment.name for segment in driver.state.manifest.segments()}
    assert len(segments) > 5
    assert (driver.state.filters.keys() == segments) == (not by_load)
    driver.feed([Rec(b"fresh %d" % i, 480) for i in range(10)])
    assert driver.count("filter_negative") > 0
    assert (driver.count("filter_sidecar") == 0) == (not by_load)
