"""Other queries at a catalog root: a new checkpoint may stand in for one of theirs that is lost."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from dedup.catalog.certificate import load_certificate
from dedup.catalog.layout import RUNS_FOLDER, certificate_path
from dedup.catalog.root import Root
from dedup.errors import CatalogError, ConfigError

IdColumns: TypeAlias = tuple[tuple[str, str], ...]

#: Of a root that holds more queries than this the rest is not looked at.
_LOOKED_AT = 100


@dataclass(frozen=True, slots=True)
class Other:
    """Another query with a catalog at the same root.

    Parameters
    ----------
    query_id : str
    written_ms : int
        When it last wrote there, by the storage's clock; 0 where nothing tells.
    """

    query_id: str
    written_ms: int


def others_alike(root: Root, id_columns: IdColumns, own_id: str | None = None) -> list[Other]:
    """Return the other queries whose record ID has the same columns, the one last written first.

    Parameters
    ----------
    root : Root
        The catalog.
    id_columns : tuple of (str, str)
        Name and Spark type of each column of the ID.
    own_id : str, optional
        The query that is no other.
    """
    found = []
    for folder in [name for name in root.folders() if name != own_id][:_LOOKED_AT]:
        with suppress(CatalogError, ConfigError):  # no catalog of a query, or a damaged one
            other = load_certificate(root, folder)
            if other is not None and other.id_columns == id_columns:
                found.append(Other(folder, _written_ms(root, folder)))
    return sorted(found, key=lambda other: (-other.written_ms, other.query_id))


def tell_of(root: Root, id_columns: IdColumns, others: list[Other]) -> str:
    """Return what a user whose checkpoint is new should know of these queries, at least one."""
    last = others[0]
    when = ""
    if last.written_ms:
        at = datetime.fromtimestamp(last.written_ms / 1000, UTC)
        when = f" and which last wrote there on {at:%Y-%m-%d %H:%M:%S} UTC"
    more = f" ({len(others) - 1} more are like it)" if others[1:] else ""
    columns = ", ".join(name for name, _ in id_columns)
    return (
        f"A query with a new checkpoint knows no IDs. At {root.url()} there is also query "
        f"{last.query_id}, whose record ID has the same columns ({columns}){when}{more}. If the "
        "new checkpoint stands in for that query's, which was lost, stop the query and take back "
        "what it wrote; then restore the old checkpoint, or run: dedup catalog adopt "
        f"{root.url()} --query {last.query_id} --checkpoint NEW (see: dedup remedies "
        "lost-checkpoint). If the two are different queries, all is well."
    )


def _written_ms(root: Root, query_id: str) -> int:
    """Return when a query last noted how far it is; a running one does every few micro-batches."""
    times_ms = [found.modified_ms for found in root.list(f"{query_id}/{RUNS_FOLDER}")]
    born_ms = root.modified_ms(certificate_path(query_id))
    return max((ms for ms in (*times_ms, born_ms) if ms is not None), default=0)
