"""Work of the catalog, for the metrics of one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(slots=True)
class Counters:
    """Work done for one shard since the last `take`.

    Parameters
    ----------
    lookups, keys_looked_up
        Calls of ``lookup``, and keys in them.
    catalog_reads, segments_read
        Segment blocks that lookups read; segments read whole.
    segments_written, bytes_written
        New segments, and bytes of their SSTs and sidecars.
    views_built, views_rebuilt
        Local views built, and how many of them replaced a missing or damaged one.
    bytes_fetched
        Bytes copied from the root (hard links copy none).
    filters_read, filters_rebuilt
        Sidecars probed; unusable sidecars that were rebuilt from their segment.
    """

    lookups: int = 0
    keys_looked_up: int = 0
    catalog_reads: int = 0
    segments_read: int = 0
    segments_written: int = 0
    bytes_written: int = 0
    segments_deleted: int = 0
    views_built: int = 0
    views_rebuilt: int = 0
    bytes_fetched: int = 0
    filters_read: int = 0
    filters_rebuilt: int = 0

    def take(self) -> Counters:
        """Return the counts so far and start again at 0."""
        taken = replace(self)
        for field in fields(self):
            setattr(self, field.name, 0)
        return taken
