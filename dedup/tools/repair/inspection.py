"""Opening a catalog, and what it holds in all: of each query its shards, segments and files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dedup.catalog.certificate import Certificate, load_certificate
from dedup.catalog.listing import CatalogFile, list_catalog
from dedup.catalog.location import FileSystemFactory
from dedup.catalog.root import Root
from dedup.catalog.timeouts import reach
from dedup.errors import ConfigError
from dedup.tools.repair.contents import QueryMemory, Segment, Snapshot, memory_of, segments_of

#: Where a catalog is, or the catalog that is there.
Where = str | os.PathLike[str] | FileSystemFactory | Root
#: Files that only the catalog of a query has.
_OF_A_QUERY = ("certificate", "segment", "sidecar", "manifest", "adopted", "pending_list")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryContents:
    """What a catalog holds of one query.

    Parameters
    ----------
    certificate : Certificate or None
        None where it is missing.
    memory : QueryMemory
        Its shards.
    files : tuple of CatalogFile
    segments : tuple of Segment
    """

    query_id: str
    certificate: Certificate | None
    memory: QueryMemory
    files: tuple[CatalogFile, ...]
    segments: tuple[Segment, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values: counts, and every shard."""
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
            "state": [shard.to_json(n) for n, shard in sorted(self.memory.shards.items())],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a catalog holds.

    Parameters
    ----------
    root : str
        Where it is.
    queries : tuple of QueryContents
    foreign_files : int
        Files that are not of this library.
    """

    root: str
    queries: tuple[QueryContents, ...]
    foreign_files: int

    @property
    def segments(self) -> Iterator[Segment]:
        """Those of all queries."""
        return (segment for query in self.queries for segment in query.segments)

    def to_json(self) -> dict[str, Any]:
        """Return what `dedup catalog inspect --json` prints."""
        return {
            "root": self.root,
            "foreign_files": self.foreign_files,
            "queries": [query.to_json() for query in self.queries],
            "segments": [segment.to_json() for segment in self.segments],
        }


def open_root(where: Where) -> Root:
    """Return the catalog at a path or URI.

    Raises
    ------
    ConfigError
        If there is no catalog.
    CatalogError
        If the storage refuses, or does not answer.
    """
    if isinstance(where, Root):
        return where
    root = Root(where)
    # To list a large catalog may take longer than a first answer.
    reach(root, lambda: root.exists("catalog.json"))
    if not queries_in(list_catalog(root)):
        raise ConfigError(
            f"{root.url()} holds no catalog of dedup_by_id; give what its option `catalog` names "
            "(for `dedup run` that is OUTPUT/_catalog).",
            remedy="missing-catalog",
        )
    return root


def queries_in(files: list[CatalogFile]) -> list[str]:
    """Return the queries that have anything here, be it without a certificate."""
    return sorted({f.parsed.query_id or "" for f in files if f.parsed.kind in _OF_A_QUERY})


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
        for query in queries_in(files)
        for segment in segments_of(root, query, memory_of(root, query, known), files)
    ]


def inspect(root: Root, known: Snapshot | None, query_id: str | None = None) -> Inspection:
    """Return what a catalog holds: per query, per shard, per segment."""
    files = list_catalog(root, query_id or "")
    found = []
    for query in queries_in(files):
        memory = memory_of(root, query, known)
        found.append(
            QueryContents(
                query_id=query,
                certificate=load_certificate(root, query),
                memory=memory,
                files=tuple(file for file in files if file.parsed.query_id == query),
                segments=tuple(segments_of(root, query, memory, files)),
            )
        )
    foreign = sum(file.parsed.kind == "foreign" for file in files)
    return Inspection(root=root.url(), queries=tuple(found), foreign_files=foreign)
