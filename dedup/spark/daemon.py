"""Spark's Python daemon, with all loaded that our tasks need.

Spark starts a daemon on each machine and forks its Python workers from it. Its own daemon has
nothing loaded and finds PySpark in a zip file, whose code Python compiles anew in each process: a
new query's first micro-batch needs two workers per core, and each takes a second of CPU until its
first row. This daemon reads PySpark where it is unpacked and loads the rest once, before it forks.

Ask for it with ``spark.python.daemon.module=dedup.spark.daemon``. Every machine that runs tasks
then needs the package. All other Python of the session works as before. Where a library starts
threads, as numpy's does with ``spark.task.cpus`` above 1, Spark's own daemon takes over.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

#: What the three passes run.
_LOADED = ("dedup.spark.executor.pack", "dedup.spark.executor.group", "dedup.spark.executor.unpack")
#: Spark's own, for the process that takes over: the search path cannot travel in the environment,
#: where programs that a task starts would find it.
_INSTEAD = "import sys; sys.path[:] = {!r}; from pyspark.daemon import manager; manager()"


def main() -> None:
    """Load what tasks need, then be Spark's daemon."""
    sys.path[:] = unzipped(sys.path)
    # Else Arrow's second allocator starts a thread; it is not the one in use.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    # Spark's own workers, no others: who knows what those do before a fork.
    workers = [name for name in sys.argv[1:] if name.startswith("pyspark.")]
    with _nothing_printed():
        for name in (*workers, *_LOADED):
            with suppress(Exception):  # our tasks tell, and in better words
                import_module(name)
    if threads() > 1:
        # A fork takes only this thread along, and locks that others hold are never released.
        code = _INSTEAD.format(sys.path)
        os.execv(sys.executable, [sys.executable, "-c", code, *sys.argv[1:]])
    random = sys.modules.get("numpy.random")
    if random is not None:
        # Python's own generator is seeded anew in each process; numpy's would be the same in all.
        os.register_at_fork(after_in_child=random.seed)
    gc.collect()
    gc.freeze()
    import_module("pyspark.daemon").manager()


def unzipped(path: list[str]) -> list[str]:
    """Return Python's search path with the folder that Spark's zip file was made from in its place.

    Parameters
    ----------
    path : list of str
        As ``sys.path``. Where the folder comes next of all that hold PySpark, it keeps its place.
        A zip file whose folder is not to be found stays.
    """
    found = []
    for position, entry in enumerate(path):
        folder = _folder(Path(entry))
        if folder is None:
            found.append(entry)
        elif next(filter(_has_pyspark, path[position + 1 :]), None) != folder:
            found.append(folder)
    return found


def threads() -> int:
    """Count the threads of this process, those of libraries too; 1 where the system is silent."""
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
    """Lead what modules print elsewhere: Spark reads the daemon's address from its output."""
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
