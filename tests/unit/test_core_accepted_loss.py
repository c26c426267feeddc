"""Segments damaged at the root: an error, unless their loss was accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dedup.core.manifest import Manifest
from dedup.core.state import ShardState
from dedup.errors import SegmentDamaged
from tests.support.shard_driver import Driver, Rec, X, Y, Z, drive


def names(manifest: Manifest) -> list[str]:
    return [segment.name for segment in manifest.segments()]


def with_filters(driver: Driver) -> ShardState:
    """The state with every filter in the row, as a larger budget has it."""
    filters = {name: driver.store.filters[name] for name in names(driver.state.manifest)}
    return replace(driver.state, filters=filters)


def enlarge_budget(driver: Driver) -> None:
    driver.state = with_filters(driver)
    driver.policy = replace(driver.policy, state_budget_bytes=1 << 20)


def accept(driver: Driver, *lost: str) -> None:
    """Damage segments, and accept their loss."""
    driver.store.damaged.update(lost)
    driver.store.accepted.update(lost)


def two_segments(**changes: object) -> Driver:
    """x in [0, 10) and y in [20, 30), sealed."""
    driver = drive(state_budget_bytes=0, lateness_ms=500, **changes)
    driver.feed([Rec(X, 5), Rec(Y, 25)])
    assert len(names(driver.state.manifest)) == 2
    return driver


def test_damage_stops_the_query() -> None:
    driver = two_segments()
    driver.store.damaged.add(names(driver.state.manifest)[0])
    with pytest.raises(SegmentDamaged):
        driver.feed([Rec(X, 6)])
    # The filter is as lost as the segment where it is not in the state row.
    with pytest.raises(SegmentDamaged):
        driver.feed([Rec(Z, 6)])
    # What cannot be in that bucket is answered.
    assert driver.named([Rec(Y, 80), Rec(Z, 70)]) == ["DUPLICATE", "UNIQUE"]


def test_a_filter_in_the_state_row_still_answers_for_a_damaged_segment() -> None:
    driver = two_segments()
    enlarge_budget(driver)
    driver.store.damaged.update(names(driver.state.manifest))
    assert driver.named([Rec(Z, 6)]) == ["UNIQUE"]
    assert (driver.count("filter_negative"), driver.count("filter_false_positive")) == (1, 0)
    with pytest.raises(SegmentDamaged):
        driver.feed([Rec(X, 6)])


@pytest.mark.parametrize("in_state", [False, True], ids=["sidecar", "filter"])
def test_an_accepted_loss_is_dropped_from_the_manifest_and_counted_once(in_state: bool) -> None:
    driver = two_segments()
    if in_state:
        driver.state = with_filters(driver)
    lost, kept = names(driver.state.manifest)
    accept(driver, lost)
    # The duplicate passes, as the user accepted; the oracle must not object.
    driver.passed = [p for p in driver.passed if p.id != X]
    assert driver.named([Rec(X, 6), Rec(Y, 26)]) == ["UNIQUE", "DUPLICATE"]
    assert lost not in names(driver.state.manifest)
    assert kept in names(driver.state.manifest)
    assert driver.state.segments_lost == 1
    # It is neither waited for nor deleted, and counted once.
    assert lost not in driver.state.manifest.names()
    assert driver.named([Rec(X, 6)]) == ["DUPLICATE"]
    assert driver.state.segments_lost == 1


def close(driver: Driver) -> None:
    """End the bucket [0, 10), whose segments are then merged."""
    enlarge_budget(driver)
    for n in range(8):
        driver.feed([Rec(b"later%d" % n, 100 + n)])


def three_segments() -> Driver:
    """0, 1 and 2 in a segment each of [0, 10)."""
    driver = drive(state_budget_bytes=0, horizon_ms=500)
    for n in range(3):
        driver.feed([Rec(b"%d" % n, n)])
    assert len(driver.state.manifest.buckets[0].segments) == 3
    return driver


def test_damage_found_while_merging_stops_the_query() -> None:
    driver = three_segments()
    driver.store.damaged.add(names(driver.state.manifest)[1])
    with pytest.raises(SegmentDamaged):
        close(driver)


@pytest.mark.parametrize("lost", [{1}, {0, 1, 2}], ids=["one", "all"])
def test_a_merge_leaves_out_segments_whose_loss_was_accepted(lost: set[int]) -> None:
    driver = three_segments()
    accept(driver, *(name for n, name in enumerate(names(driver.state.manifest)) if n in lost))
    driver.passed = []
    close(driver)
    left = [set(driver.ids_of(s)) for b in driver.state.manifest.buckets[:1] for s in b.segments]
    assert left == ([] if len(lost) == 3 else [{b"0", b"2"}])
    assert driver.state.segments_lost == len(lost)
    assert not driver.store.damaged & driver.state.manifest.names()
