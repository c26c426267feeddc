"""The Python process that a task runs in; Spark keeps it for later tasks."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

#: Memory that a worker may keep between tasks, above what its modules take.
KEPT_BYTES = 32 << 20

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Modules loaded when the collector was last told, and resident memory then.
_known = 0
_settled_bytes = 0


def settle() -> None:
    """Keep the garbage collector from going through what modules hold, again and again.

    Spark's worker collects after every task: 20 to 40 ms of CPU with pandas, pyarrow and PySpark
    loaded, six times in a micro-batch of two shards. What is alive once modules were loaded stays
    alive, so the collector need not look at it. It works as before for all that comes after.
    """
    global _known, _settled_bytes
    if len(sys.modules) != _known:
        _known = len(sys.modules)
        gc.collect()
        gc.freeze()
        _settled_bytes = _resident_bytes()


def give_back() -> None:
    """Return memory that the task has freed to the system, where it is much.

    The C library keeps it otherwise: 150 MB in each of several idle workers, after micro-batches
    of 1 M records, that no other process on the machine can use. Costs 5 to 10 ms then.
    """
    if _resident_bytes() > _settled_bytes + KEPT_BYTES:
        pa.default_memory_pool().release_unused()
        _trim()


def _resident_bytes() -> int:
    with suppress(OSError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
    return 0


def _find_trim() -> Callable[[], object]:
    try:
        trim = ctypes.CDLL(None).malloc_trim  # glibc only
    except (AttributeError, OSError, TypeError):
        return lambda: None
    return lambda: trim(0)


_trim = _find_trim()
