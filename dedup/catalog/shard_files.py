"""Where one shard's files are: at the root, and in the local cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dedup.catalog.cache import LocalCache
from dedup.catalog.counters import Counters
from dedup.catalog.layout import shard_path
from dedup.catalog.root import Root
from dedup.core.sharding import derive_keys, filter_key_id


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """The files of one shard, and what their readers and writers need besides.

    Parameters
    ----------
    root
        Holds segments and sidecars.
    cache
        Holds views, and fetched and rebuilt files.
    secret
        The certificate's; hash keys derive from it and the query ID.
    counters
        Counts the work.
    """

    root: Root
    cache: LocalCache
    query_id: str
    shard: int
    secret: bytes = field(default=b"", repr=False)
    counters: Counters = field(default_factory=Counters)

    @property
    def hash_key(self) -> bytes:
        """The 16-byte key of the hashes in filters and segments."""
        return derive_keys(self.query_id, self.secret)[1]

    @property
    def hash_key_id(self) -> int:
        """The ID of that key, as segments and sidecars hold it."""
        return filter_key_id(self.query_id, self.secret)

    def path(self, file: str) -> str:
        """Return the name of a file at the root."""
        return shard_path(self.query_id, self.shard, file)

    def entry(self, file: str) -> Path:
        """Return the path of a file, or of a view, in the local cache."""
        return self.cache.entry(self.shard, file)
