"""One thing varied at a time: share of duplicates, shards, a hot ID, sizing, Arrow's limit.

Variants run side by side, fed in turn.

    python -m benchmarks.sweeps duplicates shards hot sizing arrow
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.contenders import operator
from benchmarks.events import Events
from benchmarks.harness import Pipeline, comparison, data_folder, parser
from benchmarks.results import keep, median
from dedup.tools.check.cost_rules import ARROW_BYTES, NO_ARROW_LIMIT

WARM_UP = 2


@dataclass(frozen=True)
class Variant:
    """One setting: its input, options of the operator, settings of the query."""

    name: str
    events: Events
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)


def duplicates(events: Events) -> list[Variant]:
    """Share of records that repeat an earlier one of the whole stream."""
    return [Variant(f"{s:.0%}", replace(events, duplicates=s)) for s in (0.0, 0.05, 0.5, 0.9)]


def shards(events: Events) -> list[Variant]:
    """Number of shards, each with its state partition."""
    return [
        Variant(str(n), events, settings={"spark.sql.shuffle.partitions": str(n)})
        for n in (1, 2, 4, 8, 16, 32, 64)
    ]


def hot(events: Events) -> list[Variant]:
    """Share of records that carry one and the same ID, and so go to one shard."""
    return [Variant(f"{s:.0%}", replace(events, hot=s)) for s in (0.0, 0.25, 0.5, 0.9)]


def sizing(events: Events) -> list[Variant]:
    """What `stable_timestamps` and shorter filters are worth."""
    wide = replace(events, batch_ms=12 * 3_600_000)
    return [
        Variant("defaults", wide),
        Variant("stable_timestamps", wide, {"stable_timestamps": True}),
        Variant("fpr=0.1", wide, {"fpr": 0.1}),
        Variant("fpr=0.001", wide, {"fpr": 0.001}),
        Variant("4 buckets", wide, {"bucket_length": "42 hours"}),
        Variant("24 buckets", wide, {"bucket_length": "7 hours"}),
        Variant("state_budget_bytes=8 MiB", wide, {"state_budget_bytes": 8 << 20}),
    ]


def arrow(events: Events) -> list[Variant]:
    """Whether Spark measures rows to limit the bytes of a batch, by shape of the rows."""
    limits = {"measured": "64m", "not measured": str(NO_ARROW_LIMIT)}
    return [
        Variant(
            f"{shape} rows, {name}", replace(events, shape=shape), settings={ARROW_BYTES: limit}
        )
        for shape in ("narrow", "wide")
        for name, limit in limits.items()
    ]


SWEEPS: dict[str, Callable[[Events], list[Variant]]] = {
    "duplicates": duplicates,
    "shards": shards,
    "hot": hot,
    "sizing": sizing,
    "arrow": arrow,
}


def feed(variants: list[Variant], batches: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Figures of every micro-batch by variant, all fed in turn in one session."""
    pipelines = [
        Pipeline(v.name, operator(**v.options), v.settings, schema=v.events.schema)
        for v in variants
    ]
    with comparison(arguments, pipelines):
        for number in range(batches):
            for variant, pipeline in zip(variants, pipelines, strict=True):
                events = variant.events
                pipeline.feed(events.write(data_folder(arguments.data, events), number))
            times = {p.name: p.batch_ms[-1] for p in pipelines}
            print(f"{number}: {times}", file=sys.stderr)
    keys = ("live_ids", "unique", "duplicate", "state_bytes", "sidecar_bytes", "catalog_reads")
    return {
        p.name: {
            "batch_ms": p.batch_ms,
            "stage_us": [m.stage_us if m else None for m in p.metrics],
            "metrics": [{k: getattr(m, k) for k in keys} if m else None for m in p.metrics],
            "filter_fpr": [m.filter_fpr if m else None for m in p.metrics],
        }
        for p in pipelines
    }


def table(name: str, result: dict[str, Any], rows: int) -> str:
    """Medians after the warm-up, and what they are of the first."""
    lines = [
        f"{name:28}{'ms':>7}{'/ first':>9}{'rows/s':>10}{'probe':>8}{'lookup':>8}{'upkeep':>8}"
        f"{'state row kB':>14}{'fpr':>9}"
    ]
    first = 0.0
    for variant, figures in result.items():
        value = median(figures["batch_ms"][WARM_UP:])
        first = first or value
        stages = [each for each in figures["stage_us"][WARM_UP:] if each]
        spent = {s: median([e[s] / 1000 for e in stages]) for s in ("probe", "lookup", "upkeep")}
        last = figures["metrics"][-1] or {}
        rate = figures["filter_fpr"][-1]
        lines.append(
            f"{variant:28}{value:7.0f}{value / first:8.2f}x{rows / value * 1000:10.0f}"
            f"{spent['probe']:8.0f}{spent['lookup']:8.0f}{spent['upkeep']:8.0f}"
            f"{last.get('state_bytes', 0) / 1024:14.0f}{rate if rate is not None else 0:9.5f}"
        )
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, batches=8)
    options.add_argument("sweeps", nargs="*", default=[*SWEEPS])
    arguments = options.parse_args()
    for name in arguments.sweeps:
        result = feed(SWEEPS[name](Events(rows=arguments.rows)), arguments.batches, arguments)
        keep(f"sweep-{name}", {"rows_per_batch": arguments.rows, "variants": result})
        print(table(name, result, arguments.rows))


if __name__ == "__main__":
    main()
