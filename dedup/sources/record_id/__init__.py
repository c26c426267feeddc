"""Makes record IDs for records without an ID.

A record gets the same ID at every replay and on every machine.
"""

from __future__ import annotations

from dedup.errors.lazy import lazily

__getattr__, __dir__, __all__ = lazily(__name__)
