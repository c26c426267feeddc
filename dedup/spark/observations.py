"""Metrics of a micro-batch, which tasks measure and Spark sums.

The group function returns one control row of counters per shard. `DataFrame.observe` aggregates
these rows, and `StreamingQueryProgress.observedMetrics` brings the result to every listener, on
Spark Connect too. Unpack removes the control rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from dedup.core.forecast import BANDS
from dedup.core.metrics import NAMES, TEXTS, BatchMetrics, MetricNames
from dedup.core.sequence_metrics import SEQUENCE_NAMES, AnyMetrics, SequenceMetrics
from dedup.spark.executor.wire import PACK_FIGURES
from dedup.spark.plan import Plan


def counters_ddl(plan: Plan) -> str:
    by_id = plan.numbering is None
    others = [*(f"{name} string" for name in TEXTS), "expiring array<bigint>"] if by_id else []
    whole = (f"{name} bigint" for name in (NAMES if by_id else SEQUENCE_NAMES).columns)
    return ", ".join([*whole, "shard_index int", *others])


def observations(plan: Plan) -> list[Column]:
    """Return the aggregates that `observe` computes over the output of the group function."""
    if plan.numbering is not None:
        return _aggregates(SEQUENCE_NAMES)
    texts = ", ".join(TEXTS)
    # Use a text, because other types differ between classic sessions, Connect and JSON.
    expiring = ", ".join(f"sum(expiring[{i}])" for i in range(2 * BANDS))
    holder = f"min({_of_shards(f'gc_watermark_ms, shard_index, {texts}')})"
    fullest = f"max({_of_shards('live_ids, shard_index')})"
    return _aggregates(
        NAMES,
        "max(fpr_ppb) AS fpr_ppb",
        "min(gc_watermark_ms) AS gc_watermark_ms",
        f"({holder}).shard_index AS gc_shard",
        *(f"({holder}).{name} AS {name}" for name in TEXTS),
        f"({fullest}).shard_index AS fullest_shard",
        f"({fullest}).live_ids AS fullest_shard_ids",
        f"to_json(array({expiring})) AS expiring",
    )


def pack_observations() -> list[Column]:
    """Return the aggregates that `observe` computes over the output of pack, the first pass."""
    return [F.expr(_total(name)) for name in PACK_FIGURES]


def _aggregates(names: MetricNames, *others: str) -> list[Column]:
    texts = [
        *map(_total, (*names.counted, *names.stage_columns)),
        *(f"sum({name}) AS {name}" for name in names.held),  # null without a row
        *(f"max({name}) AS {name}" for name in (*names.greatest, *names.times, *names.settings)),
        *others,
        "max(base_epoch) - min(base_epoch) AS epochs_apart",
        "max(base_epoch) AS base_epoch",
        "size(collect_set(shard_index)) AS shards",
    ]
    # Build them from text: each call of a function takes several round trips to the JVM.
    return [F.expr(text) for text in texts]


def _of_shards(names: str) -> str:
    """Return the expression for a struct of columns, which is null except in control rows."""
    return f"CASE WHEN shard_index IS NOT NULL THEN struct({names}) END"


def _total(name: str) -> str:
    """Return the expression for a column's sum, which is 0 if there are no rows."""
    return f"coalesce(sum({name}), 0) AS {name}"


def pack_name(name: str) -> str:
    """Return the name of pack's observation, given the operator's option `metrics`."""
    return f"{name}_pack"


def from_progress(progress: Mapping[str, Any], name: str = "dedup") -> BatchMetrics | None:
    """Return the metrics of `dedup_by_id` in a query's progress, or None if they are missing.

    Parameters
    ----------
    progress : StreamingQueryProgress or another dict
        As a listener or ``query.recentProgress`` returns it.
    name : str
        The operator's option `metrics`.
    """
    # A query with `dedup_by_sequence` may use the same name.
    observed, shared = _observed(progress, name, "gc_shard", NAMES)
    if not shared:
        return None
    expiring = json.loads(observed["expiring"])
    return BatchMetrics(
        **shared,
        gc_watermark_ms=observed["gc_watermark_ms"],
        gc_shard=observed["gc_shard"],
        gc_source=observed["gc_source"],
        slowest_sources=tuple(
            (name, time_ms, idle) for name, time_ms, idle in json.loads(observed["slowest_sources"])
        ),
        fullest_shard=int(observed["fullest_shard"]),
        fullest_shard_ids=int(observed["fullest_shard_ids"]),
        expiring=tuple(zip(expiring[:BANDS], expiring[BANDS:], strict=True)),
        target_fpr=int(observed["fpr_ppb"]) / 1e9,
    )


def sequences_from_progress(
    progress: Mapping[str, Any], name: str = "dedup_sequence"
) -> SequenceMetrics | None:
    """Return the metrics of `dedup_by_sequence`, or None. See `from_progress` for parameters."""
    _, shared = _observed(progress, name, "fenced", SEQUENCE_NAMES)
    return SequenceMetrics(**shared) if shared else None


def metrics_of(progress: Mapping[str, Any]) -> AnyMetrics | None:
    """Return the metrics of either operator, under any value of its option `metrics`."""
    names = progress_fields(progress).get("observedMetrics") or ()
    readers = (from_progress, sequences_from_progress)
    found = (read(progress, name) for read in readers for name in names)
    return next((metrics for metrics in found if metrics is not None), None)


def _observed(
    progress: Mapping[str, Any], name: str, sign: str, names: MetricNames
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what was observed under a name, and the fields that both operators' metrics share.

    The fields are empty if nothing was observed, or if the column `sign` is missing, which only the
    wanted operator observes.
    """
    progress = progress_fields(progress)
    metrics = progress.get("observedMetrics") or {}
    counts, packing = metrics.get(name), metrics.get(pack_name(name))
    if counts is None:
        return {}, {}
    observed = as_dict(counts) | (as_dict(packing) if packing is not None else {})
    if observed.get("shards") in (None, 0) or sign not in observed:
        return observed, {}
    stages = ("pack", *names.stages)
    return observed, {
        "query_id": str(progress["id"]),
        "run_id": str(progress["runId"]),
        "query_name": progress.get("name"),
        "batch_id": int(progress["batchId"]),
        "batch_ms": int(progress.get("batchDuration") or 0),
        "shards": int(observed["shards"]),
        "begins": observed["base_epoch"] < 0,
        "stage_us": {stage: int(observed.get(f"{stage}_us") or 0) for stage in stages},
        "epochs_apart": int(observed["epochs_apart"]),
        "bytes_in": int(observed.get("bytes_in") or 0),
        **{field: int(observed[field]) for field in names.known},
        **{field: observed[field] for field in names.times},
    }


def progress_fields(progress: Any) -> Mapping[str, Any]:
    """Return a progress by the names of its fields. PySpark 3.5 gives listeners no mapping."""
    return progress if isinstance(progress, Mapping) else json.loads(progress.json)


def as_dict(observed: Any) -> dict[str, Any]:
    """Return observed values by name. They may come from a classic session, Connect or JSON."""
    values: dict[str, Any] = observed if isinstance(observed, dict) else observed.asDict()
    if values.keys() == {"values", "schema"}:
        # Spark Connect and progress as JSON have one list of values and one of names.
        names = (column["name"] for column in values["schema"]["fields"])
        return dict(zip(names, values["values"], strict=True))
    return values
