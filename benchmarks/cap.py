"""`max_live_ids`: what a query with too many IDs costs, against one whose horizon fits as many.

Both are fed in turn micro-batches of which a horizon would hold three times the cap. The other
query's horizon is so short that it remembers about as many IDs without a cap. Then each is fed in a
separate session, because the queries of a session share their Python workers, whose memory is
measured.

    python -m benchmarks.cap
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks.contenders import operator
from benchmarks.harness import (
    HORIZON_MS,
    Pipeline,
    filling,
    parser,
    session,
    side_by_side,
    work_folder,
)
from benchmarks.memory import Sampler, usage
from benchmarks.partitions import feed
from benchmarks.results import finish, median

#: How many times the cap a horizon would hold.
SPIKE = 3
#: Micro-batches that fill both, and those that are compared.
FILL, COMPARED = 12, 16


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Times, live IDs and memory of both queries, by micro-batch."""
    most = round(arguments.cap * 1e6)
    found: dict[str, Any] = {"rows_per_batch": arguments.rows, "cap": most, "fill": FILL}
    together = pipelines(most)
    fed(arguments, *together)
    for pipeline in together:
        metrics = [one for one in pipeline.metrics if one is not None]
        found[pipeline.name] = {
            "batch_ms": pipeline.batch_ms,
            "live_ids": [one.live_ids for one in metrics],
            "stored_bytes": [one.stored_bytes for one in metrics],
            "kept_ms": [one.horizon_kept_ms for one in metrics],
        }
    for pipeline in pipelines(most):
        while usage("workers")["workers"].processes:  # of the last session
            time.sleep(0.1)
        with Sampler() as sampler:
            fed(arguments, pipeline)
        found[pipeline.name]["peak_bytes"] = [sampler.peak.own_bytes]
    return found


def pipelines(most: int) -> list[Pipeline]:
    """The query with a cap, and the one with a short horizon."""
    capped = Pipeline("capped", operator(max_live_ids=most, lateness="0 seconds"))
    # A capped query holds the cap minus half a bucket on the average.
    share = (1 - SPIKE / 16) / SPIKE
    short = f"{round(HORIZON_MS * share)} milliseconds"
    return [capped, Pipeline("short", operator(horizon=short, lateness="0 seconds"))]


def fed(arguments: argparse.Namespace, *queries: Pipeline) -> None:
    """Feed all micro-batches to the queries, in a separate session."""
    events, _ = filling(SPIKE * arguments.cap, arguments.rows)
    with (
        work_folder(arguments) as work,
        session(driver_memory="1g") as spark,
        side_by_side(spark, [*queries], work),
    ):
        feed([*queries], events, range(FILL + COMPARED), arguments.data)


def table(result: dict[str, Any]) -> str:
    """A line for each query, and the ratios."""
    lines = [f"{'':8}{'ms':>8}{'live IDs':>12}{'most':>12}{'MB':>8}{'peak MB':>9}"]
    middle = {}
    for name in ("capped", "short"):
        own = {key: values[result["fill"] :] for key, values in result[name].items()}
        middle[name] = [median(own[key]) for key in ("batch_ms", "live_ids", "stored_bytes")]
        middle[name] += result[name]["peak_bytes"]
        ms, live, stored, peak = middle[name]
        most = max(own["live_ids"])
        lines.append(
            f"{name:8}{ms:8.0f}{live:12,.0f}{most:12,}{stored / 1e6:8.0f}{peak / 1e6:9.0f}"
        )
    ratios = [a / b for a, b in zip(middle["capped"], middle["short"], strict=True)]
    return "\n".join([*lines, "ratios  " + "".join(f"{ratio:9.2f}" for ratio in ratios)])


def main() -> None:
    options = parser(__doc__, name="cap", rows=300_000)
    options.add_argument("--cap", type=float, default=2.0, help="millions of IDs")
    arguments = options.parse_args()
    finish(arguments.name, run(arguments), table)


if __name__ == "__main__":
    main()
