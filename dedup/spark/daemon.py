"""Spark's Python daemon with our modules loaded.

Spark starts a daemon on each machine and forks its Python workers from the daemon. Spark's own
daemon has no modules loaded and finds PySpark in a zip file, which Python compiles in each process.
A new query's first micro-batch needs two workers per core, and each worker takes a second of CPU
until its first row. This daemon reads PySpark unzipped and loads all modules once, before it forks.
With `start_workers` it does so while the driver still plans the query.

Set ``spark.python.daemon.module=dedup.spark.daemon``. Then every machine that runs tasks needs the
package. Other Python code of the session works as before. If a library starts threads, as numpy
does with ``spark.task.cpus`` above 1, Spark's own daemon takes over.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

#: Modules of the three passes over a micro-batch, also from files to files.
_LOADED = (
    "dedup.spark.executor.pack",
    "dedup.spark.executor.group",
    "dedup.spark.executor.unpack",
    "dedup.sources.files.scan",
    "dedup.sinks.files.task_files",
)
#: Code that runs Spark's own daemon. The search path is in the code, because programs that a task
#: starts would inherit a path in the environment.
_INSTEAD = "import sys; sys.path[:] = {!r}; from pyspark.daemon import manager; manager()"


def main() -> None:
    """Load the modules that tasks need, then run Spark's daemon."""
    sys.path[:] = unzipped(sys.path)
    # Otherwise Arrow's second allocator starts a thread, although nothing uses that allocator.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    # Load only Spark's own worker module. Another worker module may do anything before a fork.
    workers = [name for name in sys.argv[1:] if name.startswith("pyspark.")]
    with _nothing_printed():
        for name in (*workers, *_LOADED):
            with suppress(Exception):  # our tasks report the error, in better words
                import_module(name)
    if threads() > 1:
        # A fork copies only this thread, so locks of other threads would never be released.
        code = _INSTEAD.format(sys.path)
        os.execv(sys.executable, [sys.executable, "-c", code, *sys.argv[1:]])
    random = sys.modules.get("numpy.random")
    if random is not None:
        # Python seeds its own generator in each process, but numpy's would be equal in all.
        os.register_at_fork(after_in_child=random.seed)
    gc.collect()
    gc.freeze()
    import_module("pyspark.daemon").manager()


def start_workers(spark: SparkSession) -> None:
    """Start the daemon and a worker per core in the background.

    Otherwise the first micro-batch waits for them, while the driver's planning leaves cores idle.
    """

    def start() -> None:
        with suppress(Exception):  # the session may end first; the query reports other errors
            cores = spark.sparkContext.defaultParallelism
            spark.range(cores, numPartitions=cores).mapInArrow(_no_rows, "id LONG").collect()

    Thread(target=start, name="dedup-workers", daemon=True).start()


def _no_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return iter(())


def unzipped(path: list[str]) -> list[str]:
    """Return a search path in which the unzipped folder of PySpark replaces Spark's zip file.

    If the folder is already the next entry with PySpark, it stays at its position. If we know no
    folder for a zip file, the zip file stays.
    """
    entries = []
    for position, entry in enumerate(path):
        folder = _folder(Path(entry))
        if folder is None:
            entries.append(entry)
        elif next(filter(_has_pyspark, path[position + 1 :]), None) != folder:
            entries.append(folder)
    return entries


def threads() -> int:
    """Count the threads of this process, or return 1 if the system does not show them."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


def _folder(entry: Path) -> str | None:
    if entry.name != "pyspark.zip":
        return None
    # <home>/python/lib/pyspark.zip: a download has <home>/python/pyspark, pip's <home> is pyspark.
    return next((str(f) for f in list(entry.parents)[1:4:2] if _has_pyspark(f)), None)


def _has_pyspark(folder: str | Path) -> bool:
    return Path(folder, "pyspark", "worker.py").is_file()


@contextmanager
def _nothing_printed() -> Iterator[None]:
    """Redirect what modules print. Spark reads the daemon's address from the daemon's output."""
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
        sys.stdout.flush()
    finally:
        os.dup2(output, 1)
        os.close(output)


if __name__ == "__main__":
    main()
