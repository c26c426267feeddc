"""`SequenceMetrics` of a micro-batch, by the way of `dedup.spark.observations`."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from dedup.core.sequence_metrics import (
    SEQUENCE_COLUMNS,
    SEQUENCE_COUNTED,
    SEQUENCE_GROUP_STAGES,
    SEQUENCE_HELD,
    SEQUENCE_MAXIMA,
    SEQUENCE_STAGES,
    SEQUENCE_TIMES,
    SEQUENCE_WHOLE_NUMBERS,
    SequenceMetrics,
)
from dedup.spark.observations import about_and_observed, total

SEQUENCE_DDL = ", ".join([*(f"{name} bigint" for name in SEQUENCE_COLUMNS), "shard_index int"])


def sequence_observations() -> list[Column]:
    """Aggregates for `DataFrame.observe` over the group function's output."""
    stages = (f"{stage}_us" for stage in SEQUENCE_GROUP_STAGES)
    every = [
        *(total(name) for name in (*SEQUENCE_COUNTED, *stages)),
        *(f"sum({name}) AS {name}" for name in SEQUENCE_HELD),
        *(f"max({name}) AS {name}" for name in SEQUENCE_MAXIMA),
        "max(base_epoch) - min(base_epoch) AS epochs_apart",
        "max(base_epoch) AS base_epoch",
        "count(shard_index) AS shards",
    ]
    return [F.expr(text) for text in every]


def sequences_from_progress(progress: Any, name: str = "dedup_sequence") -> SequenceMetrics | None:
    """The metrics in a query's progress, None if it carries none.

    Parameters
    ----------
    progress : StreamingQueryProgress or dict
        As a listener or ``query.recentProgress`` gives it.
    name : str
        The operator's `metrics` option.
    """
    about, observed = about_and_observed(progress, name)
    if observed is None or observed.get("shards") in (None, 0) or "fenced" not in observed:
        return None
    return SequenceMetrics(
        query_id=str(about["id"]),
        run_id=str(about["runId"]),
        query_name=about.get("name"),
        batch_id=int(about["batchId"]),
        batch_ms=int(about.get("batchDuration") or 0),
        shards=int(observed["shards"]),
        begins=observed["base_epoch"] < 0,
        epochs_apart=int(observed["epochs_apart"]),
        stage_us={stage: int(observed.get(f"{stage}_us") or 0) for stage in SEQUENCE_STAGES},
        **{field: int(observed[field]) for field in SEQUENCE_WHOLE_NUMBERS},
        **{field: observed[field] for field in SEQUENCE_TIMES},
    )
