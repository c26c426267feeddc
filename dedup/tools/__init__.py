"""Tools around a query: tune it, watch it, check it, and repair its catalog.

The commands `dedup catalog`, `dedup sink`, `dedup explain` and `dedup tune` print what these
functions return. The method `to_json` of a result returns the object that the command prints with
``--json``, except for the exit code.

A catalog is given by its path, its URI, or a function that returns its file system, as in
`dedup_by_id`. A checkpoint is given by its path, or by the result of `read_checkpoint`, which
several calls can share. A path is read in the active Spark session, or in a new one.
"""

from __future__ import annotations

from dedup.errors.lazy import lazily

__all__ = [
    "ExponentialDelay",
    "FailureRate",
    "FixedDelay",
    "TuneOptions",
    "accept_loss",
    "adopt",
    "bootstrap",
    "builtin_state",
    "check_platform",
    "explain",
    "inspect",
    "inspect_output",
    "live",
    "read_checkpoint",
    "read_sample",
    "rebuild",
    "reopen",
    "rescale",
    "run_with_restarts",
    "tune",
    "vacuum",
    "verify",
]

_HOMES = {
    "ExponentialDelay": "dedup.tools.restarts",
    "FailureRate": "dedup.tools.restarts",
    "FixedDelay": "dedup.tools.restarts",
    "TuneOptions": "dedup.tools.tuning.options",
    "accept_loss": "dedup.tools.repair.damage",
    "adopt": "dedup.tools.repair.adopt",
    "bootstrap": "dedup.tools.repair.bootstrap",
    "builtin_state": "dedup.tools.repair.builtin_state",
    "check_platform": "dedup.tools.check.platform",
    "explain": "dedup.tools.repair.explain",
    "inspect": "dedup.tools.repair.contents",
    "inspect_output": "dedup.sinks.formats",
    "live": "dedup.tools.watch.live",
    "read_checkpoint": "dedup.tools.repair.opening",
    "read_sample": "dedup.tools.tuning.sample",
    "rebuild": "dedup.tools.repair.rebuild",
    "reopen": "dedup.tools.repair.rebuild",
    "rescale": "dedup.tools.repair.rescale",
    "run_with_restarts": "dedup.tools.restarts",
    "tune": "dedup.tools.tuning.tune",
    "vacuum": "dedup.tools.repair.vacuum",
    "verify": "dedup.tools.repair.damage",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
