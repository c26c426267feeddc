"""Tools around a query: tune it, watch it, check it, and repair its catalog.

The commands `dedup catalog`, `dedup sink`, `dedup explain` and `dedup tune` print what these
functions return. The method `to_json` of a result returns the object that the command prints with
``--json``, except for the exit code.

A catalog is given by its path, its URI, or a function that returns its file system, as in
`dedup_by_id`. A checkpoint is given by its path, or by the result of `read_checkpoint`, which
several calls can share. A path is read in the active Spark session, or in a new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup.errors.lazy import lazily

if TYPE_CHECKING:
    from dedup.sinks.formats import inspect_format
    from dedup.tools.repair.adopt import adopt
    from dedup.tools.repair.contents import inspect
    from dedup.tools.repair.damage import accept_loss, verify
    from dedup.tools.repair.explain import explain
    from dedup.tools.repair.opening import read_checkpoint
    from dedup.tools.repair.vacuum import vacuum
    from dedup.tools.sink_state import inspect_files, inspect_sink
    from dedup.tools.tuning.options import TuneOptions
    from dedup.tools.tuning.sample import read_sample
    from dedup.tools.tuning.tune import tune

__all__ = [
    "TuneOptions", "accept_loss", "adopt", "explain", "inspect", "inspect_files", "inspect_format",
    "inspect_sink", "read_checkpoint", "read_sample", "tune", "vacuum", "verify",
]  # fmt: skip

__getattr__, __dir__ = lazily(
    __name__,
    __all__,
    {
        "dedup.sinks.formats": "inspect_format",
        "dedup.tools.repair.adopt": "adopt",
        "dedup.tools.repair.contents": "inspect",
        "dedup.tools.repair.damage": "accept_loss verify",
        "dedup.tools.repair.explain": "explain",
        "dedup.tools.repair.opening": "read_checkpoint",
        "dedup.tools.repair.vacuum": "vacuum",
        "dedup.tools.sink_state": "inspect_files inspect_sink",
        "dedup.tools.tuning.options": "TuneOptions",
        "dedup.tools.tuning.sample": "read_sample",
        "dedup.tools.tuning.tune": "tune",
    },
)
