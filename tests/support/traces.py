"""Random traces for the core: policies, and micro-batches of disordered records."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from dedup.core.policy import Policy
from tests.support.shard_driver import Rec

IDS = [b"a", b"b", b"c", b"d", b"e", b"f"]
#: Tiny budgets seal in every micro-batch; the large one keeps everything in the tail.
BUDGETS = st.sampled_from([0, 64, 400, 1 << 20])
#: None, one small filter or a few, or all.
FILTER_BOUNDS = st.sampled_from([0, 110, 400, 1 << 20])


def traces(examples: int) -> settings:
    """Settings for half as many traces, ten times as many with CI_FULL=1.

    Shrinking is left out: on traces it takes minutes, and the failing one is printed whole.
    """
    return settings(
        max_examples=examples * 10 if os.environ.get("CI_FULL") == "1" else examples // 2,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@st.composite
def policies(
    draw: st.DrawFn, *, stable: bool = False, budgets: st.SearchStrategy[int] = BUDGETS
) -> Policy:
    """Event-time policies."""
    horizon_ms = draw(st.integers(1, 80))
    return Policy(
        horizon_ms=horizon_ms,
        bucket_ms=draw(st.integers(1, horizon_ms)),
        event_time=True,
        lateness_ms=draw(st.integers(0, 60)),
        late=draw(st.sampled_from(["emit", "drop"])),
        stable_timestamps=stable,
        window_delay_ms=draw(st.none() | st.integers(0, 80)),
        idle_timeout_ms=draw(st.sampled_from([None, 0, 100])),
        state_budget_bytes=draw(budgets),
        max_filter_state_bytes=draw(FILTER_BOUNDS),
        segment_ids=draw(st.sampled_from([2, 16, 1 << 20])),
        keep_expired_ms=0,
        retain_epochs=draw(st.integers(0, 3)),
    )


@st.composite
def batches(draw: st.DrawFn, *, nulls: bool = True, payloads: int = 0) -> list[list[Rec]]:
    """Micro-batches of disordered records round a clock that moves on, and sometimes leaps."""
    base = draw(st.integers(-50, 50))
    result = []
    for _ in range(draw(st.integers(1, 8))):
        base += draw(st.sampled_from([0, 5, 20, 60, 300]))
        times = [
            st.integers(base - 200, base + 10),
            st.integers(base - 20, base + 10),
            st.just(base),
            st.just(base + 100_000),
        ]
        record = st.builds(
            Rec,
            st.sampled_from([*IDS, None]),
            st.one_of(*times, st.none()) if nulls else st.one_of(*times),
            st.sampled_from(["p", "q"]),
            st.booleans(),
            st.integers(0, payloads),
            st.sampled_from([False, False, False, False, True]),
        )
        result.append(draw(st.lists(record, max_size=12)))
    return result
