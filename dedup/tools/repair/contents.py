"""What a catalog holds: by its queries' Spark state for certain, or by their manifest backups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dedup.catalog.backup import read_backup
from dedup.catalog.certificate import load_certificate
from dedup.catalog.gc.sweep import Named
from dedup.catalog.listing import CatalogFile
from dedup.catalog.root import Root
from dedup.core.clocks import known_ms
from dedup.core.duration import iso
from dedup.core.manifest import Manifest
from dedup.core.segment import SegmentRef
from dedup.core.state import ShardState

#: What becomes of a segment; only the manifest in Spark state tells for certain.
LIVE, EXPIRED, ORPHAN, GIVEN_UP = "live", "expired", "orphan", "loss accepted"
#: Without a checkpoint: the manifest backup names it, or does not. With one: what would tell
#: whether it is expired cannot be read.
LISTED, UNKNOWN = "listed", "unknown"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A query's memory as of its last committed micro-batch.

    Parameters
    ----------
    query_id : str
    states : dict of shard to ShardState
    read_ms : int
        When it was read, by this machine's clock: what it does not name may be newer.
    """

    query_id: str
    states: dict[int, ShardState]
    read_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A shard as of a micro-batch.

    Parameters
    ----------
    epoch : int
        The micro-batch.
    manifest : Manifest
        Its segments.
    tail_ids : int or None
        IDs in Spark state; None where only the manifest backup was read.
    gc_watermark_ms : int or None
        None before the first.
    """

    epoch: int
    manifest: Manifest
    tail_ids: int | None = None
    gc_watermark_ms: int | None = None

    def to_json(self, number: int) -> dict[str, Any]:
        """Return plain values, under a number."""
        return {
            "shard": number,
            "epoch": self.epoch,
            "buckets": len(self.manifest.buckets),
            "segments": sum(1 for _ in self.manifest.segments()),
            "expired": self.manifest.pending,
            "segment_ids": self.manifest.ids,
            "tail_ids": self.tail_ids,
            "gc_watermark": iso(self.gc_watermark_ms),
        }


@dataclass(frozen=True, slots=True)
class QueryMemory:
    """The shards of one query, and whether Spark state told of them."""

    certain: bool
    shards: Mapping[int, Shard]

    @property
    def as_of(self) -> str:
        """What the answers rest on."""
        if self.certain:
            return f"batch {max((s.epoch for s in self.shards.values()), default=-1)}"
        if not self.shards:
            return "unknown: give --checkpoint"
        newest = max(shard.epoch for shard in self.shards.values())
        return f"batch {newest} by the manifest backups, tail unknown: give --checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment that the catalog or a manifest names.

    Parameters
    ----------
    query_id, shard, name
        Where it is.
    standing : str
        `LIVE`, `EXPIRED` (waits for its deletion), `GIVEN_UP` (no manifest names it since its loss
        was accepted), `ORPHAN` (no manifest ever named it), or `UNKNOWN`; without a checkpoint
        `LISTED` or `UNKNOWN`.
    ref : SegmentRef or None
        What the manifest says of a live or listed one.
    sst_bytes, filter_bytes : int or None
        Sizes found; None where the file is missing.
    loss_accepted : bool
        Its loss was accepted.
    """

    query_id: str
    shard: int
    name: str
    standing: str
    ref: SegmentRef | None
    sst_bytes: int | None
    filter_bytes: int | None
    loss_accepted: bool

    @property
    def missing(self) -> bool:
        """A file that the query may need is not there."""
        absent = self.sst_bytes is None or self.filter_bytes is None
        return self.standing in (LIVE, LISTED) and absent

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
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


def memory_of(root: Root, query_id: str, known: Snapshot | None) -> QueryMemory:
    """Return what is known of a query: `known` where it is the same query, else by its backups."""
    if known is not None and known.query_id == query_id:
        return QueryMemory(
            certain=True,
            shards={
                number: Shard(
                    epoch=state.epoch,
                    manifest=state.manifest,
                    tail_ids=len(state.tail),
                    gc_watermark_ms=known_ms(state.clocks.gc_watermark_ms),
                )
                for number, state in known.states.items()
            },
        )
    certificate = load_certificate(root, query_id)
    shards = {}
    for number in range(certificate.shards if certificate else 0):
        backup = read_backup(root, query_id, number)
        if backup is not None:
            shards[number] = Shard(
                epoch=backup.epoch,
                manifest=backup.manifest,
                gc_watermark_ms=known_ms(backup.clocks.gc_watermark_ms),
            )
    return QueryMemory(certain=False, shards=shards)


def segments_of(
    root: Root, query_id: str, memory: QueryMemory, files: list[CatalogFile]
) -> list[Segment]:
    """List a query's segments, those included that only a manifest names."""
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
    found = []
    for key in sorted({*sizes, *live}):
        kinds = sizes.get(key, {})
        if not kinds.keys() & {"segment", "sidecar"} and key not in live:
            continue
        accepted = "accepted_loss" in kinds
        if key in live:
            standing = LIVE if memory.certain else LISTED
        elif key[0] in named:
            standing = _standing(named[key[0]], key[1], accepted=accepted)
        else:
            standing = UNKNOWN if not memory.certain else ORPHAN
        found.append(
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
    return found


def _standing(named: Named, name: str, *, accepted: bool) -> str:
    """Return what a segment that is not live is, by the manifest in Spark state."""
    if name in named.pending:
        return EXPIRED
    if accepted:
        return GIVEN_UP
    return ORPHAN if named.complete else UNKNOWN
