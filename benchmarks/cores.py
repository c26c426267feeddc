"""One core and two, one executor to four: time, and bytes per record through shuffle and state.

A session for each place, one after another; in each, all contenders are fed in turn. As many
shards as cores. Executors belong to a standalone cluster on this machine (`local-cluster`), of
one core each; more of them than the machine has cores show what they cost, not what they gain.

    python -m benchmarks.cores
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.contenders import contenders, operator
from benchmarks.events import SCHEMAS, Events
from benchmarks.harness import (
    BASE_SETTINGS,
    HORIZON,
    Pipeline,
    bytes_in,
    data_folder,
    parser,
    session,
    side_by_side,
    work_folder,
)
from benchmarks.pipelines import OURS
from benchmarks.results import finish, median

NAMES = (
    "scan + repartition(id)",
    OURS,
    "dropDuplicatesWithinWatermark, HDFS-backed",
    "dropDuplicatesWithinWatermark, RocksDB tuned",
)
WARM_UP = 2
_EXECUTOR_MIB = 3072


@dataclass(frozen=True)
class Place:
    """Where tasks run."""

    name: str
    master: str
    cores: int


def places() -> list[Place]:
    """From one core of this process to four executors."""
    cluster = "local-cluster[{},1," + f"{_EXECUTOR_MIB}]"
    return [
        *(Place(f"{n} cores", f"local[{n}]", n) for n in (1, 2)),
        *(Place(f"{n} executors", cluster.format(n), n) for n in (1, 2, 3, 4)),
    ]


def wanted() -> list[Pipeline]:
    """Ours, its floor and Spark's two state stores."""
    everyone = contenders()
    everyone[OURS].transform = operator(shared_local=True)
    return [everyone[name] for name in NAMES]


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Figures of every micro-batch, by place, round and contender."""
    events = Events(rows=arguments.rows, shape=arguments.shape)
    found: dict[str, list[dict[str, Any]]] = {place.name: [] for place in places()}
    for number in range(arguments.rounds):
        for place in places():
            print(f"round {number}, {place.name}", file=sys.stderr)
            found[place.name].append(one(place, events, arguments))
    return {
        "rows_per_batch": events.rows,
        "shape": events.shape,
        "live_ids": events.unique(arguments.batches),
        "horizon": HORIZON,
        "settings": {p.name: {**BASE_SETTINGS, **p.settings} for p in wanted()},
        "places": found,
    }


def one(place: Place, events: Events, arguments: argparse.Namespace) -> dict[str, Any]:
    """All contenders in turn in one place."""
    data, pipelines = data_folder(arguments.data, events), wanted()
    shuffled: dict[str, list[int]] = {p.name: [] for p in pipelines}
    for pipeline in pipelines:
        pipeline.schema = events.schema
    executors = {
        "spark.executor.memory": f"{_EXECUTOR_MIB}m",
        "spark.executorEnv.PYTHONPATH": ":".join(filter(None, sys.path)),
    }
    with (
        work_folder(arguments) as work,
        session(master=place.master, partitions=place.cores, settings=executors) as spark,
        side_by_side(spark, pipelines, work),
    ):
        for number in range(arguments.batches):
            files = events.write(data, number)
            for pipeline in pipelines:
                before = shuffle_bytes(spark)
                pipeline.feed(files)
                shuffled[pipeline.name].append(shuffle_bytes(spark) - before)
            print({p.name: p.batch_ms[-1] for p in pipelines}, file=sys.stderr)
        return {
            p.name: {
                "batch_ms": p.batch_ms,
                "shuffle_bytes": shuffled[p.name],
                # Spark deletes no checkpoint files within so few micro-batches.
                "checkpoint_bytes": bytes_in(work / str(place_of) / "checkpoint"),
                "catalog_bytes": bytes_in(work / str(place_of) / "catalog"),
            }
            for place_of, p in enumerate(pipelines)
        }


def shuffle_bytes(spark: SparkSession) -> int:
    """What all stages so far that Spark still lists wrote for a shuffle."""
    context = spark.sparkContext
    quantiles = context._gateway.new_array(context._jvm.double, 0)
    stages = context._jsc.sc().statusStore().stageList(None, False, False, quantiles, None)
    return sum(stages.apply(n).shuffleWriteBytes() for n in range(stages.size()))


def table(result: dict[str, Any]) -> str:
    """Medians after the warm-up, what they are of ours and of one core, and bytes per record."""
    lines = [f"{'':14}{'':46}{'ms':>7}{'/ ours':>9}{'/ first':>9}{'shuffle':>10}{'state':>8}"]
    first: dict[str, float] = {}
    for place, rounds in result["places"].items():
        middle = {
            name: median([ms for each in rounds for ms in each[name]["batch_ms"][WARM_UP:]])
            for name in rounds[0]
        }
        for name, value in middle.items():
            first.setdefault(name, value)
            own = rounds[-1][name]
            records = result["rows_per_batch"] * len(own["batch_ms"])
            lines.append(
                f"{place:14}{name:46}{value:7.0f}{value / middle[OURS]:8.2f}x"
                f"{value / first[name]:8.2f}x{sum(own['shuffle_bytes']) / records:8.1f} B"
                f"{(own['checkpoint_bytes'] + own['catalog_bytes']) / records:6.1f} B"
            )
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, rows=300_000, batches=6, name="cores")
    options.add_argument("--rounds", type=int, default=1, help="in each place")
    options.add_argument("--shape", choices=SCHEMAS, default="narrow", help="of the rows")
    arguments = options.parse_args()
    finish(arguments.name, run(arguments), table)


if __name__ == "__main__":
    main()
