"""Find queries with the same ID columns at a catalog root.

If a user starts a query with a new checkpoint, these queries may be the same query under its lost
checkpoint.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from dedup.catalog.certificate import load_certificate
from dedup.catalog.layout import RUNS_FOLDER, certificate_path
from dedup.errors import CatalogError, ConfigError
from dedup.storage.root import Root

IdColumns: TypeAlias = tuple[tuple[str, str], ...]

#: Largest number of queries of a root that are compared.
_MAX_QUERIES = 100


@dataclass(frozen=True, slots=True)
class SimilarQuery:
    """Another query with a catalog at the same root.

    `written_ms` is when that query last wrote to the root by the storage's clock, or 0 if unknown.
    """

    query_id: str
    written_ms: int


def similar_queries(
    root: Root, id_columns: IdColumns, own_id: str | None = None
) -> list[SimilarQuery]:
    """Return other queries whose record ID has the same columns, latest writer first."""
    similar = []
    for folder in [name for name in root.folders() if name != own_id][:_MAX_QUERIES]:
        with suppress(CatalogError, ConfigError):  # no catalog of a query, or a damaged one
            other = load_certificate(root, folder)
            if other is not None and other.id_columns == id_columns:
                similar.append(SimilarQuery(folder, _written_ms(root, folder)))
    return sorted(similar, key=lambda other: (-other.written_ms, other.query_id))


def similar_query_warning(root: Root, id_columns: IdColumns, others: list[SimilarQuery]) -> str:
    """Return the warning about ``others``, at least one, for a user with a new checkpoint."""
    last = others[0]
    when = ""
    if last.written_ms:
        at = datetime.fromtimestamp(last.written_ms / 1000, UTC)
        when = f" and which last wrote there on {at:%Y-%m-%d %H:%M:%S} UTC"
    more = f" ({len(others) - 1} more have them too)" if others[1:] else ""
    columns = ", ".join(name for name, _ in id_columns)
    return (
        f"A query with a new checkpoint knows no IDs. At {root.url()} there is also query "
        f"{last.query_id}, whose record ID has the same columns ({columns}){when}{more}. If the "
        "new checkpoint replaces that query's, which was lost, stop the query and undo what it "
        "wrote. Then restore the old checkpoint, or run: dedup catalog adopt "
        f"{root.url()} --query {last.query_id} --checkpoint NEW (see: dedup remedies "
        "lost-checkpoint). If the two are different queries, ignore this warning."
    )


def _written_ms(root: Root, query_id: str) -> int:
    """Return when a query last recorded its progress, which a running query does regularly."""
    times_ms = [run.modified_ms for run in root.list(f"{query_id}/{RUNS_FOLDER}")]
    born_ms = root.modified_ms(certificate_path(query_id))
    return max((ms for ms in (*times_ms, born_ms) if ms is not None), default=0)
