"""The longest micro-batches: many small ones, across many bucket edges.

Horizon, state budget and retention are made so small that seals, merges, expiry and deletions
happen all the time. The pass-through pipeline is fed in turn: its longest micro-batches are what
the machine, the JVM and Spark's own maintenance cause.

    python -m benchmarks.pauses --batches 500
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from benchmarks.contenders import operator, pass_through
from benchmarks.events import Events
from benchmarks.harness import Pipeline, comparison, data_folder, parser
from benchmarks.results import finish, median, quantile

#: What our upkeep did in a micro-batch, by the counter that tells.
WORK = {
    "seal or merge": "segments_written",
    "merge done": "segments_merged",
    "expiry": "segments_expired",
    "deletion": "segments_deleted",
}
#: The first micro-batches compile and start workers.
WARM_UP = 20


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Times of every micro-batch of both pipelines, and what upkeep did in ours."""
    events = Events(rows=arguments.rows, duplicates=0.05)
    minutes = events.batch_ms // 60_000
    horizon = f"{arguments.horizon_batches * minutes} minutes"
    options = {
        "horizon": horizon,
        "lateness": f"{minutes} minutes",
        "state_budget_bytes": arguments.state_budget_bytes,
        "keep_expired": "0 seconds",
    }
    data = data_folder(arguments.data, events)
    ours = Pipeline("dedup_by_id", operator(**options))
    floor = Pipeline("pack, pass-through state, unpack", pass_through)
    with comparison(
        arguments, [ours, floor], settings={"spark.sql.streaming.minBatchesToRetain": "2"}
    ):
        for number in range(arguments.batches):
            files = events.write(data, number, files=1)
            for pipeline in (ours, floor):
                pipeline.feed(files)
            if number % 50 == 49:
                print(f"{number + 1} micro-batches", file=sys.stderr)
    return {
        "rows_per_batch": events.rows,
        "warm_up": WARM_UP,
        "options": options,
        "batch_ms": {p.name: p.batch_ms for p in (ours, floor)},
        "upkeep": [
            {
                "upkeep_us": m.stage_us["upkeep"],
                "live_ids": m.live_ids,
                "buckets": m.buckets,
                **{name: getattr(m, counter) for name, counter in WORK.items()},
            }
            if m is not None
            else None
            for m in ours.metrics
        ],
    }


def table(result: dict[str, Any]) -> str:
    """Median, tail and longest of both; ours by what upkeep did."""
    lines = [
        f"{'ms per micro-batch':40}{'count':>7}{'median':>8}{'p95':>7}{'p99':>7}{'longest':>9}"
        f"{'/ median':>10}"
    ]

    def line(name: str, values: list[float], middle: float) -> None:
        if values:
            lines.append(
                f"{name:40}{len(values):7}{median(values):8.0f}{quantile(values, 0.95):7.0f}"
                f"{quantile(values, 0.99):7.0f}{max(values):9.0f}{max(values) / middle:9.2f}x"
            )

    for name, times in result["batch_ms"].items():
        line(name, times[WARM_UP:], median(times[WARM_UP:]))
    ours = result["batch_ms"]["dedup_by_id"]
    middle = median(ours[WARM_UP:])
    for work in WORK:
        line(
            f"  with {work}",
            [ours[i] for i in range(WARM_UP, len(ours)) if (result["upkeep"][i] or {}).get(work)],
            middle,
        )
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, rows=2000, batches=500)
    options.add_argument("--horizon-batches", type=int, default=80)
    options.add_argument("--state-budget-bytes", type=int, default=64 << 10)
    arguments = options.parse_args()
    finish("pauses", run(arguments), table)


if __name__ == "__main__":
    main()
