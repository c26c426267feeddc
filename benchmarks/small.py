"""Small micro-batches: what three passes through Python add, and where.

python -m benchmarks.small
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from benchmarks.contenders import operator, pass_through, spark_built_in
from benchmarks.events import Events
from benchmarks.harness import BASE_SETTINGS, Pipeline, comparison, data_folder, parser
from benchmarks.results import finish, median

OURS, BASE = "dedup_by_id", "dropDuplicates"
WARM_UP = 15


def drop_duplicates(events: DataFrame, folder: Path) -> DataFrame:
    """Spark's own, which keeps every ID permanently."""
    return events.dropDuplicates(["event_id"])


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Times of every micro-batch of all pipelines, fed in turn."""
    events = Events(rows=arguments.rows, duplicates=0.05)
    data = data_folder(arguments.data, events)
    pipelines = [
        Pipeline("scan", lambda df, folder: df),
        Pipeline(BASE, drop_duplicates),
        Pipeline("dropDuplicatesWithinWatermark", spark_built_in),
        Pipeline("pack, pass-through state, unpack", pass_through),
        Pipeline(OURS, operator()),
    ]
    with comparison(arguments, pipelines):
        for number in range(arguments.batches):
            files = events.write(data, number, files=1)
            for pipeline in pipelines:
                pipeline.feed(files)
    return {
        "rows_per_batch": events.rows,
        "shards": 2,
        "warm_up": WARM_UP,
        "settings": BASE_SETTINGS,
        "batch_ms": {p.name: p.batch_ms for p in pipelines},
        "duration_ms": {p.name: p.progress for p in pipelines},
        "stage_us": [m.stage_us if m is not None else None for m in pipelines[-1].metrics],
    }


def table(result: dict[str, Any]) -> str:
    """Medians against dropDuplicates, by part of the trigger, and our own stages."""
    middle = {name: median(times[WARM_UP:]) for name, times in result["batch_ms"].items()}
    parts = ("addBatch", "queryPlanning", "walCommit", "commitOffsets", "latestOffset")
    lines = [f"{'ms per micro-batch':36}{'all':>6}{'/ dD':>7}" + "".join(f"{p:>15}" for p in parts)]
    for name, value in middle.items():
        progress = result["duration_ms"][name][WARM_UP:]
        inside = "".join(f"{median([p.get(part, 0) for p in progress]):15.0f}" for part in parts)
        lines.append(f"{name:36}{value:6.0f}{value / middle[BASE]:6.2f}x{inside}")
    stages = [each for each in result["stage_us"][WARM_UP:] if each]
    spent = {s: median([each[s] for each in stages]) / 1000 for s in (stages[0] if stages else {})}
    lines.append(
        f"we add {middle[OURS] - middle[BASE]:.0f} ms to {BASE}; our own work, over 2 shards, is "
        f"{sum(spent.values()):.1f} ms: " + ", ".join(f"{s} {ms:.1f}" for s, ms in spent.items())
    )
    return "\n".join(lines)


def main() -> None:
    arguments = parser(__doc__, rows=1000, batches=60).parse_args()
    finish("small", run(arguments), table)


if __name__ == "__main__":
    main()
