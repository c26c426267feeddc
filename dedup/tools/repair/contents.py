"""Inspect a catalog: the shards, segments and files of each query.

Only Spark's state says for certain which segments are live. Without a checkpoint, the answer comes
from manifest backups in the catalog, which may be old. The *standing* of a segment says whether the
query still needs the segment.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dedup.catalog.backup import read_backup
from dedup.catalog.certificate import Certificate, load_certificate
from dedup.catalog.gc.sweep import Named
from dedup.catalog.layout import CatalogFile, catalog_files
from dedup.core.clocks import known_ms
from dedup.core.segment import SegmentRef
from dedup.core.state import ShardState
from dedup.storage.root import Root
from dedup.tools.repair.opening import (
    Checkpoint,
    Snapshot,
    Where,
    open_root,
    queries_in,
    snapshot_of,
)
from dedup.values.duration import iso

#: Standings of a segment if a checkpoint is given. The manifest names a live segment. An expired
#: segment waits for its deletion. No manifest ever named an orphan. Somebody accepted the loss of
#: a damaged segment, and the manifest no longer names it.
LIVE, EXPIRED, ORPHAN, LOSS_ACCEPTED = "live", "expired", "orphan", "loss accepted"
#: Standings without a checkpoint. The manifest backup names a listed segment, and no unknown
#: segment. With a checkpoint, a segment is unknown if the list of expired segments cannot be read.
LISTED, UNKNOWN = "listed", "unknown"


@dataclass(frozen=True, slots=True)
class QueryMemory:
    """The shards of a query. `certain` says that they come from Spark state, not from backups."""

    certain: bool
    shards: Mapping[int, ShardState]

    @property
    def as_of(self) -> str:
        """Text that says which micro-batch or which backups the shards come from."""
        newest = max((shard.epoch for shard in self.shards.values()), default=-1)
        if self.certain:
            return f"batch {newest}"
        if not self.shards:
            return "unknown: give --checkpoint"
        return f"batch {newest} by the manifest backups, tail unknown: give --checkpoint"

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "shard": number,
                "epoch": state.epoch,
                "buckets": len(state.manifest.buckets),
                "segments": sum(1 for _ in state.manifest.segments()),
                "expired": state.manifest.pending,
                "segment_ids": state.manifest.ids,
                "tail_ids": len(state.tail) if self.certain else None,
                "gc_watermark": iso(known_ms(state.clocks.gc_watermark_ms)),
            }
            for number, state in sorted(self.shards.items())
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment that the catalog or a manifest names."""

    query_id: str
    shard: int
    name: str
    #: ``live``, ``expired``, ``loss accepted``, ``orphan`` or ``unknown``. Without a checkpoint,
    #: the standing is ``listed`` or ``unknown``.
    standing: str
    #: The manifest's entry for a live or listed segment, else None.
    ref: SegmentRef | None
    #: Sizes of segment and sidecar, or None if the file is missing.
    sst_bytes: int | None
    filter_bytes: int | None
    loss_accepted: bool

    @property
    def missing(self) -> bool:
        """Whether the query may need a file of the segment that is missing."""
        absent = self.sst_bytes is None or self.filter_bytes is None
        return self.standing in (LIVE, LISTED) and absent

    def to_json(self) -> dict[str, Any]:
        return {
            "query_id": self.query_id,
            "shard": self.shard,
            "segment": self.name,
            "standing": self.standing,
            "ids": self.ref.count if self.ref else None,
            "start": iso(self.ref.start_ms) if self.ref else None,
            "end": iso(self.ref.end_ms) if self.ref else None,
            "sst_bytes": self.sst_bytes,
            "filter_bytes": self.filter_bytes,
            "missing": self.missing,
            "loss_accepted": self.loss_accepted,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryContents:
    """The part of a catalog that belongs to one query. A missing `certificate` is None."""

    query_id: str
    certificate: Certificate | None
    memory: QueryMemory
    files: tuple[CatalogFile, ...]
    segments: tuple[Segment, ...]

    def to_json(self) -> dict[str, Any]:
        kinds: dict[str, dict[str, int]] = {}
        for file in self.files:
            kind = kinds.setdefault(file.parsed.kind, {"files": 0, "bytes": 0})
            kind["files"] += 1
            kind["bytes"] += file.size_bytes
        born = self.certificate
        return {
            "query_id": self.query_id,
            "as_of": self.memory.as_of,
            "id": [f"{name} {kind}" for name, kind in born.id_columns] if born else [],
            "timestamp": born.timestamp_source if born else None,
            "shards": born.shards if born else None,
            "files": kinds,
            "segments": dict(Counter(segment.standing for segment in self.segments)),
            "missing": sum(segment.missing for segment in self.segments),
            "accepted_losses": sum(segment.loss_accepted for segment in self.segments),
            "state": self.memory.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The contents of a catalog, and the number of files that this library did not write."""

    root: str
    queries: tuple[QueryContents, ...]
    foreign_files: int

    @property
    def segments(self) -> Iterator[Segment]:
        return (segment for query in self.queries for segment in query.segments)

    def to_json(self) -> dict[str, Any]:
        return {
            "root": self.root,
            "foreign_files": self.foreign_files,
            "queries": [query.to_json() for query in self.queries],
            "segments": [segment.to_json() for segment in self.segments],
        }


def inspect(
    root: Where, checkpoint: Checkpoint | None = None, query: str | None = None
) -> Inspection:
    """Return the contents of a catalog: the shards and segments of all queries, or of one query.

    Parameters
    ----------
    root
        The catalog.
    checkpoint : optional
        Checkpoint of a query. Needed to know which segments are live.
    query : str, optional
        ID of the only query to return. Default: all queries.

    Raises
    ------
    ConfigError
        If the catalog or the checkpoint does not exist.
    CatalogError
        If the catalog cannot be read.
    """
    root = open_root(root)
    snapshot = snapshot_of(root, checkpoint)
    files = catalog_files(root, query or "")
    queries = []
    for query_id in queries_in(files):
        memory = memory_of(root, query_id, snapshot)
        queries.append(
            QueryContents(
                query_id=query_id,
                certificate=load_certificate(root, query_id),
                memory=memory,
                files=tuple(file for file in files if file.parsed.query_id == query_id),
                segments=tuple(segments_of(root, query_id, memory, files)),
            )
        )
    foreign = sum(file.parsed.kind == "foreign" for file in files)
    return Inspection(root=root.url(), queries=tuple(queries), foreign_files=foreign)


def memory_of(root: Root, query_id: str, snapshot: Snapshot | None) -> QueryMemory:
    """Return a query's shards, from backups unless `snapshot` is of this query."""
    if snapshot is not None and snapshot.query_id == query_id:
        return QueryMemory(True, snapshot.states)
    certificate = load_certificate(root, query_id)
    numbers = range(certificate.shards if certificate else 0)
    backups = {number: read_backup(root, query_id, number) for number in numbers}
    return QueryMemory(False, {n: state for n, state in backups.items() if state is not None})


def segments_of(
    root: Root, query_id: str, memory: QueryMemory, files: Sequence[CatalogFile]
) -> list[Segment]:
    sizes: dict[tuple[int, str], dict[str, int]] = defaultdict(dict)
    for file in files:
        parsed = file.parsed
        if parsed.query_id == query_id and parsed.shard is not None and parsed.segment is not None:
            sizes[parsed.shard, parsed.segment][parsed.kind] = file.size_bytes
    live = {
        (number, ref.name): ref
        for number, shard in memory.shards.items()
        for ref in shard.manifest.segments()
    }
    named = {
        number: Named.by(root, query_id, number, shard.manifest)
        for number, shard in memory.shards.items()
        if memory.certain
    }
    segments = []
    for key in sorted({*sizes, *live}):
        kinds = sizes.get(key, {})
        if not kinds.keys() & {"segment", "sidecar"} and key not in live:
            continue
        accepted = "accepted_loss" in kinds
        known = named.get(key[0])
        if key in live:
            standing = LIVE if memory.certain else LISTED
        elif known is None:
            standing = ORPHAN if memory.certain else UNKNOWN
        elif key[1] in known.pending:
            standing = EXPIRED
        elif accepted:
            standing = LOSS_ACCEPTED
        else:
            standing = ORPHAN if known.complete else UNKNOWN
        segments.append(
            Segment(
                query_id=query_id,
                shard=key[0],
                name=key[1],
                standing=standing,
                ref=live.get(key),
                sst_bytes=kinds.get("segment"),
                filter_bytes=kinds.get("sidecar"),
                loss_accepted=accepted,
            )
        )
    return segments
