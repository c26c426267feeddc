"""`max_live_ids`: the oldest buckets are forgotten early, and the metrics show the horizon left."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest

from dedup.catalog.backup import read_backup
from dedup.core.clocks import NEVER_MS
from dedup.core.policy import Policy
from dedup.core.state import CAPPED_VERSION, VERSION, ShardState
from dedup.storage.root import Root
from tests.support.memory_store import KEY_ID
from tests.support.shard_driver import EVENT, Driver, Rec, drive

CAPPED = replace(EVENT, horizon_ms=200, bucket_ms=20, lateness_ms=30, max_live_ids=40)
POLICIES = {
    "any": CAPPED,
    "sealed": replace(CAPPED, state_budget_bytes=0, max_filter_state_bytes=0, segment_ids=4),
    "dropped": replace(CAPPED, late="drop"),
    "stable": replace(CAPPED, stable_timestamps=True),
    "arrival": replace(CAPPED, event_time=False, lateness_ms=0),
    "filters alone": replace(CAPPED, guarantee="at-most-once"),
}


@dataclass
class Model:
    """The rule, without buckets' segments: what is remembered by bucket."""

    policy: Policy
    held: Counter[int] = field(default_factory=Counter)

    def end(self, taken: list[int], gc_ms: int, late_ms: int) -> None:
        """A micro-batch ends that remembers records of these times."""
        length_ms = self.policy.bucket_ms
        self.held.update((time_ms // length_ms + 1) * length_ms for time_ms in taken)
        for end_ms in [end_ms for end_ms in self.held if end_ms <= gc_ms]:
            del self.held[end_ms]
        while self.policy.max_live_ids and self.held.total() > self.policy.max_live_ids:
            if min(self.held) > late_ms:
                return
            del self.held[min(self.held)]


def stream(random: Random, batch: int, *, spike: bool) -> list[Rec]:
    now_ms = 15 * batch
    recs = []
    for _ in range(random.randrange(60 if spike else 8)):
        number = random.randrange(now_ms + 40)
        time_ms = number if random.random() < 0.7 else now_ms - random.randrange(50)
        recs.append(Rec(b"%d" % number, max(time_ms, now_ms - 150)))
    return recs


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_the_rule_holds_and_every_repeat_is_further_back_than_reported(
    policy: Policy, seed: int
) -> None:
    """The driver checks each verdict against the horizon that the same micro-batch reports."""
    random = Random(seed)
    driver, model, forgotten, cuts = Driver(policy), Model(policy), 0, set()
    for batch in range(120):
        spike = 20 <= batch < 45
        recs = stream(random, batch, spike=spike)
        if policy.stable_timestamps:
            recs = [replace(rec, time_ms=int(rec.id or b"")) for rec in recs]
        seen = len(driver.passed)
        driver.feed(recs, 15 * batch + 20)
        clocks = driver.state.clocks
        times = [passed.time_ms for passed in driver.passed[seen:]]
        model.end(times, clocks.gc_watermark_ms, clocks.late_watermark_ms)
        if policy.late == "emit" and not driver.counts.get("filter_unconfirmed"):
            assert driver.state.manifest.ids + len(driver.state.tail) == model.held.total()
        forgotten += driver.count("ids_forgotten_early")
        cuts.add(driver.count("horizon_cut_ms"))
        if batch == 60:
            driver.retune(max_live_ids=10)
            model.policy = driver.policy
        if batch == 75:
            driver.retune(max_live_ids=None)
            model.policy = driver.policy
    assert forgotten > 100
    assert 0 in cuts
    assert max(cuts) > 100
    assert not driver.state.is_capped, "the horizon is whole again"


def test_what_another_shard_has_forgotten_is_not_forgotten_here_as_well() -> None:
    """After a change of the number of shards, all have the latest `capped_before_ms` of any."""
    driver = Driver(replace(CAPPED, max_live_ids=9))
    driver.feed([Rec(b"%d" % n, 20 * n) for n in range(9)], 200)
    driver.state = replace(driver.state, capped_before_ms=120)
    driver.feed([Rec(b"new", 170)])
    assert driver.count("ids_forgotten_early") == 1
    assert driver.state.manifest.ids + len(driver.state.tail) == 9
    assert driver.state.capped_before_ms == 120


def test_ids_that_are_not_late_stay_however_many_they_are() -> None:
    driver = Driver(replace(CAPPED, max_live_ids=1))
    driver.feed([Rec(b"%d" % n, 1000 + n % 30) for n in range(100)], 1100)
    driver.feed([Rec(b"new", 1029)])
    state = driver.state
    assert state.manifest.ids + len(state.tail) == 101
    assert driver.count("ids_forgotten_early") == 0
    assert not state.is_capped


def test_a_row_has_another_version_only_while_ids_are_forgotten_early() -> None:
    driver = drive(CAPPED, max_live_ids=3)
    versions = []
    for time_ms in (0, 100, 200, 210, 220, 400, 700):
        driver.named([Rec(b"%d" % (time_ms + n), time_ms + n) for n in range(3)])
        row = driver.state.to_bytes()
        versions.append(int.from_bytes(row[4:6], "little"))
        read = ShardState.from_bytes(row, hash_key_id=KEY_ID)
        expected = driver.state.capped_before_ms if driver.state.is_capped else NEVER_MS
        assert read.capped_before_ms == expected
        assert ("capped_before_ms" in driver.state.head()) == driver.state.is_capped
    assert versions[0] == VERSION
    assert CAPPED_VERSION in versions
    driver.retune(max_live_ids=None)
    driver.named([Rec(b"x", 2000)])
    driver.named([Rec(b"y", 2001)])
    assert int.from_bytes(driver.state.to_bytes()[4:6], "little") == VERSION


def test_a_row_and_a_backup_of_the_second_version_are_read() -> None:
    golden = Path(__file__).parents[1] / "golden" / "capped-v2"
    row = (golden / "state-0.bin").read_bytes()
    assert int.from_bytes(row[4:6], "little") == CAPPED_VERSION
    state = ShardState.from_bytes(row, hash_key_id=KEY_ID)
    backup = read_backup(Root(golden), "capped", 0)
    assert backup is not None
    assert b'"format":2' in (golden / "capped/shard=00000/backup.json").read_bytes()
    assert state.capped_before_ms == backup.capped_before_ms == 40
    assert (state.horizon_cut_ms(60), backup.horizon_cut_ms(60)) == (53, 53)
    assert state.manifest == backup.manifest
