"""`dedup catalog`: what a catalog holds, is it whole, and accepting the loss of a bucket."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dedup.catalog.certificate import load_certificate
from dedup.catalog.contact import reach
from dedup.catalog.repair.inspect import CatalogFile, SegmentReport, list_catalog, verify_segment
from dedup.catalog.repair.inspect import accept_loss as write_accepted_loss
from dedup.catalog.repair.objects import ObjectProblem, verify_objects
from dedup.catalog.root import Root
from dedup.cli.catalog.memory import (
    EXPIRED,
    GIVEN_UP,
    ORPHAN,
    QueryMemory,
    Segment,
    memory_of,
    segments_of,
)
from dedup.cli.figures import iso
from dedup.cli.session import spark_session
from dedup.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dedup.spark.driver.state_reader import Snapshot


#: Files that only the catalog of a query has.
_OF_A_QUERY = ("certificate", "segment", "sidecar", "manifest", "adopted", "pending_list")


def open_root(where: str) -> Root:
    """Return the catalog at a path or URI.

    Raises
    ------
    ConfigError
        If there is no catalog.
    CatalogError
        If the storage refuses, or does not answer.
    """
    root = Root(where)
    # To list a large catalog may take longer than a first answer.
    reach(root, lambda: root.exists("catalog.json"))
    if not _queries(list_catalog(root)):
        raise ConfigError(
            f"{root.url()} holds no catalog of dedup_by_id; give what its option `catalog` names "
            "(for `dedup run` that is OUTPUT/_catalog).",
            remedy="missing-catalog",
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


def known(root: Root, checkpoint: str | None) -> Snapshot | None:
    """Return what a checkpoint tells, None where none is given."""
    return None if checkpoint is None else snapshot(root, checkpoint)


def segments(root: Root, known: Snapshot | None, query_id: str | None = None) -> list[Segment]:
    """List the segments of a catalog, those included that only a manifest names.

    Parameters
    ----------
    root : Root
        The catalog.
    known : Snapshot or None
        Manifests of one query; for others there are only manifest backups.
    query_id : str, optional
        Only this query.
    """
    files = list_catalog(root, query_id or "")
    return [
        segment
        for query in _queries(files)
        for segment in segments_of(root, query, memory_of(root, query, known), files)
    ]


def only_query(root: Root) -> str:
    """Return the one query of a catalog.

    Raises
    ------
    ConfigError
        If it holds several, naming them, or none.
    """
    queries = sorted(
        {f.parsed.query_id or "" for f in list_catalog(root) if f.parsed.kind == "certificate"}
    )
    if len(queries) != 1:
        raise ConfigError(
            f"{root.url()} holds {len(queries)} queries; say which with --query: "
            f"{', '.join(queries)}",
            remedy="missing-catalog",
        )
    return queries[0]


def inspect(root: Root, known: Snapshot | None, query_id: str | None = None) -> dict[str, Any]:
    """Return what a catalog holds: per query, per shard, per segment."""
    files = list_catalog(root, query_id or "")
    queries, listed = [], []
    for query in _queries(files):
        memory = memory_of(root, query, known)
        mine = segments_of(root, query, memory, files)
        queries.append(_query(root, query, files, mine, memory))
        listed += mine
    return {
        "root": root.url(),
        "foreign_files": sum(f.parsed.kind == "foreign" for f in files),
        "queries": queries,
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
        if s.standing not in (ORPHAN, GIVEN_UP) and not _is_on_its_way(s)
    ]


def _is_on_its_way(segment: Segment) -> bool:
    """Whether its file may well be missing: it is half written, or half deleted."""
    return segment.sst_bytes is None and (segment.standing == EXPIRED or segment.ref is None)


def verify_others(
    root: Root, known: Snapshot | None, query_id: str | None = None
) -> list[ObjectProblem]:
    """Return what is wrong with all that is neither segment nor sidecar."""
    return [
        problem
        for query in _queries(list_catalog(root, query_id or ""))
        for problem in verify_objects(
            root, query, known.states if known and known.query_id == query else None
        )
    ]


def accept_loss(
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
            "the query names them).",
            remedy="damaged-segment",
        )
    query, number = places.pop()
    accepted_loss = write_accepted_loss(root, query, number, name)
    return {
        "query_id": query,
        "shard": number,
        "segment": name,
        "start": iso(accepted_loss.start_ms),
        "end": iso(accepted_loss.end_ms),
    }


def _read(spark: SparkSession, checkpoint: str, root: Root) -> Snapshot:
    from dedup.spark.driver.state_reader import read_snapshot

    return read_snapshot(spark, checkpoint, root)


def _queries(files: list[CatalogFile]) -> list[str]:
    """Queries that have anything here, be it without a certificate."""
    return sorted({f.parsed.query_id or "" for f in files if f.parsed.kind in _OF_A_QUERY})


def _query(
    root: Root, query_id: str, files: list[CatalogFile], mine: list[Segment], memory: QueryMemory
) -> dict[str, Any]:
    certificate = load_certificate(root, query_id)
    kinds: dict[str, dict[str, int]] = {}
    for file in files:
        if file.parsed.query_id == query_id:
            kind = kinds.setdefault(file.parsed.kind, {"files": 0, "bytes": 0})
            kind["files"] += 1
            kind["bytes"] += file.size_bytes
    return {
        "query_id": query_id,
        "as_of": memory.as_of,
        "id": [f"{name} {kind}" for name, kind in certificate.id_columns] if certificate else [],
        "timestamp": certificate.timestamp_source if certificate else None,
        "shards": certificate.shards if certificate else None,
        "files": kinds,
        "segments": dict(Counter(segment.standing for segment in mine)),
        "missing": sum(segment.missing for segment in mine),
        "accepted_losses": sum(segment.loss_accepted for segment in mine),
        "state": [
            {
                "shard": number,
                "epoch": shard.epoch,
                "buckets": len(shard.manifest.buckets),
                "segments": sum(1 for _ in shard.manifest.segments()),
                "expired": shard.manifest.pending,
                "segment_ids": shard.manifest.ids,
                "tail_ids": shard.tail_ids,
                "gc_watermark": iso(shard.gc_watermark_ms),
            }
            for number, shard in sorted(memory.shards.items())
        ],
    }
