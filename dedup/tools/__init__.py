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

__getattr__, __dir__, __all__ = lazily(__name__)
