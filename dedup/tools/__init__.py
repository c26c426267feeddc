"""Tools around a query: tune it, watch it, check it, and repair its catalog.

`dedup catalog`, `sink`, `explain` and `tune` print what these functions return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup.errors.lazy import lazily

if TYPE_CHECKING:
    from dedup.tools.api import (
        TuneOptions,
        accept_loss,
        adopt,
        explain,
        inspect,
        inspect_files,
        inspect_format,
        inspect_sink,
        read_checkpoint,
        read_sample,
        tune,
        vacuum,
        verify,
    )

__all__ = [
    "TuneOptions", "accept_loss", "adopt", "explain", "inspect", "inspect_files", "inspect_format",
    "inspect_sink", "read_checkpoint", "read_sample", "tune", "vacuum", "verify",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__, __all__, {"dedup.tools.api": " ".join(__all__)})
