"""The Python process that a task runs in; Spark keeps it for later tasks."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

#: Memory that a worker may keep between tasks, above what its modules take: what a task over half
#: a million rows goes through. Pages that were given back cost 2 us each when touched again.
KEPT_BYTES = 160 << 20
#: Arrays below this size come from memory that is kept, not from pages of their own.
_MMAP_BYTES = 1 << 30
#: The most that an older glibc takes.
_MMAP_BYTES_BEFORE = 32 << 20

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Modules loaded when the collector was last frozen, and resident memory then.
_modules_frozen = 0
_settled_bytes = 0


def freeze_gc() -> None:
    """Keep the garbage collector from going through what modules hold, again and again.

    Spark's worker collects after every task: 20 to 40 ms of CPU with pandas, pyarrow and PySpark
    loaded, six times in a micro-batch of two shards. What is alive once modules were loaded stays
    alive, so the collector need not look at it. It works as before for all that comes after.
    """
    global _modules_frozen, _settled_bytes
    if not _modules_frozen:
        _keep_freed()
        # Of Spark's own code, for each task, wherever a column of counters holds no value.
        warnings.filterwarnings(
            "ignore", "The behavior of DataFrame concatenation", FutureWarning, r"pyspark\.worker"
        )
    if len(sys.modules) != _modules_frozen:
        _modules_frozen = len(sys.modules)
        gc.collect()
        gc.freeze()
        _release()
        _settled_bytes = _resident_bytes()


def release_memory() -> None:
    """Return memory that the task has freed to the system, where it is much.

    The C library keeps it otherwise: 150 MB in each of several idle workers, after micro-batches
    of 1 M records, that no other process on the machine can use. Costs 5 to 10 ms then.
    """
    if _resident_bytes() > _settled_bytes + KEPT_BYTES:
        _release()


def _release() -> None:
    pa.default_memory_pool().release_unused()
    _trim(0)


def _resident_bytes() -> int:
    with suppress(OSError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
    return 0


def _libc(name: str) -> Callable[..., int]:
    """Return a function of the C library that only glibc has; elsewhere one that does nothing."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return lambda *_: 0
    return function


_trim = _libc("malloc_trim")
_set = _libc("mallopt")


def _keep_freed() -> None:
    """Have the C library reuse the memory of freed arrays within a task and from task to task."""
    trim_threshold, mmap_threshold = -1, -3  # malloc.h
    if _set(mmap_threshold, _MMAP_BYTES) or _set(mmap_threshold, _MMAP_BYTES_BEFORE):
        _set(trim_threshold, KEPT_BYTES)
