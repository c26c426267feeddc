"""The document that closes a query's folder while the query continues elsewhere.

`dedup catalog rebuild` closes the new folder until all is written there, and then the old one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from dedup.catalog.layout import successor_path
from dedup.errors import CatalogError, ConfigError
from dedup.storage.document import from_document, to_document
from dedup.storage.root import ObjectMissing, Root
from dedup.values.parse import Parser, boolean, integer, name, record, text

SUCCESSOR_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Successor:
    """Where a query continues, in the folder that it does not continue from."""

    query_id: str
    root: str
    checkpoint: str
    #: The checkpoint that belongs to the closed folder.
    closed_checkpoint: str
    #: Whether the query was rebuilt elsewhere. Otherwise the folder is one that a rebuild has not
    #: finished, or that was given up.
    rebuilt: bool
    #: Last micro-batch that the query ran here, or -1 until that is certain.
    epoch: int = -1


_PARSERS: dict[str, Parser] = {
    "query_id": name,
    "root": text,
    "checkpoint": text,
    "closed_checkpoint": text,
    "rebuilt": boolean,
    "epoch": lambda value: integer(value, -1),
}


def write_successor(root: Root, successor: Successor, *, new: bool = False) -> bool:
    """Write the document. With ``new``, write nothing and return False if it exists."""
    document = to_document(asdict(successor), version=SUCCESSOR_FORMAT)
    path = successor_path(successor.query_id)
    if new:
        return root.create_bytes(path, document)
    root.put_bytes(path, document)
    return True


def read_successor(root: Root, query_id: str) -> Successor | None:
    """Return where the query continues, or None. Raises CatalogError if the document is damaged."""
    path = successor_path(query_id)
    try:
        fields = root.read(path, lambda data: from_document(data, version=SUCCESSOR_FORMAT))
        successor = Successor(**record(fields, _PARSERS))
        if successor.query_id != query_id:
            raise ValueError(f"it belongs to query {successor.query_id}")
        return successor
    except ObjectMissing:
        return None
    except ValueError as exc:
        raise CatalogError(
            f"{root.url(path)} cannot be used: {exc}. It says where the query continues. If "
            "you know that it continues here, delete the object.",
            remedy="rebuilt-elsewhere",
        ) from exc


def refuse_closed(root: Root, query_id: str) -> None:
    """Raise ConfigError if the query does not continue from this folder."""
    if (successor := read_successor(root, query_id)) is not None:
        raise closed(root, successor)


def closed(root: Root, successor: Successor) -> ConfigError:
    query_id = successor.query_id
    there = f"checkpoint {successor.checkpoint} and catalog {successor.root}"
    if successor.rebuilt:
        why = (
            f"Query {query_id} was rebuilt. It continues with {there}. Start it there; if the "
            "command was cut off, first repeat it with the same places. To give the rebuilt query "
            f"up and continue here: dedup catalog rebuild {root.url()} --query {query_id} --reopen"
        )
    else:
        why = (
            f"The rebuilding of query {query_id} at {root.url()} was cut off or given up. Repeat "
            f"the command dedup catalog rebuild, or continue the query with {there}."
        )
    return ConfigError(why, remedy="rebuilt-elsewhere")
