"""What is asked of a query, as a log, a state or a sample shows it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dedup.core.keys import Keys
from dedup.core.state import ShardState
from dedup.errors import ConfigError
from dedup.tools.tuning.advice import round_up
from dedup.tools.tuning.demand import DAY_MS, Demand, Repeats, Sizing, check
from dedup.tools.tuning.load import CountingStore, Load, drive, synthetic_keys
from dedup.tools.tuning.options import of_batches, of_states
from dedup.tools.tuning.sample import Sample, of_sample, without_future
from dedup.values.duration import format_ms
from tests.support.batch_metrics import START_MS, batch
from tests.support.tuning import demand

HOUR_MS = 3_600_000
#: As a query with a fifth of its horizon as bucket_length reports it.
SIZES = {"bucket_ms": 12 * 60_000, "state_budget_bytes": 1 << 19, "target_fpr": 0.002,
         "max_filter_state_bytes": 1 << 22}  # fmt: skip
BASE = demand(ids_per_day=0, today=Sizing(bucket_length="4 minutes"))


def logged(count: int = 5, **fields: object) -> list[tuple[int, object]]:
    """Every 20 s a micro-batch of 10 s of the data's time: it catches up."""
    return [(START_MS + 20_000 * n, batch(n, **fields)) for n in range(count)]


def test_a_log_gives_rates_by_the_timestamps_of_the_data() -> None:
    found = of_batches(BASE, "orders", logged(**SIZES, unique=90, late=5, duplicate=5))
    assert found.ids_per_day == pytest.approx(95 / 10_000 * DAY_MS)
    assert found.duplicates == pytest.approx(0.05)
    assert (found.horizon_ms, found.lateness_ms, found.shards) == (HOUR_MS, 0, 4)
    assert found.batch_ms == 10_000
    assert found.rows_per_shard == pytest.approx(100 / 4)
    sizes = {"state_budget_bytes": 1 << 19, "filter_state_bytes": 1 << 22}
    assert found.today == Sizing(bucket_length="12 minutes", fpr=0.002, **sizes)
    none = logged(**SIZES | {"max_filter_state_bytes": 0})
    assert of_batches(BASE, "orders", none).today.filter_state_bytes == 0
    assert found.running
    assert "orders, 5 micro-batches" in found.origin
    assert found.seen_fpr == (50, 50 + 5 * 890)
    assert found.seen_live == 2400
    assert found.fullest == pytest.approx(700 / (2400 / 4))


def test_a_copy_that_conflicts_is_a_copy() -> None:
    found = of_batches(BASE, "orders", logged(unique=90, duplicate=4, conflict=6))
    assert found.duplicates == pytest.approx(0.1)


def test_records_that_were_not_looked_up_give_no_rate() -> None:
    """At least once knows no copies; at most once knows no false positives."""
    blind = {"filter_false_positive": 0, "filter_unconfirmed": 30}
    most = logged(3, **blind)
    assert of_batches(BASE, "orders", most).seen_fpr is None
    assert of_batches(BASE, "orders", [*most, *logged(5)[3:]]).seen_fpr == (20, 20 + 2 * 890)
    passed = logged(3, unchecked=1000, unique=1000, duplicate=0)
    mixed = of_batches(BASE, "orders", [*passed, *logged(6)[3:]])
    assert mixed.duplicates == pytest.approx(0.1)
    assert "3 micro-batches" in mixed.origin
    for batches in (passed, [*passed, *logged(4)[3:]]):
        with pytest.raises(ConfigError, match="does not show which IDs were new"):
            of_batches(BASE, "orders", batches)


def test_live_ids_of_a_log_count_only_once_ids_have_expired() -> None:
    def seen(count: int, **cap: int) -> int | None:
        made = [
            (START_MS + n, batch(n, begins=n == 0, horizon_ms=30_000, lateness_ms=10_000, **cap))
            for n in range(count)
        ]
        return of_batches(BASE, "q", made).seen_live

    assert (seen(4), seen(5)) == (None, 2400)
    assert seen(5, horizon_cut_ms=1) is None, "max_live_ids has made some IDs forgotten"


def test_the_length_of_ids_is_derived_from_the_segments() -> None:
    found = of_batches(BASE, "q", logged(live_ids=1000, tail_ids=200, segment_bytes=800 * 41))
    assert found.key_bytes == round(41 - 4.4)


@pytest.mark.parametrize(
    "batches",
    [[], logged(1), logged(3, newest_ms=START_MS), logged(3, newest_ms=None),
     logged(3, unique=0, duplicate=0)],
)  # fmt: skip
def test_a_log_that_shows_no_rate_is_refused(batches: list) -> None:
    with pytest.raises(ConfigError, match="log of query orders shows no rate: it needs two"):
        of_batches(BASE, "orders", batches)


def states(asked: Demand, shards: int = 2) -> dict[int, ShardState]:
    """States of a query that ran for two horizons."""
    policy = asked.policy(Sizing(bucket_length="6 hours", state_budget_bytes=1 << 14))
    load = Load(rows=500, batch_ms=HOUR_MS, policy=policy, duplicates=0.1)
    made = {}
    for shard in range(shards):
        store = CountingStore()
        for step in drive(load, 50, synthetic_keys(), store):
            made[shard] = step.state
    return made


def test_a_demand_is_read_from_the_clocks_and_buckets_of_states() -> None:
    asked = demand()
    found = of_states(BASE, "orders", states(asked))
    assert found.horizon_ms == asked.horizon_ms
    assert found.lateness_ms == asked.lateness_ms
    # 450 new IDs an hour in each of two shards.
    assert found.ids_per_day == pytest.approx(2 * 450 * 24, rel=0.05)
    assert found.shards == len(found.shard_ids) == 2
    assert found.today == Sizing(bucket_length="6 hours")
    assert found.key_bytes == 17
    assert found.running
    assert found.fill_of_shards() == found.shard_ids
    assert found.seen_segments is not None
    assert found.seen_segments > 0


@pytest.mark.parametrize("late", ["emit", "drop"])
def test_states_reveal_whether_ids_expire_at_the_late_watermark(late: str) -> None:
    held = states(demand(stable_timestamps=True, late=late, lateness_ms=6 * HOUR_MS))
    found = of_states(replace(BASE, stable_timestamps=True), "orders", held)
    assert found.late == late
    # Its buckets are three hours and more, so that some more are held than are asked for.
    assert found.live_ids <= sum(found.shard_ids) * 1.1 < 2 * found.live_ids
    assert of_states(replace(BASE, stable_timestamps=False), "orders", held).late == "emit"


def test_states_without_ids_are_refused() -> None:
    for nothing in ({}, {0: ShardState()}):
        with pytest.raises(ConfigError, match="holds no IDs yet"):
            of_states(BASE, "orders", nothing)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ids_per_day": 0.0}, r"^With 0 new IDs a day \(a test\) there is nothing to size"),
        ({"ids_per_day": float("nan")}, "nan new IDs a day"),
        ({"duplicates": 1.0}, "--duplicate-share 1 "),
    ],
)
def test_a_load_that_cannot_be_sized_is_rejected(fields: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check(demand(**fields))


def test_a_demand_derives_live_ids_rates_and_bucket_lengths() -> None:
    asked = check(demand(ids_per_day=86_400.0, duplicates=0.2, batch_ms=10_000, shards=2))
    assert asked.live_ids == pytest.approx(86_400 + 3600)
    assert asked.records_per_s == pytest.approx(1.25)
    assert asked.rows_per_shard == pytest.approx(6.25)
    assert asked.policy(Sizing()).bucket_ms == DAY_MS // 8
    assert asked.policy(Sizing(bucket_length="2 hours")).bucket_ms == 2 * HOUR_MS


def test_only_a_query_that_drops_late_records_forgets_at_the_late_watermark() -> None:
    asked = demand(lateness_ms=6 * HOUR_MS)
    both = replace(asked, stable_timestamps=True, late="drop")
    for other in (replace(both, late="emit"), replace(both, stable_timestamps=False)):
        assert other.live_ids == asked.live_ids == 75_000
        assert not other.policy(Sizing()).forgets_at_late
    assert both.policy(Sizing()).forgets_at_late
    assert both.live_ids == 15_000


def test_a_trial_is_judged_by_the_rules_of_the_query() -> None:
    asked = demand(horizon_ms=1_000, stable_timestamps=True, event_time=False, lateness_ms=7)
    sizing = Sizing(fpr=0.2, state_budget_bytes=99, filter_state_bytes=9)
    policy = asked.policy(sizing)
    # As the operator has it: eight buckets cover the horizon, none is left over.
    assert (policy.bucket_ms, policy.horizon_ms, policy.lateness_ms) == (125, 1_000, 7)
    assert replace(asked, horizon_ms=1_001).policy(sizing).bucket_ms == 126
    assert (policy.fpr, policy.state_budget_bytes) == (0.2, 99)
    assert (policy.max_filter_state_bytes, policy.filters_by_load) == (9, False)
    assert asked.policy(Sizing()).filters_by_load
    assert (policy.stable_timestamps, policy.event_time) == (True, False)
    policy = BASE.policy(Sizing())
    assert (policy.stable_timestamps, policy.event_time) == (False, True)


def test_ids_without_a_sample_spread_over_shards_by_their_hash() -> None:
    fill = demand(shards=8).fill_of_shards()
    assert len(fill) == 8
    assert sum(fill) == pytest.approx(demand().live_ids, rel=0.01)
    assert max(fill) < 1.1 * min(fill)


def test_a_trial_uses_the_samples_own_ids_first() -> None:
    own = Keys.from_list([b"one", b"two", b"three"])
    keys = demand(keys=own, key_bytes=20).keys_of()(np.array([5, 1, 0, 2, 7, 0]))
    assert [keys[i] for i in (1, 2, 3, 5)] == [b"two", b"one", b"three", b"one"]
    assert len(keys[0]) == len(keys[4]) == 20
    assert keys[0] != keys[4]


# ---- samples -------------------------------------------------------------------------------------


def sample(rows: list[tuple[str, float | None, int]], one_in: int = 1) -> Sample:
    """Rows of ID, hours and file."""
    times = [hours for _, hours, _ in rows]
    return Sample(
        keys=Keys.from_list([name.encode() for name, _, _ in rows]),
        times_ms=None if None in times else np.array([int(h * HOUR_MS) for h in times], np.int64),
        files=np.array([file for _, _, file in rows], np.int64),
        one_in=one_in,
    )


def repeats_of(rows: list[tuple[str, float | None, int]]) -> Repeats:
    repeats = of_sample(BASE, sample(rows), None).repeats
    assert repeats is not None
    return repeats


DAYS = [(f"id{n}", n / 10, n // 24) for n in range(480)]


def test_a_sample_gives_ids_per_day_and_repeats() -> None:
    rows = [*DAYS, ("id0", 47.9, 20), ("id470", 47.9, 20)]
    found = of_sample(BASE, sample(rows), None)
    assert found.ids_per_day == pytest.approx(240, rel=0.02)
    assert found.duplicates == pytest.approx(2 / 482)
    assert found.origin == "482 records of the sample"
    assert found.keys is not None
    assert len(found.keys) == 480
    repeats = repeats_of(rows)
    assert repeats.apart_ms.tolist() == pytest.approx([0.9 * HOUR_MS, 47.9 * HOUR_MS])
    assert repeats.same_timestamp == 0
    assert repeats.span_ms == pytest.approx(47.9 * HOUR_MS, rel=0.01)


def test_a_repeat_counts_from_where_the_late_watermark_puts_it() -> None:
    """A copy with the original's timestamp that comes a day late is a day less an hour off."""
    repeats = repeats_of([*DAYS, ("id10", 1.0, 20)])
    assert repeats.same_timestamp == 1
    assert repeats.apart_ms.tolist() == [pytest.approx((47.9 - 1 - 1.0) * HOUR_MS)]
    assert repeats.behind_ms[-1] == pytest.approx(46.9 * HOUR_MS)


def test_a_stray_timestamp_of_old_makes_no_sample_longer() -> None:
    assert repeats_of([("old", -450_000.0, 0), *DAYS * 3]).span_ms < 48 * HOUR_MS


@pytest.mark.parametrize("ids", [2, 3, 4])
def test_a_sample_of_a_few_ids_gives_the_right_rate(ids: int) -> None:
    """None of so few timestamps is discarded as a stray one."""
    rows = [*((f"id{n}", 24.0 * n, 0) for n in range(ids)), ("id0", 24.0 * ids, 0)]
    found = of_sample(BASE, sample(rows), None)
    assert found.ids_per_day == pytest.approx(ids / (ids - 1))
    assert repeats_of(rows).span_ms == ids * DAY_MS


def test_records_of_one_file_do_not_count_as_behind_each_other() -> None:
    rows = [("a", 5.0, 0), ("b", 1.0, 0), ("c", 3.0, 1), ("d", 6.0, 1)]
    assert repeats_of(rows).behind_ms.tolist() == [pytest.approx(2 * HOUR_MS)]


def test_a_thinned_sample_stands_for_all() -> None:
    whole, thin = (of_sample(BASE, sample(DAYS, one_in), None) for one_in in (1, 7))
    assert thin.ids_per_day == pytest.approx(7 * whole.ids_per_day)
    assert thin.origin == "3,360 records of the sample"


def test_a_sample_without_time_needs_the_number() -> None:
    timeless = sample([("a", None, 0), ("a", None, 0), ("b", None, 0)])
    with pytest.raises(ConfigError, match=r"does not show how many .* --ids-per-day"):
        of_sample(BASE, timeless, None)
    found = of_sample(BASE, timeless, 1000.0)
    assert (found.ids_per_day, found.event_time, found.lateness_ms) == (1000.0, False, 0)
    assert found.duplicates == pytest.approx(1 / 3)
    assert found.repeats is None


def test_samples_without_ids_or_time_are_rejected() -> None:
    with pytest.raises(ConfigError, match="holds no record with an ID"):
        of_sample(BASE, sample([]), None)
    for rows in ([("a", 1.0, 0), ("b", 1.0, 1)], [("a", 1.0, 0), ("a", 9.0, 0)]):
        with pytest.raises(ConfigError, match="no time passes between the first records"):
            of_sample(BASE, sample(rows), None)


def test_a_sample_of_null_timestamps_and_one_without_ids_get_different_errors() -> None:
    empty = sample([])
    timed = replace(empty, times_ms=np.zeros(0, np.int64))
    with pytest.raises(ConfigError, match="no record with an ID and a timestamp"):
        of_sample(BASE, timed, None)
    with pytest.raises(ConfigError, match=r"no record with an ID\."):
        of_sample(BASE, replace(empty, times_ms=None), None)


def test_a_timestamp_in_the_future_makes_none_of_the_others_late() -> None:
    now_ms = 1_000 * HOUR_MS
    stray = 30 * 365 * 24.0
    hours = np.array([stray, stray, 5, 4, stray, 1000, 1000.1, 1000.2])
    files = np.array([3, 5, 5, 5, 6, 7, 7, 7])
    told = without_future((hours * HOUR_MS).astype(np.int64), files, now_ms) / HOUR_MS
    assert told.tolist() == [4, 5, 5, 4, 5, 1000, 1000.1, 1000.1]
    assert without_future(np.array([5 * now_ms]), np.zeros(1, np.int64), now_ms) == now_ms
    assert not len(without_future(np.zeros(0, np.int64), np.zeros(0, np.int64), now_ms))


def test_lengths_of_time_are_written_as_people_do() -> None:
    asked = [1, 60_000, 60_001, 90 * 60_000, 25 * HOUR_MS, 13 * DAY_MS - 1]
    given = [round_up(duration_ms) for duration_ms in asked]
    assert [format_ms(duration_ms) for duration_ms in given] == [
        "1 minute", "1 minute", "5 minutes", "2 hours", "2 days", "13 days"
    ]  # fmt: skip
    assert all(a <= b for a, b in zip(asked, given, strict=True))
    assert all(a <= b for a, b in pairwise(given))
