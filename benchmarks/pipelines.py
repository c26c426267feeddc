"""The operator against Spark's built-ins, micro-batch by micro-batch on the same input.

python -m benchmarks.pipelines --batches 10
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from benchmarks.contenders import contenders
from benchmarks.events import SCHEMAS, Events
from benchmarks.harness import BASE_SETTINGS, HORIZON, comparison, data_folder, parser
from benchmarks.results import finish


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Feed all contenders in turn; times, settings and our own metrics."""
    events = Events(rows=arguments.rows, duplicates=arguments.duplicates, shape=arguments.shape)
    data = data_folder(arguments.data, events)
    wanted = [
        p
        for n, p in contenders().items()
        if not arguments.only or any(o in n for o in arguments.only)
    ]
    for pipeline in wanted:
        pipeline.schema = events.schema
    with comparison(arguments, wanted, driver_memory=arguments.driver_memory):
        for number in range(arguments.batches):
            files = events.write(data, number)
            for pipeline in wanted:
                pipeline.feed(files)
                print(
                    f"batch {number} {pipeline.name}: {pipeline.batch_ms[-1]} ms", file=sys.stderr
                )
    result = {
        "rows_per_batch": events.rows,
        "shape": events.shape,
        "duplicates": events.duplicates,
        "horizon": HORIZON,
        "settings": {p.name: {**BASE_SETTINGS, **p.settings} for p in wanted},
        "batch_ms": {p.name: p.batch_ms for p in wanted},
        "stage_us": {p.name: [m.stage_us if m else None for m in p.metrics] for p in wanted},
    }
    last = next((p.metrics[-1] for p in wanted if p.metrics and p.metrics[-1]), None)
    if last is not None:
        result["last"] = {k: getattr(last, k) for k in last.__slots__ if k != "stage_us"}
    return result


def table(result: dict[str, Any]) -> str:
    """Medians of three micro-batches at about 2 M and at the most live IDs, and the ratios."""
    times: dict[str, list[int]] = result["batch_ms"]
    ours = next(values for name, values in times.items() if name.startswith("dedup_by_id"))
    windows = {
        f"{live / 1e6:.0f} M live": slice(last - 2, last + 1)
        for last in (min(3, len(ours) - 1), len(ours) - 1)
        for live in [result["rows_per_batch"] * (1 - result["duplicates"]) * last]
    }
    head = "".join(f"{window:>14}{'/ ours':>9}" for window in windows)
    lines = [f"{'ms per micro-batch at about':46}{head}"]
    for name, values in times.items():
        line = f"{name:46}"
        for window in windows.values():
            median = statistics.median(values[window])
            line += f"{median:14.0f}{median / statistics.median(ours[window]):8.2f}x"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, batches=11, driver_memory="8g", name="pipelines")
    options.add_argument("--only", action="append")
    options.add_argument("--shape", choices=SCHEMAS, default="narrow", help="of the rows")
    arguments = options.parse_args()
    finish(arguments.name, run(arguments), table)


if __name__ == "__main__":
    main()
