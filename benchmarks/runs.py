"""Whole runs over a folder of files, each in a separate process, with its start.

python -m benchmarks.runs --shape wide --files 10
python -m benchmarks.runs --format csv --rows 100000 --files 20

A program that writes more or fewer rows than there are IDs fails the benchmark. One that fails, or
takes many times as long as ours, is not run again, and the result records it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from benchmarks import flink
from benchmarks.events import SCHEMAS, Events
from benchmarks.harness import data_folder, parser
from benchmarks.programs import FLINK, OURS, PROGRAMS, Job, Program
from benchmarks.results import finish, median
from dedup.cli.flags import PrepareFlags
from dedup.cli.prepare import prepare


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each contender's runs, in turn."""
    events = Events(rows=arguments.rows, shape=arguments.shape)
    unique, all_rows = events.unique(arguments.files), events.rows * arguments.files
    is_parquet = arguments.format == "parquet"
    able = {name: each for name, each in PROGRAMS.items() if is_parquet or not each.for_parquet}
    wanted = {name: able[name] for name in arguments.only or able}
    if FLINK in wanted:
        fetch_flink()
    if any(program.prepared for program in wanted.values()):
        prepare(PrepareFlags(quiet=True))
    seconds: dict[str, list[float]] = {name: [] for name in wanted}
    stopped: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="dedup-runs-") as scratch:
        source = Path(scratch, "in")
        collect(source, events, arguments)
        for number in range(arguments.rounds):
            for name in list(wanted)[:: -1 if number % 2 else 1]:
                if name in stopped:
                    continue
                patience_s = arguments.patience * min(seconds.get(OURS) or [float("inf")])
                with tempfile.TemporaryDirectory(dir=scratch) as folder:
                    job = Job(
                        source, Path(folder), arguments.cores, arguments.memory, events.schema,
                        arguments.format, arguments.infer,
                    )  # fmt: skip
                    took_s, why = timed(wanted[name], job, patience_s)
                    if why:
                        stopped[name] = why
                    else:
                        seconds[name].append(took_s)
                        check(name, job, unique if wanted[name].unique else all_rows)
                print(name, why or took_s, file=sys.stderr)
    return {
        "shape": arguments.shape,
        "file_format": arguments.format,
        "infer": arguments.infer,
        "rows": all_rows,
        "live_ids": unique,
        "files": arguments.files,
        "cores": arguments.cores,
        "memory": arguments.memory,
        "settings": {name: dict(each.settings) for name, each in wanted.items()},
        "seconds": seconds,
        "stopped": stopped,
    }


def fetch_flink() -> None:
    """Before anything is timed."""
    try:
        flink.jars()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SystemExit(
            f"Flink's jars cannot be fetched from Maven Central: {error}\n"
            "Name the others with --only to do without it."
        ) from None


def collect(source: Path, events: Events, arguments: argparse.Namespace) -> None:
    """Put the input into a folder, and into the page cache."""
    data = data_folder(arguments.data, events)
    source.mkdir()
    for number in range(arguments.files):
        for path in events.write(data, number, files=1, file_format=arguments.format):
            (source / path.name).symlink_to(path)
            path.read_bytes()


def timed(program: Program, job: Job, patience_s: float) -> tuple[float, str]:
    """Seconds that it took, and why it counts as stopped, if it does."""
    Path(job.own).mkdir()
    log, env = job.folder / "log", program.environment(job)
    begin = time.monotonic()
    with open(log, "w") as output:
        process = subprocess.Popen(program.command(job), stdout=output, stderr=output, env=env)
        try:
            code = process.wait(None if patience_s == float("inf") else patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return 0.0, f"took longer than {patience_s:.0f} s"
    took_s = round(time.monotonic() - begin, 2)
    if code < 0:
        return took_s, f"killed by signal {-code}"
    return took_s, last_words(log.read_text(errors="replace")) if code else ""


def last_words(log: str) -> str:
    """The last error that a log names, else its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["no word"]
    named = [line for line in lines if "Error" in line or "Exception" in line]
    return (named or lines)[-1][:300]


def check(name: str, job: Job, right: int) -> None:
    """End the benchmark where there are other rows than there must be."""
    rows = ds.dataset(job.output, format=job.file_format).count_rows()
    if rows != right:
        raise SystemExit(f"{name}: {rows:,} rows, must be {right:,}")


def table(result: dict[str, Any]) -> str:
    """Medians, and the ratios to the first round by round."""
    first = next(times for times in result["seconds"].values() if times)
    kind = result["file_format"]
    lines = [f"{result['rows']:,} {result['shape']} rows, {kind:13}{'s':>8}{'/ first':>10}"]
    for name, times in result["seconds"].items():
        if times:
            ratio = median([own / other for own, other in zip(times, first, strict=False)])
            lines.append(f"{name:40}{median(times):8.1f}{ratio:9.2f}x")
    lines += [f"{name} stopped: {why}" for name, why in result["stopped"].items()]
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, rows=1_000_000)
    options.add_argument("--files", type=int, default=30)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--cores", type=int, default=2)
    options.add_argument("--memory", default="2g", help="of a JVM's heap")
    options.add_argument("--shape", choices=SCHEMAS, default="narrow")
    options.add_argument("--only", nargs="*", choices=PROGRAMS)
    options.add_argument("--format", choices=["parquet", "csv", "json"], default="parquet")
    options.add_argument("--infer", action="store_true", help="programs find the columns of text")
    options.add_argument("--name", help="of the result; by default runs and the shape")
    options.add_argument(
        "--patience", type=float, default=20, help="stop what takes so many times as long as ours"
    )
    arguments = options.parse_args()
    parts = arguments.shape, arguments.format, "infer" if arguments.infer else "parquet"
    usual = "-".join(["runs", *(part for part in parts if part not in ("narrow", "parquet"))])
    finish(arguments.name or usual, run(arguments), table)


if __name__ == "__main__":
    main()
