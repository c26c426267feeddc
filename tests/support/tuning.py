"""Small demands and trials for the tests of `dedup tune`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dedup.tools.tuning.candidates import Candidate
from dedup.tools.tuning.costs import Costs
from dedup.tools.tuning.demand import DAY_MS, Demand, Sizing
from dedup.tools.tuning.trial import Trial

COSTS = Costs(row_ns=60, filter_ns=5, read_ns=20_000, written_ns=300, state_ns=3)


def demand(**fields: Any) -> Demand:
    """A day's horizon over few IDs, enough to seal, merge and expire."""
    base = Demand(
        origin="a test",
        ids_per_day=60_000,
        horizon_ms=DAY_MS,
        lateness_ms=3_600_000,
        batch_ms=600_000,
        shards=2,
        cores=2,
        today=Sizing(state_budget_bytes=1 << 16),
    )
    return replace(base, **fields)


DEFAULTS = Sizing()


def candidate(sizing: Sizing = DEFAULTS, *, gib: float = 1.0, ms: float = 1000.0) -> Candidate:
    """One with these costs; the rest is made up."""
    trial = Trial(
        scale=1.0,
        asked=100_000,
        false_positives=500,
        predicted_fpr=0.005,
        live_ids=1e6,
        tail_ids=1e4,
        filter_bytes=2.5e6,
        filters_asked=12.0,
        fill=[(0.5, {0: 500_000}), (1.0, {0: 500_000, 1: 500_000})],
    )
    return Candidate(
        sizing=sizing,
        bucket_ms=DAY_MS // 8,
        trial=trial,
        state_bytes=0.0,
        sidecar_bytes=0.0,
        segment_bytes=gib * 2**30,
        reads_per_s=10.0,
        ms_per_million=ms,
    )
