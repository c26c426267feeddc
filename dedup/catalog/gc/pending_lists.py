"""Pending lists: objects at the root that name expired segments, to keep the state row small.

The state row has room for the names of a few hundred expired segments. A shard writes further names
into an immutable object, and the manifest holds the object's name.
"""

from __future__ import annotations

from collections.abc import Sequence

from dedup.catalog.layout import PENDING_LIST_SUFFIX, shard_path
from dedup.storage.document import from_document, to_document
from dedup.storage.root import ObjectMissing, Root
from dedup.values.parse import name, record, text, tuple_of

PENDING_LIST_FORMAT = 1


def write_pending_list(
    root: Root, query_id: str, shard: int, pending_list: str, names: Sequence[str]
) -> None:
    """Write a pending list. It is durable on return."""
    place = shard_path(query_id, shard, pending_list + PENDING_LIST_SUFFIX)
    fields = {"place": place, "segments": list(names)}
    root.create_bytes(place, to_document(fields, version=PENDING_LIST_FORMAT))


def read_pending_list(root: Root, query_id: str, shard: int, pending_list: str) -> list[str]:
    """Return the names in a pending list, or no names if the list is missing or damaged.

    Files of segments that no list names become orphans, which only a sweep deletes. No ID is lost.
    Raises CatalogError if another release wrote the list.
    """
    try:
        return check_pending_list(root, query_id, shard, pending_list)
    except (ObjectMissing, ValueError):
        return []


def check_pending_list(root: Root, query_id: str, shard: int, pending_list: str) -> list[str]:
    """Return the names in a pending list.

    Raises ObjectMissing if the list does not exist. Raises ValueError if the object is damaged, or
    holds another pending list, whose segments may be needed.
    """
    place = shard_path(query_id, shard, pending_list + PENDING_LIST_SUFFIX)
    return root.read(place, lambda data: _names(data, place))


def _names(data: bytes, place: str) -> list[str]:
    fields = from_document(data, version=PENDING_LIST_FORMAT)
    read = record(fields, {"place": text, "segments": tuple_of(name)})
    if read["place"] != place:
        raise ValueError(f"it was written as {read['place']}")
    return list(read["segments"])
