"""Rebuilding a query for other shards: time, memory, and what the new query costs.

A query with 8 shards and one with 32 are fed in turn until they remember a number of IDs. The first
one is rebuilt for 32 shards, by a separate process. The rebuilt query and the one that began with
32 shards are then fed in turn.

    python -m benchmarks.rebuild
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.contenders import operator
from benchmarks.harness import (
    HORIZON,
    Pipeline,
    bytes_in,
    filling,
    parser,
    session,
    side_by_side,
    work_folder,
)
from benchmarks.partitions import feed
from benchmarks.results import finish, median
from dedup.tools import read_checkpoint, rebuild

SHARDS, NEW_SHARDS = 8, 32
#: Millions of live IDs.
SIZES = (3, 30)
#: Micro-batches after the rebuild, and how many of them only warm up.
AFTER, WARM_UP = 9, 2


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Figures for each number of live IDs."""
    return {
        "rows_per_batch": arguments.rows,
        "horizon": HORIZON,
        "shards": [SHARDS, NEW_SHARDS],
        "warm_up": WARM_UP,
        "sizes": {str(live): at_size(live, arguments) for live in arguments.live},
    }


def at_size(live: float, arguments: argparse.Namespace) -> dict[str, Any]:
    events, batches = filling(live, arguments.rows)
    old, born = (Pipeline(str(n), operator(shards=n)) for n in (SHARDS, NEW_SHARDS))
    with work_folder(arguments) as work:
        with session() as spark:
            with side_by_side(spark, [old, born], work):
                feed([old, born], events, range(batches), arguments.data)
            states = read_checkpoint(work / "0/catalog", work / "0/checkpoint", spark).states
        live_bytes = sum(sum(s.manifest.live_bytes()) + s.tail.nbytes for s in states.values())
        places = ("0/catalog", "0/checkpoint", "2/catalog", "2/checkpoint")
        rebuilt = rebuilt_by_process(*(work / place for place in places))
        filled_ms = sum(old.batch_ms)
        new, born = (Pipeline(name, operator(shards=NEW_SHARDS)) for name in ("new", "born"))
        new_bytes = bytes_in(work / "2/catalog")
        with session() as spark:
            new.start(spark, work / "2")
            born.start(spark, work / "1")
            feed([new, born], events, range(batches, batches + AFTER), arguments.data)
            new.stop()
            born.stop()
    if rebuilt["ids"] != events.unique(batches):
        raise SystemExit(f"{rebuilt['ids']:,} IDs, must be {events.unique(batches):,}")
    return {
        "live_ids": rebuilt["ids"],
        "filled_ms": filled_ms,
        "rebuilt": rebuilt,
        "live_bytes": live_bytes,
        "new_bytes": new_bytes,
        "new_ms": new.batch_ms,
        "born_ms": born.batch_ms,
    }


def rebuilt_by_process(*places: Path) -> dict[str, Any]:
    """Rebuild in another process; return its time and its greatest memory."""
    command = [sys.executable, "-m", "benchmarks.rebuild", "--rebuild", *map(str, places)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def rebuild_here(places: list[str]) -> dict[str, Any]:
    with session() as spark:
        Path("/proc/self/clear_refs").write_text("5")  # forget the greatest memory so far
        began_s = time.monotonic()
        done = rebuild(*places, shards=NEW_SHARDS, spark=spark)
        took_s = time.monotonic() - began_s
        status = Path(f"/proc/{os.getpid()}/status").read_text()
    peak_kb = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return {"ids": done.ids, "took_s": took_s, "peak_bytes": 1024 * int(peak_kb)}


def ratios(found: dict[str, Any], warm_up: int) -> tuple[float, float, float]:
    """Rebuilding against filling, the new query against the born one, and bytes against before."""
    new, born = (median(found[name][warm_up:]) for name in ("new_ms", "born_ms"))
    took = found["rebuilt"]["took_s"] * 1e3 / found["filled_ms"]
    return took, new / born, found["new_bytes"] / found["live_bytes"]


def table(result: dict[str, Any]) -> str:
    """A line for each number of live IDs."""
    lines = [
        f"{'live IDs':>12}{'s':>8}{'/ filled':>10}{'peak MB':>9}{'new / born':>12}{'bytes':>8}"
    ]
    for found in result["sizes"].values():
        took, new, size = ratios(found, result["warm_up"])
        lines.append(
            f"{found['live_ids']:12,}{found['rebuilt']['took_s']:8.1f}{took:10.2f}"
            f"{found['rebuilt']['peak_bytes'] / 1e6:9.0f}{new:12.2f}{size:8.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, name="rebuild")
    options.add_argument("--live", nargs="*", type=float, default=SIZES, help="millions of IDs")
    options.add_argument("--rebuild", nargs=4, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.rebuild:
        print(json.dumps(rebuild_here(arguments.rebuild)))
    else:
        finish(arguments.name, run(arguments), table)


if __name__ == "__main__":
    main()
