"""Other numbers of state partitions: after `rescale`, and with more shards than partitions.

Queries with 64 shards that were born with 8 partitions get half, twice and four times as many.
Queries that were born with these numbers are restarted with them, and all are fed in turn. How full
the partitions are is read from their state at the end.

Then queries with 8 to 64 shards on 8 partitions are fed in turn. Each is fed once more in a
separate session, because the queries of a session share their Python workers, whose memory is
measured.

    python -m benchmarks.partitions
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.contenders import operator
from benchmarks.events import Events
from benchmarks.harness import (
    BASE_SETTINGS,
    HORIZON,
    TUNED_ROCKSDB,
    Pipeline,
    data_folder,
    parser,
    session,
    side_by_side,
    work_folder,
)
from benchmarks.memory import Sampler, usage
from benchmarks.results import finish, median
from benchmarks.sweeps import Variant
from benchmarks.sweeps import feed as feed_variants
from dedup.catalog.certificate import certificate_of
from dedup.storage.root import Root
from dedup.tools import read_checkpoint, rescale

PARTITIONS = "spark.sql.shuffle.partitions"
BORN = 8
SHARDS = 8 * BORN
NUMBERS = (BORN // 2, 2 * BORN, 4 * BORN)
#: Shards for each partition.
EACH = (1, 2, 4, 8)
#: Micro-batches before the change.
BEFORE = 2
WARM_UP = 2
#: Micro-batches of a session whose memory is measured.
MEASURED = 5


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Figures of every micro-batch of both parts."""
    events = Events(rows=arguments.rows)
    return {
        "rows_per_batch": events.rows,
        "live_ids": events.unique(arguments.batches),
        "horizon": HORIZON,
        "settings": {**BASE_SETTINGS, **TUNED_ROCKSDB},
        "born": BORN,
        "warm_up": WARM_UP,
        "rescaled": rescaled(events, arguments),
        "shards": shards(events, arguments),
    }


def rescaled(events: Events, arguments: argparse.Namespace) -> dict[str, Any]:
    """Times after the change by number of partitions, and the IDs and shards of each partition."""
    pipelines = [
        Pipeline(
            f"{before} -> {number}",
            operator(shards=SHARDS),
            {**TUNED_ROCKSDB, PARTITIONS: str(before)},
        )
        for number in NUMBERS
        for before in (number, BORN)
    ]
    took_s = []
    with work_folder(arguments) as work, session() as spark:
        with side_by_side(spark, pipelines, work):
            feed(pipelines, events, range(BEFORE), arguments.data)
        for place, number in enumerate(NUMBERS):
            began_s = time.monotonic()
            rescale(work / str(2 * place + 1) / "checkpoint", number, spark)
            took_s.append(time.monotonic() - began_s)
        with side_by_side(spark, pipelines, work):
            feed(pipelines, events, range(BEFORE, arguments.batches), arguments.data)
        return {
            str(number): {
                "born_ms": pipelines[2 * place].batch_ms[BEFORE:],
                "rescaled_ms": pipelines[2 * place + 1].batch_ms[BEFORE:],
                "rescale_s": took_s[place],
                **held(spark, work / str(2 * place + 1), events.unique(arguments.batches)),
            }
            for place, number in enumerate(NUMBERS)
        }


def feed(pipelines: list[Pipeline], events: Events, batches: range, data: str | None) -> None:
    """Feed micro-batches to all in turn, every other one in the opposite order."""
    for number in batches:
        files = events.write(data_folder(data, events), number)
        for pipeline in pipelines if number % 2 else pipelines[::-1]:
            pipeline.feed(files)
        print(f"{number}: { {p.name: p.batch_ms[-1] for p in pipelines} }", file=sys.stderr)


def held(spark: SparkSession, folder: Path, right: int) -> dict[str, list[int]]:
    """The IDs and shards of each partition that holds any; wrong IDs end the run."""
    checkpoint, catalog = str(folder / "checkpoint"), str(folder / "catalog")
    snapshot = read_checkpoint(catalog, checkpoint, spark)
    keys = certificate_of(Root(catalog), snapshot.query_id).slot_keys
    ids, count = Counter[int](), Counter[int]()
    table = spark.read.format("statestore").load(checkpoint).select("partition_id", "key.shard")
    for partition, key in table.collect():
        state = snapshot.states[keys.index(key)]
        ids[partition] += state.manifest.ids + len(state.tail)
        count[partition] += 1
    if ids.total() != right:
        raise SystemExit(f"{folder}: {ids.total():,} IDs, must be {right:,}")
    return {"ids": [ids[p] for p in sorted(ids)], "shards": [count[p] for p in sorted(count)]}


def shards(events: Events, arguments: argparse.Namespace) -> dict[str, Any]:
    """Times and bytes of state of each number of shards, and the peak memory of its workers."""
    settings = {**TUNED_ROCKSDB, PARTITIONS: str(BORN)}
    variants = [
        Variant(str(each * BORN), events, {"shards": each * BORN}, settings) for each in EACH
    ]
    found = feed_variants(variants, arguments.batches, arguments)
    for variant in variants:
        while usage("workers")["workers"].processes:  # of the last session
            time.sleep(0.1)
        with Sampler() as sampler:
            feed_variants([variant], MEASURED, arguments)
        found[variant.name]["peak_bytes"] = sampler.peak.own_bytes
    return found


def change(number: str, found: dict[str, Any], warm_up: int) -> tuple[float, float, float, float]:
    """Median times, born with a number of partitions and rescaled to it, and the fullest partition.

    The IDs and shards of the fullest partition are divided by the average of all partitions.
    """
    born, changed = (median(found[name][warm_up:]) for name in ("born_ms", "rescaled_ms"))
    ids, count = (max(each) * int(number) / sum(each) for each in (found["ids"], found["shards"]))
    return born, changed, ids, count


def cost(figures: dict[str, Any], warm_up: int) -> tuple[float, float, float]:
    """Median time after the warm-up, and the greatest bytes of state and memory."""
    state = max(each["state_bytes"] for each in figures["metrics"])
    return median(figures["batch_ms"][warm_up:]), state, figures["peak_bytes"]


def table(result: dict[str, Any]) -> str:
    """Rescaled against born, how full partitions are, and the cost of more shards."""
    after = result["warm_up"]
    lines = [f"{'partitions':>10}{'born ms':>9}{'rescaled':>10}{'IDs':>14}{'shards':>8}{'s':>6}"]
    for number, found in result["rescaled"].items():
        born, changed, ids, count = change(number, found, after)
        lines.append(
            f"{number:>10}{born:9.0f}{changed:10.0f}{changed / born:6.2f}x{ids:7.2f}{count:8.2f}"
            f"{found['rescale_s']:6.1f}"
        )
    lines.append(f"{'shards':>10}{'ms':>9}{'state MB':>17}{'peak MB':>17}")
    costs = {name: cost(found, after) for name, found in result["shards"].items()}
    first, *_ = costs.values()
    for name, own in costs.items():
        ms, state, peak = (value / base for value, base in zip(own, first, strict=True))
        lines.append(
            f"{name:>10}{own[0]:9.0f}{ms:6.2f}x{own[1] / 1e6:10.1f}{state:6.2f}x"
            f"{own[2] / 1e6:10.0f}{peak:6.2f}x"
        )
    return "\n".join(lines)


def main() -> None:
    arguments = parser(__doc__, batches=10, name="partitions").parse_args()
    finish(arguments.name, run(arguments), table)


if __name__ == "__main__":
    main()
