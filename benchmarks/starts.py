"""The first micro-batch of a new session: what our Python adds to Spark's own start.

python -m benchmarks.starts
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from benchmarks.contenders import operator, spark_built_in
from benchmarks.events import Events
from benchmarks.harness import BASE_SETTINGS, Pipeline, comparison, data_folder, parser
from benchmarks.results import finish, median

DAEMON = {"spark.python.daemon.module": "dedup.spark.daemon"}
BUILT_IN = "dropDuplicatesWithinWatermark"
LATER = 3


def exchange(events: DataFrame, folder: Path) -> DataFrame:
    """The shuffle alone."""
    return events.repartition(2, "event_id")


CONTENDERS = {
    "scan + repartition(id)": (exchange, {}),
    BUILT_IN: (spark_built_in, {}),
    "dedup_by_id": (operator(), {}),
    "dedup_by_id, its own daemon": (operator(), DAEMON),
}


def one(name: str, arguments: argparse.Namespace) -> list[int]:
    """Milliseconds of each micro-batch in this process, which has done nothing before."""
    transform, settings = CONTENDERS[name]
    events = Events(rows=arguments.rows, duplicates=0.05)
    data = data_folder(arguments.data, events)
    files = [events.write(data, number) for number in range(1 + LATER)]
    pipeline = Pipeline(name, transform)
    with comparison(arguments, [pipeline], settings=settings):
        for batch in files:
            pipeline.feed(batch)
    return pipeline.batch_ms


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Times of the first micro-batches of all contenders, a process each, in turn."""
    batch_ms: dict[str, list[list[int]]] = {name: [] for name in CONTENDERS}
    for number in range(arguments.rounds):
        # Forwards and backwards, so that none always comes behind the same one.
        for name in list(CONTENDERS)[:: -1 if number % 2 else 1]:
            command = [sys.executable, "-m", "benchmarks.starts", *sys.argv[1:], "--one", name]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            batch_ms[name].append(json.loads(done.stdout.splitlines()[-1]))
    return {"rows_per_batch": arguments.rows, "settings": BASE_SETTINGS, "batch_ms": batch_ms}


def table(result: dict[str, Any]) -> str:
    """Medians over rounds, and the ratios round by round."""
    base = [times[0] for times in result["batch_ms"][BUILT_IN]]
    plain = [times[0] for times in result["batch_ms"]["dedup_by_id"]]
    lines = [f"{'ms':32}{'first':>8}{'/ built-in':>12}{'/ dedup_by_id':>15}{'later':>8}"]
    for name, rounds in result["batch_ms"].items():
        first = [times[0] for times in rounds]
        ratios = [
            median([own / other for own, other in zip(first, others, strict=True)])
            for others in (base, plain)
        ]
        later = median([median(times[1:]) for times in rounds])
        told = f"{ratios[0]:11.2f}x{ratios[1]:14.2f}x"
        lines.append(f"{name:32}{median(first):8.0f}{told}{later:8.0f}")
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, rows=100_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--one", choices=CONTENDERS, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments)))
        return
    finish("starts", run(arguments), table)


if __name__ == "__main__":
    main()
