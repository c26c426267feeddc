"""De-duplicates streams in Spark Structured Streaming.

Within a horizon of time, each record ID passes exactly once.
"""

from __future__ import annotations

from dedup.core.version import VERSION as __version__  # noqa: F401, N811
from dedup.errors.lazy import lazily

__getattr__, __dir__, __all__ = lazily(__name__)
