"""Spark's Python daemon, with all loaded that our tasks need.

Spark starts a daemon on each machine and forks its Python workers from it. Its own daemon has
nothing loaded and finds PySpark in a zip file, whose code Python compiles anew in each process: a
new query's first micro-batch needs two workers per core, and each takes a second of CPU until its
first row. This daemon reads PySpark where it is unpacked and loads the rest once, before it forks.

Ask for it with ``spark.python.daemon.module=dedup.spark.daemon``. Every machine that runs tasks
then needs the package. All other Python of the session works as before.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

#: What the three passes run.
_LOADED = ("dedup.spark.pack", "dedup.spark.group", "dedup.spark.unpack", "dedup.spark.worker")
_SPARKS_OWN = "pyspark.daemon"


def main() -> None:
    """Load what tasks need, then be Spark's daemon."""
    sys.path[:] = unzipped(sys.path)
    # Else Arrow's second allocator starts a thread; it is not the one in use.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    # Spark's own, as it is given: others may start threads, as may what a machine lacks.
    workers = [name for name in sys.argv[1:] if name.startswith("pyspark.")]
    with suppress(ImportError):  # the task tells, in better words
        for name in (*workers, *_LOADED):
            import_module(name)
        import_module("dedup.spark.worker").settle()
    if threads() > 1:
        # A fork takes only this thread along, and locks that others hold are never released.
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        os.execv(sys.executable, [sys.executable, "-m", _SPARKS_OWN, *sys.argv[1:]])
    import_module(_SPARKS_OWN).manager()


def unzipped(path: list[str]) -> list[str]:
    """Return Python's search path with the folder that Spark's zip file was made from in its place.

    Parameters
    ----------
    path : list of str
        As ``sys.path``. A folder that is in it keeps its place there. A zip file whose folder is
        not to be found stays.
    """
    found = []
    for entry in path:
        folder = _folder(Path(entry))
        if folder is None:
            found.append(entry)
        elif folder not in path:
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
    for folder in list(entry.parents)[1:4:2]:
        if (folder / "pyspark" / "worker.py").is_file():
            return str(folder)
    return None


if __name__ == "__main__":
    main()
