"""`dedup catalog`: what a catalog holds, is it whole, and accepting the loss of a bucket."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dedup.catalog.certificate import load_certificate
from dedup.catalog.inspect import CatalogFile, SegmentReport, list_catalog, verify_segment
from dedup.catalog.inspect import forget as write_tombstone
from dedup.catalog.root import Root
from dedup.cli.figures import iso
from dedup.cli.session import spark_session
from dedup.core.clocks import NEVER_MS
from dedup.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dedup.core.ports import SegmentRef
    from dedup.core.state import ShardState
    from dedup.spark.state_reader import Snapshot

#: What becomes of a segment; only the manifest in Spark state tells.
LIVE, EXPIRED, ORPHAN, UNKNOWN = "live", "expired", "orphan", "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment that the catalog or a manifest names.

    Parameters
    ----------
    query_id, shard, name
        Where it is.
    standing : str
        `LIVE`, `EXPIRED` (waits for its deletion), `ORPHAN` (no manifest names it), or `UNKNOWN`
        without a checkpoint.
    ref : SegmentRef or None
        What the manifest says of a live one.
    sst_bytes, filter_bytes : int or None
        Sizes found; None where the file is missing.
    forgotten : bool
        Its loss was accepted.
    """

    query_id: str
    shard: int
    name: str
    standing: str
    ref: SegmentRef | None
    sst_bytes: int | None
    filter_bytes: int | None
    forgotten: bool

    @property
    def missing(self) -> bool:
        """A file that the query may need is not there."""
        absent = self.sst_bytes is None or self.filter_bytes is None
        return self.standing == LIVE and absent

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
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
            "forgotten": self.forgotten,
        }


def open_root(where: str) -> Root:
    """Return the catalog at a path or URI.

    Raises
    ------
    ConfigError
        If there is no catalog.
    """
    root = Root(where)
    if not any(f.says.kind == "certificate" for f in list_catalog(root)):
        raise ConfigError(
            f"{root.url()} holds no catalog of dedup_by_id; give what its option `catalog` names "
            "(for `dedup run` that is OUTPUT/_catalog)."
        )
    return root


def snapshot(root: Root, checkpoint: str, spark: SparkSession | None = None) -> Snapshot:
    """Read the manifests from a checkpoint, in a Spark session of its own unless one is given."""
    local = Path(checkpoint)
    if "://" not in checkpoint:
        local = local.expanduser().resolve()
        if not (local / "metadata").is_file():
            raise ConfigError(f"--checkpoint {local} holds no checkpoint of a streaming query.")
        checkpoint = str(local)
    if spark is not None:
        return _read(spark, checkpoint, root)
    with (
        tempfile.TemporaryDirectory(prefix="dedup-log-") as scratch,
        spark_session(
            master="local[1]", driver_memory="1g", shards=1, log=Path(scratch) / "spark.log"
        ) as session,
    ):
        return _read(session, checkpoint, root)


def segments(root: Root, known: Snapshot | None, query_id: str | None = None) -> list[Segment]:
    """List the segments of a catalog, those included that only a manifest names.

    Parameters
    ----------
    root : Root
        The catalog.
    known : Snapshot or None
        Manifests of one query; the segments of others stay `UNKNOWN`.
    query_id : str, optional
        Only this query.
    """
    files = _by_segment(list_catalog(root, query_id or ""))
    states = known.states if known and query_id in (None, known.query_id) else {}
    live = {
        (known.query_id, shard, ref.name): ref
        for shard, state in states.items()
        for ref in state.manifest.segments()
        if known
    }
    expired = {
        (known.query_id, shard, gone.name)
        for shard, state in states.items()
        for gone in state.manifest.expired
        if known
    }
    found = []
    for key in sorted({*files, *live}):
        kinds = files.get(key, {})
        if not kinds.keys() & {"segment", "sidecar"} and key not in live:
            continue
        if known is None or key[0] != known.query_id:
            standing = UNKNOWN
        elif key in live:
            standing = LIVE
        else:
            standing = EXPIRED if key in expired else ORPHAN
        found.append(
            Segment(
                query_id=key[0],
                shard=key[1],
                name=key[2],
                standing=standing,
                ref=live.get(key),
                sst_bytes=kinds.get("segment"),
                filter_bytes=kinds.get("sidecar"),
                forgotten="tombstone" in kinds,
            )
        )
    return found


def inspect(root: Root, known: Snapshot | None, query_id: str | None = None) -> dict[str, Any]:
    """Return what a catalog holds: per query, and per shard where the state is known."""
    files = list_catalog(root, query_id or "")
    queries = sorted({f.says.query_id or "" for f in files if f.says.kind == "certificate"})
    listed = segments(root, known, query_id)
    return {
        "root": root.url(),
        "as_of": "the checkpoint's last commit" if known else "unknown without --checkpoint",
        "foreign_files": sum(f.says.kind == "foreign" for f in files),
        "queries": [_query(root, q, files, listed, known) for q in queries],
        "segments": [segment.to_json() for segment in listed],
    }


def verify(
    root: Root, known: Snapshot | None, query_id: str | None = None
) -> list[tuple[Segment, SegmentReport]]:
    """Read every byte that the query may still need, and return what is found of each segment.

    With the manifests, orphans are left out and whole-file checksums are compared; without them,
    all segments are read.
    """
    return [
        (s, verify_segment(root, s.query_id, s.shard, s.name, s.ref))
        for s in segments(root, known, query_id)
        if s.standing != ORPHAN
    ]


def forget(
    root: Root, name: str, *, query_id: str | None = None, shard: int | None = None
) -> dict[str, Any]:
    """Accept the loss of one segment, found by its name.

    Parameters
    ----------
    root : Root
        The catalog.
    name : str
        As the error that stopped the query names it.
    query_id, shard : optional
        Needed where no file of the segment is left.

    Raises
    ------
    ConfigError
        Where the name fits no segment, or several.
    """
    places = {
        (s.query_id, s.shard)
        for s in segments(root, None, query_id)
        if s.name == name and shard in (None, s.shard)
    }
    if not places and query_id is not None and shard is not None:
        places = {(query_id, shard)}
    if len(places) != 1:
        found = "no file of" if not places else f"{len(places)} segments named"
        raise ConfigError(
            f"{root.url()} holds {found} {name}; say which with --query and --shard (the error of "
            "the query names them)."
        )
    query, number = places.pop()
    tombstone = write_tombstone(root, query, number, name)
    return {
        "query_id": query,
        "shard": number,
        "segment": name,
        "start": iso(tombstone.start_ms),
        "end": iso(tombstone.end_ms),
    }


def _read(spark: SparkSession, checkpoint: str, root: Root) -> Snapshot:
    from dedup.spark.state_reader import read_snapshot

    return read_snapshot(spark, checkpoint, root)


def _by_segment(files: list[CatalogFile]) -> dict[tuple[str, int, str], dict[str, int]]:
    found: dict[tuple[str, int, str], dict[str, int]] = defaultdict(dict)
    for file in files:
        says = file.says
        if says.query_id is not None and says.shard is not None and says.segment is not None:
            found[says.query_id, says.shard, says.segment][says.kind] = file.size_bytes
    return found


def _query(
    root: Root,
    query_id: str,
    files: list[CatalogFile],
    listed: list[Segment],
    known: Snapshot | None,
) -> dict[str, Any]:
    certificate = load_certificate(root, query_id)
    mine = [s for s in listed if s.query_id == query_id]
    kinds: dict[str, dict[str, int]] = {}
    for file in files:
        if file.says.query_id == query_id:
            kind = kinds.setdefault(file.says.kind, {"files": 0, "bytes": 0})
            kind["files"] += 1
            kind["bytes"] += file.size_bytes
    standings: dict[str, int] = {}
    for segment in mine:
        standings[segment.standing] = standings.get(segment.standing, 0) + 1
    states = known.states if known and known.query_id == query_id else {}
    return {
        "query_id": query_id,
        "id": [f"{name} {kind}" for name, kind in certificate.id_columns] if certificate else [],
        "timestamp": certificate.timestamp_source if certificate else None,
        "shards": certificate.shards if certificate else None,
        "files": kinds,
        "segments": standings,
        "missing": sum(segment.missing for segment in mine),
        "forgotten": sum(segment.forgotten for segment in mine),
        "state": [_shard(number, state) for number, state in states.items()],
    }


def _shard(number: int, state: ShardState) -> dict[str, Any]:
    gc_ms = state.clocks.gc_watermark_ms
    return {
        "shard": number,
        "epoch": state.epoch,
        "buckets": len(state.manifest.buckets),
        "segments": sum(1 for _ in state.manifest.segments()),
        "expired": len(state.manifest.expired),
        "segment_ids": state.manifest.ids,
        "tail_ids": len(state.tail),
        "gc_watermark": None if gc_ms <= NEVER_MS // 2 else iso(gc_ms),
    }
