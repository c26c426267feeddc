"""What a lookup reads: the tail, then filters, then only the segments that may hold an ID."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dedup import kernel
from dedup.core.clocks import NEVER_MS
from dedup.core.keys import Keys
from dedup.core.lookup import DistinctIds, Matches, lookup
from dedup.core.policy import Policy
from dedup.core.segment import SegmentRef
from dedup.kernel.arrays import BOOL, I64, U64
from tests.support.memory_store import HASH_KEY, MemoryStore
from tests.support.shard_driver import Driver, Rec, drive


def ask(driver: Driver, *records: tuple[bytes, int, int], own: int | None = None) -> Matches:
    """Recall IDs, each with the range of its times."""
    keys = Keys.from_list([key for key, _, _ in records])
    first = np.array([low for _, low, _ in records], np.int64)
    last = np.array([high for _, _, high in records], np.int64)
    own_first, own_last = (first, last) if own is None else (np.full_like(first, own),) * 2
    hashes = kernel.hash64(keys.data, keys.offsets, HASH_KEY)
    distinct = DistinctIds(keys, hashes, first, last, own_first, own_last)
    laps: list[str] = []
    asked = (driver.state, distinct, driver.policy, driver.store)
    matches = lookup(*asked, hash_key=HASH_KEY, on_stage_end=laps.append)
    assert laps == ["tail", "probe", "lookup"]
    return matches


def pairs(matches: Matches) -> list[tuple[int, int]]:
    assert matches.first_ms.tolist() == matches.last_ms.tolist(), "the exact catalog knows the time"
    return sorted(zip(matches.index.tolist(), matches.first_ms.tolist(), strict=True))


def filter_counts(matches: Matches) -> tuple[int, ...]:
    names = ("negative", "true_positive", "false_positive")
    return tuple(matches.counts[f"filter_{name}"] for name in names)


def driven(*batches: list[Rec], **changes: object) -> Driver:
    driver = drive(state_budget_bytes=0, lateness_ms=500, **changes)
    for recs in batches:
        driver.feed(recs)
    return driver


def test_an_id_that_the_tail_settles_probes_no_filter() -> None:
    driver = driven([Rec(b"x", 100)])
    driver.policy = replace(driver.policy, state_budget_bytes=1 << 20)
    driver.feed([Rec(b"y", 100)])
    matches = ask(driver, (b"y", 60, 140))
    assert pairs(matches) == [(0, 100)]
    assert filter_counts(matches) == (0, 0, 0)
    # Settled for none or one of its records only: the filters are asked.
    matches = ask(driver, (b"y", 60, 161))
    assert pairs(matches) == [(0, 100)]
    assert filter_counts(matches) == (1, 0, 0)


def test_all_entries_round_a_range_are_found() -> None:
    driver = driven([Rec(b"x", t) for t in (0, 61, 122, 183)])
    assert pairs(ask(driver, (b"x", 0, 300))) == [(0, 0), (0, 61), (0, 122), (0, 183)]
    # One entry that settles every record is enough: the newest bucket is asked first.
    assert pairs(ask(driver, (b"x", 130, 140))) == [(0, 183)]
    lookups = driver.store.lookups
    assert pairs(ask(driver, (b"x", 62, 62))) == [(0, 122)]
    assert driver.store.lookups == lookups + 1


def test_only_buckets_within_the_horizon_are_probed() -> None:
    driver = driven([Rec(b"x", t) for t in (0, 61, 122, 183)])
    # With its last millisecond [180, 190) reaches to 249, and [0, 10) with its first to -60.
    assert ask(driver, (b"x", 249, 249)).counts["filter_true_positive"] == 1
    assert ask(driver, (b"x", 250, 250)).counts["filter_negative"] == 1
    assert ask(driver, (b"x", -60, -60)).counts["filter_true_positive"] == 1
    assert ask(driver, (b"x", -61, -61)).counts["filter_negative"] == 1


def test_stable_times_probe_one_bucket_and_flagged_ones() -> None:
    driver = driven([Rec(b"x", 100), Rec(b"y", 140)], stable_timestamps=True)
    assert pairs(ask(driver, (b"x", 109, 109))) == [(0, 100)]
    assert pairs(ask(driver, (b"x", 110, 110))) == []
    assert pairs(ask(driver, (b"x", 130, 130), own=100)) == [(0, 100)]
    # Late: judged at 105, not at the record's time.
    assert pairs(ask(driver, (b"x", 105, 105), own=3)) == [(0, 100)]
    flagged = replace(driver.state.manifest.buckets[0], clamped=True)
    others = driver.state.manifest.buckets[1:]
    manifest = replace(driver.state.manifest, buckets=(flagged, *others))
    driver.state = replace(driver.state, manifest=manifest)
    assert pairs(ask(driver, (b"x", 130, 130))) == [(0, 100)]
    assert pairs(ask(driver, (b"y", 150, 150))) == []


class AlwaysMaybe(MemoryStore):
    """Filters that say yes to everything."""

    def write_segment(self, *args: object, **kwargs: object):  # type: ignore[no-untyped-def]
        ref, made = super().write_segment(*args, **kwargs)  # type: ignore[arg-type]
        made.bits[:] = 0xFFFFFFFF
        return ref, made


def test_filters_only_save_reads() -> None:
    driver = drive(state_budget_bytes=0, lateness_ms=500)
    driver.store = AlwaysMaybe()
    driver.feed([Rec(b"x", 100), Rec(b"z", 150)])
    matches = ask(driver, (b"x", 100, 100), (b"y", 100, 100))
    assert pairs(matches) == [(0, 100)]
    assert filter_counts(matches) == (0, 1, 1)


class Counting(MemoryStore):
    asked: list[tuple[str, str]]

    def may_hold(self, seg: SegmentRef, hashes: U64) -> BOOL:
        self.asked.append(("filter", seg.name))
        return super().may_hold(seg, hashes)

    def lookup(self, seg: SegmentRef, keys: Keys, hashes: U64, digests: U64 | None = None) -> I64:
        assert len(keys) == len(hashes) > 0
        self.asked.append(("lookup", seg.name))
        return super().lookup(seg, keys, hashes)


@pytest.mark.parametrize("in_state", [False, True])
def test_sidecars_are_read_only_if_the_state_row_has_no_filter(in_state: bool) -> None:
    driver = drive(state_budget_bytes=0, lateness_ms=500)
    store = driver.store = Counting()
    store.asked = []
    driver.feed([Rec(b"x", 100), Rec(b"z", 150)])
    names = [s.name for s in driver.state.manifest.segments()]
    if in_state:
        driver.state = replace(driver.state, filters={n: store.filters[n] for n in names})
    store.asked.clear()
    ask(driver, (b"x", 100, 100))
    filters = [] if in_state else [("filter", names[1]), ("filter", names[0])]
    assert store.asked == [*filters, ("lookup", names[0])]


def test_a_lookup_in_an_empty_state_finds_nothing() -> None:
    driver = Driver(Policy(horizon_ms=60, bucket_ms=10, event_time=True))
    matches = ask(driver, (b"x", NEVER_MS, 0))
    assert pairs(matches) == []
    assert matches.counts["filter_negative"] == 1
    assert len(ask(driver).index) == 0
