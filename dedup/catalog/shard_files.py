"""Paths of a shard's files at the root and in the local cache, and counts of work on the files."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from dedup.catalog.cache import LocalCache
from dedup.catalog.layout import shard_path
from dedup.core.sharding import derive_keys, filter_key_id
from dedup.storage.root import Root


@dataclass(slots=True)
class Counters:
    """Counts of the work done for one shard since the last `take`."""

    #: Segment blocks that lookups read.
    catalog_reads: int = 0
    #: Bytes of new segments and sidecars.
    bytes_written: int = 0
    #: Local views built. `views_rebuilt` counts those that replaced a missing or damaged view.
    views_built: int = 0
    views_rebuilt: int = 0
    #: Bytes copied from the root (hard links copy none).
    bytes_fetched: int = 0
    #: Unusable sidecars that were rebuilt from their segment.
    filters_rebuilt: int = 0

    def take(self) -> Counters:
        taken = replace(self)
        for counter in fields(self):
            setattr(self, counter.name, 0)
        return taken


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """The files of one shard, and what their readers and writers share."""

    #: Root that holds segments and sidecars.
    root: Root
    #: Cache of views, and of fetched and rebuilt files.
    cache: LocalCache
    query_id: str
    shard: int
    #: Secret in the certificate. The hash keys derive from this secret and the query ID.
    secret: bytes = field(default=b"", repr=False)
    #: Counts the work.
    counters: Counters = field(default_factory=Counters)

    @property
    def hash_key(self) -> bytes:
        """The 16-byte key of the hashes in filters and segments."""
        return derive_keys(self.query_id, self.secret)[1]

    @property
    def hash_key_id(self) -> int:
        """The ID of `hash_key`, which segments and sidecars store."""
        return filter_key_id(self.query_id, self.secret)

    def path(self, file: str) -> str:
        return shard_path(self.query_id, self.shard, file)

    def entry(self, file: str) -> Path:
        return self.cache.entry(self.shard, file)
