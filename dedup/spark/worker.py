"""The Python process that a task runs in; Spark keeps it for later tasks."""

from __future__ import annotations

import gc
import sys

#: Modules loaded when the collector was last told.
_known = 0


def settle() -> None:
    """Keep the garbage collector from going through what modules hold, again and again.

    Spark's worker collects after every task: 20 to 40 ms of CPU with pandas, pyarrow and PySpark
    loaded, six times in a micro-batch of two shards. What is alive once modules were loaded stays
    alive, so the collector need not look at it. It works as before for all that comes after.
    """
    global _known
    if len(sys.modules) != _known:
        _known = len(sys.modules)
        gc.collect()
        gc.freeze()
