"""The guarantee's two clauses, over thousands of disordered traces in all modes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_driver import Driver, Rec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dedup.core.policy import Policy

IDS = [b"a", b"b", b"c", b"d", b"e", b"f"]
TRACES = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

#: Tiny budgets seal in every micro-batch; the large one keeps everything in the tail.
budgets = st.sampled_from([0, 64, 400, 1 << 20])


@st.composite
def policies(draw: st.DrawFn, *, stable: bool = False) -> Policy:
    horizon_ms = draw(st.integers(1, 80))
    return Policy(
        horizon_ms=horizon_ms,
        bucket_ms=draw(st.integers(1, horizon_ms)),
        event_time=True,
        lateness_ms=draw(st.integers(0, 60)),
        late=draw(st.sampled_from(["emit", "drop"])),
        stable_timestamps=stable,
        idle_timeout_ms=draw(st.sampled_from([None, 0, 100])),
        state_budget_bytes=draw(budgets),
        keep_expired_ms=0,
        retain_epochs=draw(st.integers(0, 3)),
    )


@st.composite
def batches(draw: st.DrawFn) -> list[list[Rec]]:
    """Micro-batches of disordered records round a clock that moves on, and sometimes leaps."""
    base = draw(st.integers(-50, 50))
    result = []
    for _ in range(draw(st.integers(1, 8))):
        base += draw(st.sampled_from([0, 5, 20, 60, 300]))
        result.append(
            draw(
                st.lists(
                    st.builds(
                        Rec,
                        st.sampled_from([*IDS, None]),
                        st.one_of(
                            st.integers(base - 200, base + 10),
                            st.just(base),
                            st.just(base + 100_000),
                        ),
                        st.sampled_from(["p", "q"]),
                    ),
                    max_size=12,
                )
            )
        )
    return result


@TRACES
@given(policies(), batches(), st.data())
def test_event_time(policy: Policy, trace: list[list[Rec]], data: st.DataObject) -> None:
    driver = Driver(policy)
    now_ms = 0
    for recs in trace:
        now_ms += data.draw(st.sampled_from([0, 10, 100, 400]))
        driver.feed(recs, now_ms)


@TRACES
@given(policies(), batches(), st.data())
def test_options_changed_on_restart(
    policy: Policy, trace: list[list[Rec]], data: st.DataObject
) -> None:
    driver = Driver(policy)
    now_ms = 0
    for number, recs in enumerate(trace):
        if data.draw(st.booleans()):
            driver.run_id = f"run-{number}"
            driver.policy = data.draw(policies())
        now_ms += data.draw(st.sampled_from([10, 100, 400]))
        driver.feed(recs, now_ms)


@TRACES
@given(policies(stable=True), batches(), st.data())
def test_stable_timestamps(policy: Policy, trace: list[list[Rec]], data: st.DataObject) -> None:
    driver = Driver(policy)
    own: dict[bytes, int] = {}
    now_ms = 0
    for recs in trace:
        stable = [
            rec if rec.id is None else replace(rec, time_ms=own.setdefault(rec.id, rec.time_ms))
            for rec in recs
        ]
        now_ms += data.draw(st.sampled_from([0, 10, 100, 400]))
        driver.feed(stable, now_ms)


@TRACES
@given(st.integers(1, 60), st.integers(1, 8), budgets, batches(), st.data())
def test_processing_time(
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


@pytest.mark.parametrize("budget", [0, 1 << 20])
def test_the_first_copy_in_arrival_order_wins(budget: int) -> None:
    policy = Policy(horizon_ms=60, bucket_ms=10, event_time=True, state_budget_bytes=budget)
    driver = Driver(policy)
    verdicts = driver.feed([Rec(b"x", 50), Rec(b"x", 40), Rec(b"x", 101)], 100)
    assert [v.name for v in verdicts] == ["DUPLICATE", "UNIQUE", "UNIQUE"]
