"""A new session and its first micro-batch: what our Python adds; what daemon and archive save.

python -m benchmarks.starts
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from benchmarks.contenders import operator, spark_built_in
from benchmarks.events import Events
from benchmarks.harness import BASE_SETTINGS, Pipeline, comparison, data_folder, parser
from benchmarks.results import finish, median
from dedup.cli.flags import PrepareFlags
from dedup.cli.prepare import prepare

DAEMON = {"spark.python.daemon.module": "dedup.spark.daemon"}
BUILT_IN = "dropDuplicatesWithinWatermark"
LATER = 3


def exchange(events: DataFrame, folder: Path) -> DataFrame:
    """The shuffle alone."""
    return events.repartition(2, "event_id")


CONTENDERS = {
    "scan + repartition(id)": (exchange, {}),
    "dropDuplicatesWithinWatermark": (spark_built_in, {}),
    "dedup_by_id": (operator(), {}),
    "dedup_by_id, its own daemon": (operator(), DAEMON),
}
PREPARED = ", prepared"


def one(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of each micro-batch in this process, which has done nothing before."""
    transform, settings = CONTENDERS[name.removesuffix(PREPARED)]
    if name.endswith(PREPARED):
        option = prepare(PrepareFlags(quiet=True)).body["java_option"]
        settings = {**settings, "spark.driver.extraJavaOptions": option}
    events = Events(rows=arguments.rows, duplicates=0.05)
    data = data_folder(arguments.data, events)
    files = [events.write(data, number) for number in range(1 + LATER)]
    pipeline = Pipeline(name, transform)
    begin_s = time.monotonic()
    with comparison(arguments, [pipeline], settings=settings):
        pipeline.feed(files[0])
        started_ms = int((time.monotonic() - begin_s) * 1000)
        for batch in files[1:]:
            pipeline.feed(batch)
    return {"started_ms": started_ms, "batch_ms": pipeline.batch_ms}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Times of the first micro-batches of all contenders, a process each, in turn."""
    prepare(PrepareFlags(quiet=True))
    names = [name + how for name in CONTENDERS for how in ("", PREPARED)]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(arguments.rounds):
        # Forwards and backwards, so that none always comes behind the same one.
        for name in names[:: -1 if number % 2 else 1]:
            command = [sys.executable, "-m", "benchmarks.starts", *sys.argv[1:], "--one", name]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    return {
        "rows_per_batch": arguments.rows,
        "settings": BASE_SETTINGS,
        "started_ms": {name: [r["started_ms"] for r in rounds] for name, rounds in found.items()},
        "batch_ms": {name: [r["batch_ms"] for r in rounds] for name, rounds in found.items()},
    }


def table(result: dict[str, Any]) -> str:
    """Medians over rounds, and the ratios round by round."""
    first = {name: [r[0] for r in rounds] for name, rounds in result["batch_ms"].items()}
    lines = [
        f"{'ms':44}{'session and first':>18}{'/ dedup_by_id':>15}"
        f"{'first':>8}{'/ dedup_by_id':>15}{'later':>8}"
    ]
    for name, rounds in result["batch_ms"].items():
        told = f"{name:44}"
        for times, width in ((result["started_ms"], 18), (first, 8)):
            pairs = zip(times[name], times["dedup_by_id"], strict=True)
            ratio = median([own / plain for own, plain in pairs])
            told += f"{median(times[name]):{width}.0f}{ratio:14.2f}x"
        lines.append(f"{told}{median([median(times[1:]) for times in rounds]):8.0f}")
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, rows=100_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--one", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments)))
        return
    finish("starts", run(arguments), table)


if __name__ == "__main__":
    main()
