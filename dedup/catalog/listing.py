"""The files under a catalog root, with their parsed names."""

from __future__ import annotations

from dataclasses import dataclass

from dedup.catalog import layout
from dedup.catalog.root import Root


@dataclass(frozen=True, slots=True)
class CatalogFile:
    """A file under a catalog root: its name, the name's parts, its size and time."""

    name: str
    parsed: layout.ObjectName
    size_bytes: int
    modified_ms: int | None = None


def list_catalog(root: Root, query_id: str = "") -> list[CatalogFile]:
    return [
        CatalogFile(o.name, layout.parse(o.name), o.size_bytes, o.modified_ms)
        for o in root.list(query_id)
    ]
