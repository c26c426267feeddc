"""What a size costs that no one machine here can hold: the real core over a catalog in memory.

The real core drives one shard through its micro-batches (`dedup.tools.tuning.load`). Only RocksDB,
Spark and the clock are missing. Counts (segments, bytes, PUTs, blocks and filter pages read) are
therefore the core's own; times come from costs per unit that a measured run gave (`fit`), and are
checked against another stretch of that run.

    python -m benchmarks.simulate check            # against benchmarks/results/scale.json
    python -m benchmarks.simulate plan --shards 64 # 1 B live IDs, 1 M records a second
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.results import FOLDER, finish, median
from dedup import kernel
from dedup.core.entries import Entries
from dedup.core.filter import PAGE_BLOCKS, PAGE_BYTES, SplitBlockFilter
from dedup.core.policy import Policy
from dedup.core.segment import SegmentPlan, SegmentRef
from dedup.kernel.arrays import BOOL, U64
from dedup.tools.tuning.load import CountingStore, Load, drive, synthetic_keys


def load_of(rows: int, batch_ms: int, horizon_ms: int, duplicates: float = 0.05) -> Load:
    """The operator's defaults for a horizon."""
    policy = Policy(
        horizon_ms=horizon_ms,
        bucket_ms=-(-horizon_ms // 8),
        event_time=True,
        lateness_ms=min(horizon_ms, 3_600_000),
        keep_expired_ms=0,
        retain_epochs=2,
    )
    return Load(rows=rows, batch_ms=batch_ms, policy=policy, duplicates=duplicates)


class RequestsStore(CountingStore):
    """Counts the requests to an object store, and the bytes, as well."""

    def may_hold(self, seg: SegmentRef, hashes: U64) -> BOOL:
        blocks = self.filters[seg.name].blocks
        pages, _ = kernel.filter_pages(seg.spread(hashes), blocks, PAGE_BLOCKS)
        self.counts["filter_bytes_read"] += len(pages) * PAGE_BYTES
        return super().may_hold(seg, hashes)

    def write_segment(
        self, plan: SegmentPlan, pieces: Sequence[Entries]
    ) -> tuple[SegmentRef, SplitBlockFilter]:
        segment, built = super().write_segment(plan, pieces)
        self.counts["puts"] += 2
        self.counts["bytes_written"] += segment.sst_bytes + segment.filter_bytes
        return segment, built

    def delete(self, names: Sequence[str]) -> int:
        self.counts["deletes"] += 2 * len(names)
        return super().delete(names)

    def spill_pending(self, names: Sequence[str]) -> str:
        self.counts["puts"] += 1
        return super().spill_pending(names)

    def delete_pending(self, pending_list: str) -> int:
        self.counts["deletes"] += 1
        return super().delete_pending(pending_list)


def simulate(load: Load, batches: int) -> list[dict[str, Any]]:
    """Counts of one shard, micro-batch by micro-batch."""
    store = RequestsStore()
    figures = []
    for step in drive(load, batches, synthetic_keys(), store):
        manifest = step.state.manifest
        segments = list(manifest.segments())
        figures.append(
            {
                **store.counts,
                **step.counts,
                "live_ids": manifest.ids + len(step.state.tail),
                "segments": len(segments),
                "depth": max((b.depth for b in manifest.buckets), default=0),
                "segment_bytes": sum(s.sst_bytes for s in segments),
                "sidecar_bytes": sum(s.filter_bytes for s in segments),
                "state_bytes": len(step.state.to_bytes()),
            }
        )
        store.counts.clear()
    return figures


#: The parts of a micro-batch's time.
UNITS = ("rows", "blocks_read", "ids_written", "filter_bytes_read")


def fit(measured: list[dict[str, float]], batch_ms: list[float]) -> dict[str, float]:
    """Cost of each unit in ms and of a micro-batch as such, from group-function stage times.

    Rows and the micro-batch itself cannot be separated in a run of equal micro-batches: the fixed
    part is what a micro-batch of 1,000 rows takes (`benchmarks.small`).
    """
    fixed_ms = measured[0]["fixed_ms"]
    cost = {
        unit: median([m[f"{unit}_ms"] / m[unit] for m in measured if m.get(unit)])
        for unit in ("blocks_read", "ids_written", "filter_bytes_read")
    }
    rest = [
        (whole - fixed_ms - sum(m[unit] * cost[unit] for unit in cost)) / m["rows"]
        for m, whole in zip(measured, batch_ms, strict=True)
    ]
    return {"fixed": fixed_ms, "rows": median(rest), **cost}


def predicted_ms(figures: dict[str, Any], cost: dict[str, float]) -> float:
    """Time of a micro-batch of these counts, over all shards that run at once."""
    return cost["fixed"] + sum(figures.get(unit, 0) * cost[unit] for unit in UNITS)


def check(arguments: argparse.Namespace) -> dict[str, Any]:
    """Predict the measured run at 10 M live IDs from its first 3 M, counts and time."""
    run = json.loads((FOLDER / "scale.json").read_text())
    small = json.loads((FOLDER / "small.json").read_text())
    ours = [batch for batch in run["batches"]["dedup_by_id"] if batch["metrics"]]
    shards = ours[0]["metrics"]["shards"]
    load = load_of(
        run["rows_per_batch"] // shards, run["batch_event_ms"], 7 * 86_400_000, run["duplicates"]
    )
    new = run["rows_per_batch"] * (1 - run["duplicates"])
    at = round(10e6 / new)
    simulated = simulate(load, at + 3)
    fixed_ms = median(small["batch_ms"]["dedup_by_id"][small["warm_up"] :])
    learned = []
    for number in range(2, round(3e6 / new) + 2):
        stage, sim = ours[number]["metrics"]["stage_us"], simulated[number]
        learned.append(
            {
                "fixed_ms": fixed_ms,
                "rows": run["rows_per_batch"],
                "blocks_read": ours[number]["metrics"]["catalog_reads"],
                "ids_written": ours[number]["metrics"]["ids_written"],
                "filter_bytes_read": sim.get("filter_bytes_read", 0) * shards,
                "blocks_read_ms": stage["lookup"] / 1000 / shards,
                "ids_written_ms": stage["upkeep"] / 1000 / shards,
                "filter_bytes_read_ms": stage["probe"] / 1000 / shards,
            }
        )
    cost = fit(learned, [ours[n]["batch_ms"] for n in range(2, round(3e6 / new) + 2)])
    rows = []
    window = range(at - 2, at + 3)

    def compare(name: str, real: float, model: float) -> None:
        rows.append({"figure": name, "measured": real, "simulated": model, "ratio": model / real})

    def real(name: str) -> float:
        return median([ours[n]["metrics"][name] for n in window])

    def model(name: str) -> float:
        return median([simulated[n].get(name, 0) for n in window]) * shards

    for name in ("live_ids", "segments", "segment_bytes", "sidecar_bytes", "filter_true_positive"):
        compare(name, real(name), model(name))
    compare("catalog_reads", real("catalog_reads"), model("blocks_read"))
    written = [sum(ours[n]["metrics"]["ids_written"] for n in range(at))]
    compare(
        "ids_written so far", written[0], shards * sum(s["ids_written"] for s in simulated[:at])
    )
    times = [
        predicted_ms({u: shards * simulated[n].get(u, 0) for u in UNITS}, cost) for n in window
    ]
    compare("batch_ms", median([ours[n]["batch_ms"] for n in window]), median(times))
    return {"cost_ms": cost, "rows": rows}


def plan(arguments: argparse.Namespace) -> dict[str, Any]:
    """One shard of many at the wanted rate, and what all of them need."""
    seconds = arguments.live / arguments.rate
    batch_s = min(arguments.trigger_s, seconds / 32)
    load = load_of(
        rows=round(arguments.rate * batch_s / arguments.shards),
        batch_ms=round(batch_s * 1000),
        horizon_ms=round(seconds * 1000),
    )
    per_horizon = load.batches_per_horizon
    figures = simulate(load, round(1.5 * per_horizon))
    steady = figures[-per_horizon // 2 :]
    cost = json.loads((FOLDER / "simulate-check.json").read_text())["cost_ms"]

    def mean(name: str) -> float:
        return float(np.mean([figure.get(name, 0) for figure in steady]))

    batches_a_day = 86_400 / batch_s
    # Costs are per unit over two cores at once.
    work_ms = [2 * predicted_ms(f, {**cost, "fixed": 0.0}) for f in steady]
    return {
        "live_ids": arguments.live,
        "records_per_s": arguments.rate,
        "shards": arguments.shards,
        "horizon_s": seconds,
        "batch_s": batch_s,
        "rows_per_shard_and_batch": load.rows,
        "per shard": {
            "live_ids": steady[-1]["live_ids"],
            "segments": mean("segments"),
            "segments that an ID may be in": max(f["depth"] for f in steady),
            "state_bytes, most": max(f["state_bytes"] for f in steady),
            "segment_bytes": mean("segment_bytes"),
            "sidecar_bytes": mean("sidecar_bytes"),
            "filter bytes read per micro-batch": mean("filter_bytes_read"),
            "blocks read per micro-batch": mean("blocks_read"),
        },
        "all shards": {
            "catalog_bytes": arguments.shards * (mean("segment_bytes") + mean("sidecar_bytes")),
            "times an ID is written": mean("ids_written") / mean("unique"),
            "bytes written per s": arguments.shards * mean("bytes_written") / batch_s,
            "PUTs a day": arguments.shards * mean("puts") * batches_a_day,
            "DELETEs a day": arguments.shards * mean("deletes") * batches_a_day,
            "checkpoint bytes per micro-batch": arguments.shards * mean("state_bytes"),
            "cores busy": arguments.shards * float(np.mean(work_ms)) / 1000 / batch_s,
            "cores busy in the longest micro-batch": arguments.shards
            * max(work_ms)
            / 1000
            / batch_s,
        },
        "bytes fetched when a shard moves": {
            "sidecars": mean("sidecar_bytes"),
            "segments that are looked into": mean("segment_bytes"),
        },
    }


def table(result: dict[str, Any]) -> str:
    """Either result, for reading."""
    if "rows" in result:
        lines = [f"{'at 10 M live IDs':24}{'measured':>14}{'simulated':>14}{'ratio':>8}"]
        lines += [
            f"{r['figure']:24}{r['measured']:14.0f}{r['simulated']:14.0f}{r['ratio']:8.2f}"
            for r in result["rows"]
        ]
        return "\n".join(lines)
    lines = []
    for name, value in result.items():
        if isinstance(value, dict):
            lines.append(name)
            lines += [f"  {key:44}{number:20,.1f}" for key, number in value.items()]
        else:
            lines.append(f"{name:46}{value:20,.1f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["check", "plan"])
    parser.add_argument("--live", type=float, default=1e9)
    parser.add_argument("--rate", type=float, default=1e6, help="records per second")
    parser.add_argument("--shards", type=int, default=256)
    parser.add_argument("--trigger-s", type=float, default=10)
    arguments = parser.parse_args()
    result = check(arguments) if arguments.what == "check" else plan(arguments)
    shards = f"-{arguments.shards}-shards" if arguments.what == "plan" else ""
    finish(f"simulate-{arguments.what}{shards}", result, table)


if __name__ == "__main__":
    main()
