"""Whole runs over a folder of Parquet files, each a process of its own with its start.

python -m benchmarks.runs --shape wide --files 10
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from benchmarks.events import SCHEMAS, Events
from benchmarks.harness import HORIZON, data_folder, parser
from benchmarks.results import finish, median

#: What every pipeline that brings equal IDs together must do, and nothing else.
_SCRIPT = """
import sys
from pyspark.sql import SparkSession
source, output, cores, memory = sys.argv[1:]
builder = SparkSession.builder.master(f"local[{cores}]").config("spark.driver.memory", memory)
builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
spark = builder.config("spark.sql.shuffle.partitions", cores).getOrCreate()
spark.read.parquet(source).repartition(int(cores), "event_id").write.parquet(output)
"""
BASE = "Spark: scan + repartition(id) + write"
CONTENDERS = {BASE: None, "dedup run": (), "dedup run --parquet spark": ("--parquet", "spark")}


def command(name: str, source: Path, folder: Path, arguments: argparse.Namespace) -> list[str]:
    """What to run."""
    cores, memory = str(arguments.cores), arguments.memory
    flags = CONTENDERS[name]
    if flags is None:
        return [sys.executable, "-c", _SCRIPT, str(source), str(folder / "out"), cores, memory]
    return [
        sys.executable, "-m", "dedup.cli.main", "run", str(source), "--id", "event_id",
        "--horizon", HORIZON, "--timestamp", "ts", "--output", str(folder / "out"),
        "--master", f"local[{cores}]", "--driver-memory", memory, "--quiet", *flags,
    ]  # fmt: skip


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each contender's runs, in turn."""
    events = Events(rows=arguments.rows, shape=arguments.shape)
    data = data_folder(arguments.data, events)
    seconds: dict[str, list[float]] = {name: [] for name in arguments.only or CONTENDERS}
    rows: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="dedup-runs-") as scratch:
        source = Path(scratch, "in")
        source.mkdir()
        for number in range(arguments.files):
            for path in events.write(data, number, files=1):
                (source / path.name).symlink_to(path)
                path.read_bytes()  # all of them from the page cache
        for number in range(arguments.rounds):
            for name in list(seconds)[:: -1 if number % 2 else 1]:
                folder = Path(scratch, "work")
                folder.mkdir()
                begin = time.monotonic()
                subprocess.run(
                    command(name, source, folder, arguments),
                    check=True,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                seconds[name].append(round(time.monotonic() - begin, 2))
                print(name, seconds[name][-1], file=sys.stderr)
                rows[name] = ds.dataset(folder / "out", format="parquet").count_rows()
                shutil.rmtree(folder)
    return {
        "shape": arguments.shape,
        "rows": arguments.rows * arguments.files,
        "files": arguments.files,
        "cores": arguments.cores,
        "rows_written": rows,
        "seconds": seconds,
    }


def table(result: dict[str, Any]) -> str:
    """Medians, and the ratios round by round."""
    base = result["seconds"][BASE]
    lines = [f"{result['rows']:,} {result['shape']} rows{'':20}{'s':>8}{'/ Spark':>10}"]
    for name, times in result["seconds"].items():
        ratio = median([own / other for own, other in zip(times, base, strict=True)])
        lines.append(f"{name:40}{median(times):8.1f}{ratio:9.2f}x")
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, rows=1_000_000)
    options.add_argument("--files", type=int, default=30)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--cores", type=int, default=2)
    options.add_argument("--memory", default="2g")
    options.add_argument("--shape", choices=SCHEMAS, default="narrow")
    options.add_argument("--only", nargs="*", choices=CONTENDERS)
    arguments = options.parse_args()
    name = "runs" if arguments.shape == "narrow" else f"runs-{arguments.shape}"
    finish(name, run(arguments), table)


if __name__ == "__main__":
    main()
