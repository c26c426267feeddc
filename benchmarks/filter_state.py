"""Filters in Spark state: what they cost by load, and how many IDs they answer for alone.

    python -m benchmarks.filter_state --loads 1000 100000 1000000 --live 10 --shards 2

Every pipeline first fills its horizon with live IDs by micro-batches of 1 M records. Then all are
fed in turn, micro-batches of the given size.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.contenders import operator
from benchmarks.harness import (
    TUNED_ROCKSDB,
    Pipeline,
    bytes_in,
    data_folder,
    filling,
    parser,
    session,
    side_by_side,
    work_folder,
)
from benchmarks.results import finish, median

#: Records of the micro-batches that fill the horizon.
FILLING = 1_000_000
STORES = {"hdfs": {}, "rocksdb": TUNED_ROCKSDB}
#: Values of `filter_state_bytes` beside the default.
BOUNDS = (0, 16 << 20)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Figures of every cell of the grid, by cell and pipeline."""
    grid = product(arguments.live, arguments.shards, arguments.stores, arguments.loads)
    return {
        "cells": [cell(arguments, rows, live, shards, store) for live, shards, store, rows in grid]
    }


def cell(
    arguments: argparse.Namespace, rows: int, live: float, shards: int, store: str
) -> dict[str, Any]:
    """One load: medians per pipeline after a quarter of its micro-batches."""
    large, batches = filling(live, FILLING)
    events, _ = filling(live, rows)
    first = batches * large.unique(1) // events.unique(1)
    pipelines = [
        Pipeline("default", operator(shards=shards), STORES[store]),
        *(
            Pipeline(str(bound), operator(shards=shards, filter_state_bytes=bound), STORES[store])
            for bound in BOUNDS
        ),
    ]
    with (
        work_folder(arguments) as work,
        session(partitions=shards) as spark,
        side_by_side(spark, pipelines, work),
    ):
        for number in range(batches):
            for pipeline in pipelines:
                pipeline.feed(large.write(data_folder(arguments.data, large), number))
        filled = [len(p.batch_ms) for p in pipelines]
        before = [checkpoint(work, n) for n, _ in enumerate(pipelines)]
        for number in range(arguments.batches):
            files = events.write(data_folder(arguments.data, events), first + number)
            for pipeline in pipelines if number % 2 else pipelines[::-1]:
                pipeline.feed(files)
        figures = {
            p.name: measured(p, filled[n], checkpoint(work, n) - before[n])
            for n, p in enumerate(pipelines)
        }
    print(f"{rows} rows, {live} M live, {shards} shards, {store}: {figures}", file=sys.stderr)
    return {"rows": rows, "live": live, "shards": shards, "store": store, "pipelines": figures}


def checkpoint(work: Path, number: int) -> int:
    return bytes_in(work / str(number) / "checkpoint")


def measured(pipeline: Pipeline, filled: int, checkpoint_bytes: int) -> dict[str, Any]:
    """What a pipeline took per micro-batch, and where its IDs found their answer."""
    found = [m for m in pipeline.metrics[filled:] if m is not None]
    cleared = sum(m.filter_negative for m in found)
    read = sum(m.filter_true_positive + m.filter_false_positive for m in found)
    outside = sum(m.filter_sidecar for m in found)
    times = pipeline.batch_ms[filled:]
    return {
        "ms": median(times[len(times) // 4 :]),
        "checkpoint_bytes": checkpoint_bytes // len(times),
        "filter_state_bytes": median([m.filter_state_bytes for m in found]),
        "sidecar_bytes": median([m.sidecar_bytes for m in found]),
        "by_state": (cleared - outside) / (cleared + read),
        "by_sidecar": outside / (cleared + read),
        "by_catalog": read / (cleared + read),
    }


def table(result: dict[str, Any]) -> str:
    """Each load with its pipelines, and their ratios to the one without filters in state."""
    lines = [
        f"{'rows':>9}{'live':>6}{'shards':>7} {'store':8}{'bound':>9}{'ms':>7}{'/ 0':>7}"
        f"{'kB/batch':>10}{'in state':>10}{'state':>7}{'sidecar':>8}{'catalog':>8}"
    ]
    for each in result["cells"]:
        base = each["pipelines"]["0"]
        for name, at in each["pipelines"].items():
            bound = name if name == "default" else f"{int(name) >> 20} MiB"
            share = at["filter_state_bytes"] / max(1, at["sidecar_bytes"])
            load = f"{each['rows']:9}{each['live']:5.0f}M{each['shards']:7} {each['store']:8}"
            lines.append(
                f"{load}{bound:>9}"
                f"{at['ms']:7.0f}{at['ms'] / base['ms']:6.2f}x"
                f"{at['checkpoint_bytes'] / 1e3:10.0f}{share:10.1%}"
                f"{at['by_state']:7.1%}{at['by_sidecar']:8.1%}{at['by_catalog']:8.1%}"
            )
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, batches=40, name="filter-state")
    options.add_argument(
        "--loads", type=int, nargs="+", default=[1_000, 100_000, 1_000_000], help="records, each"
    )
    options.add_argument("--live", type=float, nargs="+", default=[10.0], help="million live IDs")
    options.add_argument("--shards", type=int, nargs="+", default=[2])
    options.add_argument("--stores", nargs="+", choices=STORES, default=["hdfs"])
    arguments = options.parse_args()
    finish(arguments.name, run(arguments), table)


if __name__ == "__main__":
    main()
