"""A start with a cold local cache: what the first micro-batches fetch and build, and their time.

A catalog is built through the real operator, once on a local root and once in an S3 store
(moto's server on this machine, without a network in between). Then the query starts again
twice, in a new JVM: with its local cache, and after that was lost. The difference is what the
loss of an executor's disk costs.

    python -m benchmarks.cold --live 4
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contenders import catalog_beside, operator
from benchmarks.events import Events
from benchmarks.harness import (
    HORIZON,
    Pipeline,
    data_folder,
    drop_page_cache,
    filling,
    parser,
    session,
    work_folder,
)
from benchmarks.results import finish
from tests.support.object_store import running_store, s3_factory

#: Micro-batches that are looked at after a start.
AFTER = 3
#: Figures of `BatchMetrics` that are kept of each.
FIGURES = (
    "live_ids", "segments", "segment_bytes", "sidecar_bytes", "bytes_fetched", "views_built",
    "filters_rebuilt", "catalog_reads", "stage_us",
)  # fmt: skip

Catalog = Callable[[Path], Any]


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Build, start warm and start cold on each root; all figures."""
    events, batches = filling(arguments.live, arguments.rows, arguments.duplicates)
    data = data_folder(arguments.data, events)
    result: dict[str, Any] = {
        "rows_per_batch": events.rows,
        "duplicates": events.duplicates,
        "horizon": HORIZON,
        "batch_event_ms": events.batch_ms,
        "roots": {},
    }
    with work_folder(arguments) as work, running_store(work / "store.log") as store:
        roots: dict[str, Catalog] = {
            "local": catalog_beside,
            "S3": lambda folder: s3_factory(store.endpoint, "cold"),
        }
        for name, catalog in roots.items():
            result["roots"][name] = one_root(
                catalog, work / name, events, data, batches, arguments.driver_memory
            )
    return result


def one_root(
    catalog: Catalog, folder: Path, events: Events, data: Path, batches: int, memory: str
) -> dict[str, Any]:
    """Three starts of one query: to build, with its cache, and without."""
    fed, figures = 0, {}
    for start, count in (("build", batches + 1), ("warm", AFTER), ("cold", AFTER)):
        if start == "cold":
            lose(folder / "cache")
        with session(driver_memory=memory) as spark:
            pipeline = Pipeline(start, operator(catalog))
            pipeline.start(spark, folder)
            for number in range(fed, fed + count):
                pipeline.feed(events.write(data, number))
                print(f"{folder.name} {start} {pipeline.batch_ms[-1]} ms", file=sys.stderr)
            pipeline.stop()
        fed += count
        figures[start] = [
            {"batch_ms": ms, **{name: getattr(metrics, name) for name in FIGURES}}
            for ms, metrics in zip(pipeline.batch_ms, pipeline.metrics, strict=True)
        ]
    return figures


def lose(cache: Path) -> None:
    """The local disk is gone, and with it what the system remembers of files, if it lets us."""
    assert any(cache.glob("dedup-cache-*/*/shard=*/*")), "the cache was never warm"
    shutil.rmtree(cache)
    drop_page_cache()


def table(result: dict[str, Any]) -> str:
    """The first micro-batches of each start."""
    lines = [
        f"{'root':<7}{'start':<6}{'micro-batch':>12}{'ms':>8}{'fetched MB':>12}"
        f"{'views built':>13}{'live IDs':>12}{'catalog MB':>12}"
    ]
    for root, starts in result["roots"].items():
        for start in ("warm", "cold"):
            for number, batch in enumerate(starts[start], 1):
                lines.append(
                    f"{root:<7}{start:<6}{number:>12}{batch['batch_ms']:>8}"
                    f"{batch['bytes_fetched'] / 1e6:>12.1f}{batch['views_built']:>13}"
                    f"{batch['live_ids']:>12,}"
                    f"{(batch['segment_bytes'] + batch['sidecar_bytes']) / 1e6:>12.1f}"
                )
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, rows=500_000, driver_memory="4g", name="cold")
    options.add_argument("--live", type=float, default=4, help="million IDs")
    arguments = options.parse_args()
    finish(arguments.name, run(arguments), table)


if __name__ == "__main__":
    main()
