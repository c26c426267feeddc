"""The guarantee's two clauses, over thousands of disordered traces in all modes."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.policy import Guarantee, Policy
from dedup.errors import ConfigError
from tests.support.shard_driver import Driver, Rec
from tests.support.traces import BUDGETS, batches, policies, traces


def stable(trace: list[list[Rec]]) -> list[list[Rec]]:
    """The trace with every copy of an ID at the time of its first one."""
    own: dict[bytes, int | None] = {}
    return [
        [r if r.id is None else replace(r, time_ms=own.setdefault(r.id, r.time_ms)) for r in recs]
        for recs in trace
    ]


@traces(300)
@given(policies(), batches(), st.data())
def test_the_guarantee_holds_in_event_time(
    policy: Policy, trace: list[list[Rec]], data: st.DataObject
) -> None:
    driver = Driver(policy)
    now_ms = 0
    for recs in trace:
        if data.draw(st.booleans()):
            driver.skip()
        now_ms += data.draw(st.sampled_from([0, 10, 100, 400]))
        driver.feed(recs, now_ms)


@traces(300)
@given(policies(), batches(), st.data())
def test_the_guarantee_holds_if_options_change_on_restart(
    policy: Policy, trace: list[list[Rec]], data: st.DataObject
) -> None:
    driver = Driver(policy)
    now_ms = 0
    for recs in trace:
        if data.draw(st.booleans()):
            driver.restart()
            driver.policy = data.draw(policies())
        now_ms += data.draw(st.sampled_from([10, 100, 400]))
        driver.feed(recs, now_ms)


@traces(300)
@given(policies(), batches(payloads=2), st.data())
def test_payloads_are_compared(policy: Policy, trace: list[list[Rec]], data: st.DataObject) -> None:
    """The set of compared columns changes at restarts, and may be empty."""
    driver = Driver(policy)
    now_ms = 0
    for recs in trace:
        driver.retune(payload=data.draw(st.sampled_from(["a", "a", "b", None])))
        now_ms += data.draw(st.sampled_from([10, 100, 400]))
        driver.feed(recs, now_ms)


@traces(200)
@given(policies(), batches(), st.data())
def test_the_oracle_agrees_if_the_guarantee_changes_on_restart(
    policy: Policy, trace: list[list[Rec]], data: st.DataObject
) -> None:
    """At most once passes no duplicate; remembered IDs outlive the other two guarantees."""
    driver = Driver(policy)
    now_ms = 0
    for recs in trace:
        if data.draw(st.booleans()):
            driver.policy = data.draw(policies())
        driver.retune(guarantee=data.draw(st.sampled_from(get_args(Guarantee))))
        now_ms += data.draw(st.sampled_from([10, 100, 400]))
        driver.feed(recs, now_ms)


@traces(300)
@given(policies(stable=True), batches(), st.data())
def test_the_guarantee_holds_with_stable_timestamps(
    policy: Policy, trace: list[list[Rec]], data: st.DataObject
) -> None:
    driver = Driver(policy)
    now_ms = 0
    for recs in stable(trace):
        now_ms += data.draw(st.sampled_from([0, 10, 100, 400]))
        driver.feed(recs, now_ms)


def forgot_early(driver: Driver) -> bool:
    return driver.state.clocks.gc_watermark_ms < driver.state.forgotten_before_ms


@traces(200)
@given(policies(stable=True), batches(), st.data())
def test_the_guarantee_holds_with_stable_timestamps_if_options_change(
    policy: Policy, trace: list[list[Rec]], data: st.DataObject
) -> None:
    driver = Driver(policy)
    now_ms = 0
    for recs in stable(trace):
        if data.draw(st.booleans()):
            driver.restart()
            driver.policy = data.draw(policies(stable=True))
            if driver.policy.late == "emit" and forgot_early(driver):
                with pytest.raises(ConfigError, match="forgotten because late records"):
                    driver.feed(recs, now_ms)
                driver.policy = replace(driver.policy, late="drop")
        now_ms += data.draw(st.sampled_from([10, 100, 400]))
        driver.feed(recs, now_ms)


@traces(300)
@given(st.integers(1, 60), st.integers(1, 8), BUDGETS, batches(), st.data())
def test_the_guarantee_holds_in_processing_time(
    horizon_ms: int, buckets: int, budget: int, trace: list[list[Rec]], data: st.DataObject
) -> None:
    policy = Policy(
        horizon_ms=horizon_ms,
        bucket_ms=-(-horizon_ms // buckets),
        state_budget_bytes=budget,
        keep_expired_ms=0,
        retain_epochs=1,
    )
    driver = Driver(policy)
    now_ms = 1_000
    for recs in trace:
        now_ms += data.draw(st.integers(-30, 90))
        driver.feed(recs, now_ms)


@traces(200)
@given(policies(), batches(), st.data())
def test_the_guarantee_holds_after_rollbacks_as_far_as_spark_can_go(
    policy: Policy, trace: list[list[Rec]], data: st.DataObject
) -> None:
    """The second future differs from the first, whose segments are orphans now."""
    driver = Driver(policy)
    now_ms = 0
    for recs in trace:
        kept = max(0, driver.highest - policy.retain_epochs)
        back = data.draw(st.integers(0, max(0, driver.batch - kept)))
        if back:
            driver.roll_back(back)
            driver.restart()
        now_ms += data.draw(st.sampled_from([10, 100, 400]))
        driver.feed(recs, now_ms)


@traces(100)
@given(policies(stable=True), batches(nulls=False), st.data())
def test_the_guarantee_holds_if_the_drivers_clock_is_set_back(
    policy: Policy, trace: list[list[Rec]], data: st.DataObject
) -> None:
    """A record's own time in one micro-batch is in the future of the next."""
    driver = Driver(policy)
    now_ms = 0
    for recs in stable(trace):
        now_ms += data.draw(st.sampled_from([-400, -60, 10, 100, 400]))
        driver.feed(recs, now_ms)


@traces(50)
@given(policies(), batches(), st.data())
def test_untimed_records_touch_neither_memory_nor_clocks(
    policy: Policy, trace: list[list[Rec]], data: st.DataObject
) -> None:
    """The state is as if the query had never seen them."""
    driver, without = Driver(policy), Driver(policy)
    now_ms = 0
    for recs in trace:
        now_ms += data.draw(st.sampled_from([0, 10, 100, 400]))
        driver.feed(recs, now_ms)
        without.feed([rec for rec in recs if not rec.is_untimed], now_ms)
        assert driver.state.to_bytes() == without.state.to_bytes()
