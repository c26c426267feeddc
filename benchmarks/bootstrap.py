"""Starting a query from history: time and memory against the operator over the same rows.

A query is fed micro-batches until it remembers a number of IDs, with a sink that keeps no row. In
another session `bootstrap` reads all their files at once.

    python -m benchmarks.bootstrap
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.contenders import operator
from benchmarks.events import Events
from benchmarks.harness import (
    HORIZON,
    Pipeline,
    data_folder,
    filling,
    parser,
    session,
    side_by_side,
    work_folder,
)
from benchmarks.memory import Sampler
from benchmarks.partitions import feed
from benchmarks.results import finish
from dedup import dedup_by_id
from dedup.tools import bootstrap

#: Millions of live IDs.
SIZES = (3, 30)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Figures for each number of live IDs."""
    return {
        "rows_per_batch": arguments.rows,
        "horizon": HORIZON,
        "sizes": {str(live): at_size(live, arguments) for live in arguments.live},
    }


def at_size(live: float, arguments: argparse.Namespace) -> dict[str, Any]:
    events, batches = filling(live, arguments.rows)
    query = Pipeline("query", operator())
    with work_folder(arguments) as work:
        with session() as spark, Sampler() as by_operator, side_by_side(spark, [query], work):
            feed([query], events, range(batches), arguments.data)
        folder = data_folder(arguments.data, events)
        learned = bootstrapped(folder, work / "bootstrap", events, batches)
    if learned["ids"] != events.unique(batches):
        raise SystemExit(f"{learned['ids']:,} IDs, must be {events.unique(batches):,}")
    return {
        "rows": arguments.rows * batches,
        "operator_ms": sum(query.batch_ms),
        "operator_bytes": by_operator.peak.own_bytes,
        **learned,
    }


def bootstrapped(folder: Path, work: Path, events: Events, batches: int) -> dict[str, Any]:
    by_id = dedup_by_id(
        "event_id", horizon=HORIZON, timestamp="ts", catalog=str(work / "catalog"),
        cache_dir=str(work / "cache"),
    )  # fmt: skip
    files = [str(file) for n in range(batches) for file in events.write(folder, n)]
    with session() as spark, Sampler() as sampler:
        history = spark.read.schema(events.schema).parquet(*files)
        began_s = time.monotonic()
        done = bootstrap(by_id, history, work / "checkpoint")
        took_s = time.monotonic() - began_s
    print(f"{done.ids:,} IDs in {took_s:.1f} s", file=sys.stderr)
    return {"ids": done.ids, "took_s": took_s, "peak_bytes": sampler.peak.own_bytes}


def ratios(found: dict[str, Any]) -> tuple[float, float]:
    """Time and memory against the operator."""
    took = found["took_s"] * 1e3 / found["operator_ms"]
    return took, found["peak_bytes"] / found["operator_bytes"]


def table(result: dict[str, Any]) -> str:
    """A line for each number of live IDs."""
    lines = [f"{'rows':>12}{'s':>8}{'/ operator':>12}{'peak MB':>9}{'/ operator':>12}"]
    for found in result["sizes"].values():
        took, memory = ratios(found)
        lines.append(
            f"{found['rows']:12,}{found['took_s']:8.1f}{took:12.2f}"
            f"{found['peak_bytes'] / 1e6:9.0f}{memory:12.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, name="bootstrap")
    options.add_argument("--live", nargs="*", type=float, default=SIZES, help="millions of IDs")
    arguments = options.parse_args()
    finish(arguments.name, run(arguments), table)


if __name__ == "__main__":
    main()
