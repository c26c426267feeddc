"""What a Python worker keeps in memory between tasks: modules, and freed memory."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

#: Bytes that a worker may keep between tasks, besides its modules. A task of half a million rows
#: uses as much. A page that the worker returned costs 2 us when it is used again.
KEPT_BYTES = 160 << 20
#: Arrays below this size come from memory that the process keeps, not from separate mappings.
_MMAP_BYTES = 1 << 30
#: The same limit for older releases of glibc.
_MMAP_BYTES_BEFORE = 32 << 20

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Number of modules, and resident bytes, when the collector was last frozen.
_modules_frozen = 0
_settled_bytes = 0


def freeze_gc() -> None:
    """Exclude the objects of loaded modules from garbage collection.

    Spark's worker collects garbage after every task, six times in a micro-batch of two shards. With
    pandas, pyarrow and PySpark loaded, this takes 20 to 40 ms of CPU each time. Objects of modules
    stay alive anyway.
    """
    global _modules_frozen, _settled_bytes
    if not _modules_frozen:
        _keep_freed()
        # Spark's code causes this warning in each task if a column of counters is empty.
        warnings.filterwarnings(
            "ignore", "The behavior of DataFrame concatenation", FutureWarning, r"pyspark\."
        )
    if len(sys.modules) != _modules_frozen:
        _modules_frozen = len(sys.modules)
        gc.collect()
        gc.freeze()
        _release()
        _settled_bytes = _resident_bytes()


def release_memory() -> None:
    """Return freed memory to the system if the process holds more than `KEPT_BYTES`.

    Otherwise the C library would keep 150 MB in each idle worker after micro-batches of 1 M
    records. To return the memory takes 5 to 10 ms.
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
    """Return a function of glibc, or a function that does nothing if there is no glibc."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return lambda *_: 0
    return function


_trim = _libc("malloc_trim")
_set = _libc("mallopt")


def _keep_freed() -> None:
    """Let the C library reuse the memory of freed arrays, even in later tasks."""
    trim_threshold, mmap_threshold = -1, -3  # malloc.h
    if _set(mmap_threshold, _MMAP_BYTES) or _set(mmap_threshold, _MMAP_BYTES_BEFORE):
        _set(trim_threshold, KEPT_BYTES)
