"""What a micro-batch did, as numbers: measured in the tasks, summed by `observe`, typed here.

The group function returns one row of counters per shard. `DataFrame.observe` aggregates them as
they pass, and `StreamingQueryProgress.observedMetrics` carries the result to every listener, on
Spark Connect too. The row never reaches the user's rows.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from dedup.core.forecast import BANDS
from dedup.core.metrics import (
    COLUMNS,
    COUNTED,
    GREATEST,
    HELD,
    MAXIMA,
    SETTINGS,
    STAGE_COLUMNS,
    STAGES,
    TEXTS,
    TIMES,
    BatchMetrics,
)

_WHOLE_NUMBERS = (
    *COUNTED, *HELD, *GREATEST, *SETTINGS, "fullest_shard", "fullest_shard_ids", "epochs_apart",
)  # fmt: skip

DDL = ", ".join(
    [
        *(f"{name} bigint" for name in COLUMNS),
        "shard_index int",
        *(f"{name} string" for name in TEXTS),
        "expiring array<bigint>",
    ]
)


def observations() -> list[Column]:
    """Aggregates for `DataFrame.observe` over the group function's output."""
    # Where there is no row, as in a micro-batch without input, a sum is null.
    done = [total(name) for name in (*COUNTED, *STAGE_COLUMNS)]
    held = [f"sum({name}) AS {name}" for name in HELD]
    maxima = [f"max({name}) AS {name}" for name in (*MAXIMA, *SETTINGS, "fpr_ppb")]
    texts = ", ".join(TEXTS)
    # Text, so that Connect and progress as JSON carry it as classic sessions do.
    expiring = ", ".join(f"sum(expiring[{i}])" for i in range(2 * BANDS))
    holder = f"min({_of_shards(f'gc_watermark_ms, shard_index, {texts}')})"
    fullest = f"max({_of_shards('live_ids, shard_index')})"
    every = [
        *done,
        *held,
        *maxima,
        "min(gc_watermark_ms) AS gc_watermark_ms",
        "max(base_epoch) - min(base_epoch) AS epochs_apart",
        "max(base_epoch) AS base_epoch",
        f"({holder}).shard_index AS gc_shard",
        *(f"({holder}).{name} AS {name}" for name in TEXTS),
        f"({fullest}).shard_index AS fullest_shard",
        f"({fullest}).live_ids AS fullest_shard_ids",
        "count(shard_index) AS shards",
        f"to_json(array({expiring})) AS expiring",
    ]
    # As texts: each call of a function is several round trips to Spark's Java.
    return [F.expr(text) for text in every]


def pack_observation() -> Column:
    """Aggregate for `DataFrame.observe` over pack's output."""
    return F.expr(total("pack_us"))


def _of_shards(names: str) -> str:
    """Columns of the rows that tell of a shard, as one value that has an order."""
    return f"CASE WHEN shard_index IS NOT NULL THEN struct({names}) END"


def total(name: str) -> str:
    """Text of a sum that is 0 where there is no row."""
    return f"coalesce(sum({name}), 0) AS {name}"


def pack_name(name: str) -> str:
    """Under which name pack's time is observed, given the operator's `metrics` option."""
    return f"{name}_pack"


@dataclass(slots=True)
class Stopwatch:
    """Microseconds per stage."""

    us: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    last_ns: int = field(default_factory=time.perf_counter_ns)

    def resume(self) -> None:
        """Note that what took place since the last stage is none."""
        self.last_ns = time.perf_counter_ns()

    def lap(self, stage: str) -> None:
        """Note that a stage ends now."""
        now_ns = time.perf_counter_ns()
        self.us[stage] += (now_ns - self.last_ns) // 1000
        self.last_ns = now_ns


def from_progress(progress: Any, name: str = "dedup") -> BatchMetrics | None:
    """The metrics in a query's progress, None if it carries none.

    Parameters
    ----------
    progress : StreamingQueryProgress or dict
        As a listener or ``query.recentProgress`` gives it.
    name : str
        The operator's `metrics` option.
    """
    about, observed = about_and_observed(progress, name)
    return None if observed is None else _typed(about, observed)


def about_and_observed(progress: Any, name: str) -> tuple[Mapping[str, Any], dict[str, Any] | None]:
    """What a query's progress says of the micro-batch, and what was observed under a name."""
    if isinstance(progress, Mapping):
        return progress, _with_pack(progress.get("observedMetrics", {}), name)
    about = {
        "id": str(progress.id),
        "runId": str(progress.runId),
        "name": progress.name,
        "batchId": progress.batchId,
        "batchDuration": progress.batchDuration,
    }
    return about, _with_pack(progress.observedMetrics, name)


def _with_pack(metrics: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Both of the operator's observations as one; None if the query has none of that name."""
    observed, packing = metrics.get(name), metrics.get(pack_name(name))
    if observed is None:
        return None
    return as_dict(observed) | (as_dict(packing) if packing is not None else {})


def as_dict(observed: Any) -> dict[str, Any]:
    """Return observed values by name, of a classic session, of Connect, or from JSON."""
    values: dict[str, Any] = observed if isinstance(observed, dict) else observed.asDict()
    if values.keys() == {"values", "schema"}:
        # Spark Connect, and progress as JSON.
        names = (column["name"] for column in values["schema"]["fields"])
        return dict(zip(names, values["values"], strict=True))
    return values


def _typed(about: Mapping[str, Any], observed: dict[str, Any]) -> BatchMetrics | None:
    # Those of another operator may have the name of these.
    if observed.get("shards") in (None, 0) or "gc_shard" not in observed:
        return None
    expiring = json.loads(observed["expiring"])
    return BatchMetrics(
        query_id=str(about["id"]),
        run_id=str(about["runId"]),
        query_name=about.get("name"),
        batch_id=int(about["batchId"]),
        batch_ms=int(about.get("batchDuration") or 0),
        shards=int(observed["shards"]),
        stage_us={stage: int(observed.get(f"{stage}_us") or 0) for stage in STAGES},
        gc_shard=observed["gc_shard"],
        gc_source=observed["gc_source"],
        slowest_sources=tuple(
            (name, time_ms, idle) for name, time_ms, idle in json.loads(observed["slowest_sources"])
        ),
        expiring=tuple(zip(expiring[:BANDS], expiring[BANDS:], strict=True)),
        begins=observed["base_epoch"] < 0,
        target_fpr=int(observed["fpr_ppb"]) / 1e9,
        **{field: int(observed[field]) for field in _WHOLE_NUMBERS},
        **{field: observed[field] for field in TIMES},
    )
