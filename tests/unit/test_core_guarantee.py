"""What changes under at most once and at least once, and what it is expected to cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.policy import Policy
from tests.support.memory_store import MemoryStore
from tests.support.shard_driver import EVENT, PROCESSING, Driver, Rec, X, Y, Z, drive

HORIZON_MS = 1_000


def fill(driver: Driver, count: int, first: int = 0) -> list[str]:
    """Feed so many new IDs, spread over the horizon."""
    ids = range(first, first + count)
    return driver.named([Rec(b"%d" % n, n % HORIZON_MS) for n in ids])


class Unread(MemoryStore):
    """A store whose segments no one may look into."""

    def lookup(self, *args: object) -> np.ndarray:  # type: ignore[override,type-arg]
        raise AssertionError("the exact catalog was asked")


def sealed(**changes: object) -> Driver:
    """A driver that has all but the newest IDs in segments."""
    return drive(EVENT, state_budget_bytes=0, lateness_ms=60, **changes)


def test_at_most_once_never_reads_the_catalog() -> None:
    driver = sealed(guarantee="at-most-once")
    driver.store = Unread()
    assert driver.named([Rec(X, 0), Rec(Y, 5)]) == ["UNIQUE", "UNIQUE"]
    assert driver.state.manifest.ids == 2
    assert driver.named([Rec(X, 20), Rec(Z, 20), Rec(Z, 21)]) == [
        "DUPLICATE",
        "UNIQUE",
        "DUPLICATE",
    ]
    assert driver.count("filter_unconfirmed") == 1
    assert driver.count("filter_negative") == 1
    assert driver.count("filter_true_positive") == driver.count("filter_false_positive") == 0


@pytest.mark.parametrize(
    ("own_ms", "verdict"),
    [(69, "DUPLICATE"), (70, "UNIQUE")],
    ids=["within the bucket's end", "past it"],
)
def test_the_horizon_ends_with_the_bucket(own_ms: int, verdict: str) -> None:
    driver = sealed(guarantee="at-most-once")
    # In the bucket of 0 to 9, so that 69 is at most the horizon of 60 from its end.
    driver.feed([Rec(X, 0)])
    assert driver.named([Rec(X, own_ms)]) == [verdict]


@given(
    st.tuples(st.integers(1, 400), st.integers(1, 400)),
    st.tuples(st.integers(1, 400), st.integers(1, 400)),
    st.integers(-50, 50),
    st.lists(st.integers(-600, 900), min_size=1, max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_verdicts_do_not_depend_on_how_the_input_is_cut(
    before: tuple[int, int],
    after: tuple[int, int],
    known_ms: int,
    times: list[int],
    cuts: list[bool],
) -> None:
    """For any horizon and buckets at the time when the ID was remembered."""
    told = []
    for whole in (True, False):
        driver = drive(
            EVENT, state_budget_bytes=0, lateness_ms=10_000,
            horizon_ms=before[0], bucket_ms=min(before),
        )  # fmt: skip
        driver.feed([Rec(X, known_ms)])
        # What comes from now on stays in the tail, which is exact.
        driver.retune(
            horizon_ms=after[0], bucket_ms=min(after), guarantee="at-most-once",
            state_budget_bytes=1 << 20,
        )  # fmt: skip
        recs = [Rec(X, time_ms) for time_ms in sorted(times)]
        verdicts: list[str] = []
        while recs:
            ends = [n for n in range(1, len(recs)) if cuts[len(recs) - n] and not whole]
            end = ends[0] if ends else len(recs)
            verdicts += driver.named(recs[:end])
            recs = recs[end:]
        told.append(verdicts)
    assert told[0] == told[1]
    passed = [t for t, v in zip(sorted(times), told[0], strict=True) if v == "UNIQUE"]
    assert all(abs(t - known_ms) > after[0] for t in passed)


def test_the_expected_loss_matches_the_actual_loss() -> None:
    policy = Policy(
        horizon_ms=HORIZON_MS, bucket_ms=125, event_time=True, lateness_ms=HORIZON_MS,
        state_budget_bytes=0, fpr=0.2, guarantee="at-most-once", keep_expired_ms=0,
        retain_epochs=0,
    )  # fmt: skip
    driver = Driver(policy, now_ms=10_000)
    lost = expected = deviation = 0.0
    for batch in range(10):
        verdicts = fill(driver, 1_500, first=1_500 * batch)
        lost += verdicts.count("DUPLICATE")
        expected += driver.count("expected_lost_millionths") / 1e6
        assert driver.count("filter_unconfirmed") == verdicts.count("DUPLICATE")
    deviation = 5 * expected**0.5
    assert lost > 200, "filters of so high a rate are wrong again and again"
    assert abs(lost - expected) < deviation + 0.05 * expected


def test_exactly_once_expects_no_loss() -> None:
    driver = sealed()
    fill(driver, 500)
    fill(driver, 500, first=500)
    assert driver.count("expected_lost_millionths") == driver.count("filter_unconfirmed") == 0


@pytest.mark.parametrize("policy", [EVENT, PROCESSING], ids=["event time", "processing time"])
def test_at_least_once_passes_all_records_and_remembers_no_ids(policy: Policy) -> None:
    driver = drive(policy, state_budget_bytes=0, guarantee="at-least-once")
    assert driver.named([Rec(X, 0), Rec(X, 1), Rec(None, 2)]) == ["UNIQUE", "UNIQUE", "NULL_ID"]
    assert driver.named([Rec(X, 2)]) == ["UNIQUE"]
    assert driver.count("unchecked") == driver.count("unique") == 1
    assert len(driver.state.tail) == driver.state.manifest.ids == 0


def test_no_filter_is_in_state_under_at_least_once() -> None:
    driver = sealed(max_filter_state_bytes=1 << 20)
    driver.feed([Rec(X, 0)])
    assert driver.state.filters
    driver.retune(guarantee="at-least-once")
    for _ in range(2):
        driver.feed([Rec(Y, 1)])
        assert driver.state.manifest.ids == 1
        assert not driver.state.filters
    driver.retune(guarantee="exactly-once")
    driver.feed([])
    assert driver.state.filters, "and they return"
