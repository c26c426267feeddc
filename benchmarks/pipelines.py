"""The operator against Spark's built-ins, micro-batch by micro-batch on the same input.

python -m benchmarks.pipelines --batches 10

A contender whose rows are not as many as there are IDs fails the run. One that takes many times as
long as ours, or dies, is stopped, and the result records it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.contenders import contenders
from benchmarks.events import SCHEMAS, Events
from benchmarks.harness import (
    BASE_SETTINGS,
    HORIZON,
    Pipeline,
    comparison,
    data_folder,
    numbers,
    parser,
)
from benchmarks.results import finish

OURS = "dedup_by_id"


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Feed all contenders in turn; times, settings and our own metrics."""
    events = Events(rows=arguments.rows, duplicates=arguments.duplicates, shape=arguments.shape)
    wanted = [
        p
        for n, p in contenders().items()
        if not arguments.only or any(o in n for o in arguments.only)
    ]
    for pipeline in wanted:
        pipeline.schema, pipeline.count_rows = events.schema, True
    stopped = feed_in_turn(arguments, events, wanted)
    most = max(len(p.batch_ms) for p in wanted)
    result = {
        "rows_per_batch": events.rows,
        "shape": events.shape,
        "duplicates": events.duplicates,
        "horizon": HORIZON,
        "settings": {p.name: {**BASE_SETTINGS, **p.settings} for p in wanted},
        "live_ids": [events.unique(number + 1) for number in range(most)],
        "batch_ms": {p.name: p.batch_ms for p in wanted},
        "stopped": stopped,
        "stage_us": {p.name: [m.stage_us if m else None for m in p.metrics] for p in wanted},
    }
    last = next((p.metrics[-1] for p in wanted if p.metrics and p.metrics[-1]), None)
    if last is not None:
        result["last"] = {k: v for k, v in numbers(last).items() if k != "stage_us"}
    return result


def feed_in_turn(
    arguments: argparse.Namespace, events: Events, wanted: list[Pipeline]
) -> dict[str, str]:
    """Why which of them was fed no further; wrong answers end the run."""
    data = data_folder(arguments.data, events)
    stopped: dict[str, str] = {}
    running = True
    try:
        with comparison(arguments, wanted, driver_memory=arguments.driver_memory):
            for number in range(arguments.batches):
                files = events.write(data, number)
                for pipeline in [p for p in wanted if p.name not in stopped]:
                    why = feed(pipeline, files, wanted, arguments.patience)
                    if why:
                        stopped[pipeline.name] = f"in micro-batch {number}: {why}"
                        print(f"{pipeline.name} stopped {stopped[pipeline.name]}", file=sys.stderr)
                        running = stop(pipeline)
                    else:
                        check(pipeline, events, number + 1)
                    if not running:
                        return stopped
    except Exception:
        # Where one that fails has taken the JVM with it, nothing can be stopped in order.
        if running:
            raise
    return stopped


def feed(
    pipeline: Pipeline, files: list[Path], wanted: list[Pipeline], patience: float
) -> str | None:
    """One micro-batch; why there shall be no more, if so."""
    try:
        pipeline.feed(files)
    except Exception as error:
        return next(iter(str(error).splitlines()), type(error).__name__)[:300]
    took_ms, number = pipeline.batch_ms[-1], len(pipeline.batch_ms) - 1
    print(f"batch {number} {pipeline.name}: {took_ms} ms", file=sys.stderr)
    ours = next((p.batch_ms for p in wanted if p.name.startswith(OURS)), [])
    if number < len(ours) and took_ms > patience * ours[number]:
        return f"took {took_ms / ours[number]:.0f} times as long as {OURS}"
    return None


def stop(pipeline: Pipeline) -> bool:
    """Stop a contender for good; whether the session is still there for the others."""
    # One that ran out of memory ends the JVM a moment later.
    time.sleep(2)
    try:
        pipeline.stop()
    except Exception:
        return False
    return True


def check(pipeline: Pipeline, events: Events, batches: int) -> None:
    """End the run where the rows that came out so far are too many or too few."""
    right = events.unique(batches) if pipeline.unique else events.rows * batches
    if pipeline.rows_out != right:
        raise SystemExit(f"{pipeline.name}: {pipeline.rows_out:,} rows, must be {right:,}")


def table(result: dict[str, Any]) -> str:
    """Medians of three micro-batches at about 2 M and at the most live IDs, and the ratios."""
    times: dict[str, list[int]] = result["batch_ms"]
    ours = next(values for name, values in times.items() if name.startswith(OURS))
    windows = {
        f"{result['live_ids'][last] / 1e6:.1f} M live": slice(max(0, last - 2), last + 1)
        for last in (min(3, len(ours) - 1), len(ours) - 1)
    }
    head = "".join(f"{window:>14}{'/ ours':>9}" for window in windows)
    lines = [f"{'ms per micro-batch at about':46}{head}"]
    for name, values in times.items():
        line = f"{name:46}"
        for window in windows.values():
            if len(values) < window.stop:
                line += f"{'-':>14}{'':9}"
                continue
            median = statistics.median(values[window])
            line += f"{median:14.0f}{median / statistics.median(ours[window]):8.2f}x"
        lines.append(line)
    lines += [f"{name} stopped {why}" for name, why in result["stopped"].items()]
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, batches=11, driver_memory="8g", name="pipelines")
    options.add_argument("--only", action="append")
    options.add_argument("--shape", choices=SCHEMAS, default="narrow", help="of the rows")
    options.add_argument(
        "--patience", type=float, default=20, help="stop what takes so many times as long as ours"
    )
    arguments = options.parse_args()
    finish(arguments.name, run(arguments), table)


if __name__ == "__main__":
    main()
