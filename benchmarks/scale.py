"""From 1 M to 100 M live IDs: what grows.

The IDs are built up through the real operator, micro-batch by micro-batch over one horizon, with
the pass-through pipeline fed in turn: drift of the machine hits both, and their ratio is what
counts. Memory is sampled while the operator runs.

    python -m benchmarks.scale --live 100
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.contenders import contenders
from benchmarks.harness import (
    HORIZON,
    Pipeline,
    bytes_in,
    data_folder,
    drop_page_cache,
    filling,
    numbers,
    parser,
    session,
    side_by_side,
)
from benchmarks.memory import Sampler, usage
from benchmarks.results import finish, median

#: Million live IDs at which is looked.
TARGETS = (1, 3, 10, 30, 100)
#: Micro-batches before and after such a point that are timed.
AROUND = 2
FLOOR = "pack, pass-through state, unpack"


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Feed until ``live`` million IDs are remembered, then a little further; all figures."""
    events, batches = filling(arguments.live, arguments.rows, arguments.duplicates)
    data = data_folder(arguments.data, events)
    new = arguments.rows * (1 - arguments.duplicates)
    work = Path(tempfile.mkdtemp(prefix="dedup-scale-", dir=arguments.work))
    everyone = contenders()
    wanted = [everyone[name] for name in (arguments.only or ["dedup_by_id", FLOOR])]
    result: dict[str, Any] = {
        "rows_per_batch": events.rows,
        "duplicates": events.duplicates,
        "horizon": HORIZON,
        "batch_event_ms": events.batch_ms,
        "batches": {pipeline.name: [] for pipeline in wanted},
    }
    with session(driver_memory=arguments.driver_memory) as spark, side_by_side(spark, wanted, work):
        marks = {at for at in _marks(new) if at <= batches}
        for number in range(batches + 2 + AROUND):
            files = events.write(data, number)
            for pipeline in wanted:
                # Looking at memory slows the micro-batch down: right after those that are timed.
                figures = feed(
                    spark,
                    pipeline,
                    files,
                    work / str(wanted.index(pipeline)),
                    look=number - 1 - AROUND in marks,
                )
                result["batches"][pipeline.name].append(figures)
                print(f"{number} {pipeline.name}: {figures['batch_ms']} ms", file=sys.stderr)
            for file in files:
                if arguments.tidy:
                    file.unlink()
    if not arguments.only:
        last = events.write(data, batches + 2 + AROUND)
        result["cold_start"] = [
            {"pipeline": name, **cold_start(name, work / str(number), last, arguments)}
            for number, name in enumerate(p.name for p in wanted)
        ]
    if arguments.keep:
        print(f"kept {work}", file=sys.stderr)
    else:
        shutil.rmtree(work, ignore_errors=True)
    return result


def feed(
    spark: SparkSession, pipeline: Pipeline, files: list[Path], folder: Path, *, look: bool
) -> dict[str, Any]:
    """One micro-batch of one pipeline: time, the checkpoint's growth, and memory if asked."""
    before = state_bytes(folder)
    with Sampler() if look else nullcontext() as sampler:
        pipeline.feed(files)
    last = pipeline.metrics[-1]
    return {
        "batch_ms": pipeline.batch_ms[-1],
        "duration_ms": pipeline.progress[-1],
        "state_bytes_written": state_bytes(folder) - before,
        "metrics": numbers(last) if last is not None else None,
        "memory": memory(spark, sampler) if sampler is not None else None,
    }


def cold_start(
    name: str, folder: Path, files: list[Path], arguments: argparse.Namespace
) -> dict[str, Any]:
    """The first micro-batch after the local disk was lost: a new JVM, no cache, no page cache."""
    shutil.rmtree(folder / "cache", ignore_errors=True)
    drop_page_cache()
    begun_s = time.monotonic()
    with session(driver_memory=arguments.driver_memory) as spark:
        pipeline = contenders()[name]
        started_s = time.monotonic()
        pipeline.start(spark, folder)
        pipeline.feed(files)
        done_s = time.monotonic()
        last = pipeline.metrics[-1]
        pipeline.stop()
    return {
        "session_s": started_s - begun_s,
        "first_batch_s": done_s - started_s,
        "batch_ms": pipeline.batch_ms[-1],
        "metrics": numbers(last) if last is not None else None,
    }


def memory(spark: SparkSession, sampler: Sampler) -> dict[str, Any]:
    """Peaks of the workers while the micro-batch ran, and the JVM after it."""
    return {
        "workers_peak": asdict(sampler.peak),
        "jvm": asdict(usage()["jvm"]),
        "jvm_live_heap_bytes": heap_bytes(spark),
    }


def state_bytes(folder: Path) -> int:
    """Size of all state files of a checkpoint."""
    return bytes_in(folder / "checkpoint" / "state")


def heap_bytes(spark: SparkSession) -> int:
    """Live bytes of the JVM's heap, after a full collection."""
    jvm = spark._jvm
    assert jvm is not None
    jvm.System.gc()
    runtime = jvm.Runtime.getRuntime()
    return int(runtime.totalMemory() - runtime.freeMemory())


def _marks(new: float) -> list[int]:
    """Micro-batches at which the targets are reached."""
    return sorted({max(round(target * 1e6 / new), AROUND + 1) for target in TARGETS})


def table(result: dict[str, Any]) -> str:
    """Medians of five micro-batches round each number of live IDs."""
    ours = result["batches"]["dedup_by_id"]
    floor = result["batches"].get(FLOOR)
    live = [batch["metrics"]["live_ids"] for batch in ours]
    new = result["rows_per_batch"] * (1 - result["duplicates"])
    lines = [
        f"{'live IDs':>9}{'ms':>7}{'/ floor':>9}{'probe':>8}{'lookup':>8}{'upkeep':>8}"
        f"{'workers MB':>12}{'mapped MB':>10}{'JVM MB':>8}{'heap MB':>9}{'state row kB':>14}"
        f"{'B/ID':>6}{'filter B/ID':>12}"
    ]
    for at in _marks(new):
        if at + AROUND + 1 >= len(ours):
            break
        window = range(at - AROUND, at + AROUND + 1)
        looked = ours[at + AROUND + 1]["memory"]
        batches = [ours[i] for i in window]
        shards = batches[0]["metrics"]["shards"]
        stage = {
            name: median([b["metrics"]["stage_us"][name] / 1000 for b in batches])
            for name in ("probe", "lookup", "upkeep")
        }
        segment = max(1, batches[-1]["metrics"]["live_ids"] - batches[-1]["metrics"]["tail_ids"])
        ratio = (
            median([ours[i]["batch_ms"] / floor[i]["batch_ms"] for i in window]) if floor else 0.0
        )
        lines.append(
            f"{live[at] / 1e6:8.0f}M{median([b['batch_ms'] for b in batches]):7.0f}{ratio:8.2f}x"
            f"{stage['probe']:8.0f}{stage['lookup']:8.0f}{stage['upkeep']:8.0f}"
            f"{looked['workers_peak']['own_bytes'] / 2**20:12.0f}"
            f"{looked['workers_peak']['mapped_bytes'] / 2**20:10.0f}"
            f"{looked['jvm']['own_bytes'] / 2**20:8.0f}"
            f"{looked['jvm_live_heap_bytes'] / 2**20:9.0f}"
            f"{median([b['metrics']['state_bytes'] for b in batches]) / shards / 1024:14.0f}"
            f"{batches[-1]['metrics']['segment_bytes'] / segment:6.1f}"
            f"{batches[-1]['metrics']['sidecar_bytes'] / segment:12.2f}"
        )
    written = sum(batch["metrics"]["ids_written"] for batch in ours)
    lines.append(
        f"each ID was written {written / sum(b['metrics']['unique'] for b in ours):.2f} times"
    )
    lines += [
        f"after the loss of the local disk, first micro-batch of {cold['pipeline']}: "
        f"{cold['first_batch_s']:.1f} s"
        + (f", {cold['metrics']['bytes_fetched']} bytes fetched" if cold["metrics"] else "")
        for cold in result.get("cold_start", ())
    ]
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, driver_memory="8g", name="scale")
    options.add_argument("--live", type=float, default=100, help="million IDs")
    options.add_argument("--only", action="append")
    options.add_argument("--tidy", action="store_true", help="remove input that was used")
    options.add_argument("--keep", action="store_true", help="keep checkpoint and catalog")
    arguments = options.parse_args()
    finish(arguments.name, run(arguments), table)


if __name__ == "__main__":
    main()
