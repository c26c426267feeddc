"""The ledger: a sink's record in the query's checkpoint, by which the sink notices lost markers.

- ``published.json``: a micro-batch that the sink has certainly published. A `WriteAheadSink` has
  perhaps sent only a part of it.
- ``sink.json``: the options that decide where the sink's markers are.

Both are JSON documents with a format number and a checksum (`dedup.storage.document`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dedup.errors import ConfigError, ObjectMissing, SinkError
from dedup.sinks.marker import reading
from dedup.storage.document import from_document, to_document
from dedup.storage.root import Root
from dedup.storage.uri import without_credentials
from dedup.values.parse import integer

FORMAT = 1
_PUBLISHED, _SETTING = "published.json", "sink.json"
_TABLE_ID = "table ID"

T = TypeVar("T")


class Ledger:
    """The ledger of one sink of one query. Several queries may keep ledgers in the same folder."""

    def __init__(self, where: str, query_id: str) -> None:
        self._root = Root(f"{where}/{query_id}")

    def differs(self, setting: Mapping[str, str]) -> bool:
        """Return whether the sink has published with options that differ from `setting`."""
        return self._root.exists(_SETTING) and read_document(self._root, _SETTING, dict) != setting

    def settle(
        self, setting: Mapping[str, str], *, table_id: str | None = None, is_moved: bool = False
    ) -> None:
        """Record `setting` in the first micro-batch. Raise an error if it differs in a later one.

        `setting` holds the options, and their values, that decide where the sink's markers are.
        `table_id` changes if somebody drops and recreates the table, and stays if somebody renames
        the table. `is_moved` is true if the new place has everything that the sink has published.
        """
        fields = dict(setting) if table_id is None else {**setting, _TABLE_ID: table_id}
        self._root.create_bytes(_SETTING, to_document(fields, version=FORMAT))
        known = read_document(self._root, _SETTING, dict)
        # Earlier releases accepted credentials in paths, and stored them in the ledger.
        stored = {name: _without_credentials(value) for name, value in known.items()}
        is_same_table = table_id is not None and stored.get(_TABLE_ID) == table_id
        if stored != fields and (is_same_table or is_moved):
            # The markers have moved with the output. The driver compares them as always.
            self._root.put_bytes(_SETTING, to_document(fields, version=FORMAT))
            return
        if stored != known:
            self._root.put_bytes(_SETTING, to_document(stored, version=FORMAT))
        for option, value in setting.items():
            if stored.get(option) != value:
                raise ConfigError(
                    f"Option {option} is {value!r}, and this sink has published with "
                    f"{stored.get(option)!r}. It cannot see there what is published of the current "
                    f"micro-batch, and would publish it again. Give {option} its earlier value. If "
                    "you have moved the output, move all of it, including names that begin with _. "
                    "A second sink of the query needs another `name`."
                )
        if stored.get(_TABLE_ID) != table_id:
            raise SinkError(
                f"This is another table than the one that the sink has published into: its ID is "
                f"{table_id}, and was {stored.get(_TABLE_ID)}. Somebody has dropped and "
                "recreated it, or put another one in its place, so what was published is not here. "
                "Nothing was written. Bring the earlier table back. Or give the sink another "
                "`name`: it then writes here what the query reads from now on.",
                remedy="sink-markers",
            )

    def published(self) -> int | None:
        """Return the micro-batch that is recorded as published, or None for a new sink."""
        try:
            return read_document(
                self._root, _PUBLISHED, lambda document: integer(document["batch_id"], 0)
            )
        except ObjectMissing:
            return None

    def note_published(self, batch_id: int) -> None:
        """Record a published micro-batch, unless the ledger has a later micro-batch.

        A driver that was frozen after its commit may call this after its successor.
        """
        known = self.published()
        if known is None or known < batch_id:
            body = to_document({"batch_id": batch_id}, version=FORMAT)
            self._root.put_bytes(_PUBLISHED, body)


def read_document(root: Root, name: str, parse: Callable[[dict[str, Any]], T]) -> T:
    """Read a document of the ledger, and return its fields as `parse` converts them.

    If `parse` raises ValueError, this raises SinkError.
    """
    with reading(root.url(name), "Restore it from a copy of the checkpoint.", "storage"):
        return root.read(name, lambda data: parse(from_document(data, version=FORMAT)))


def _without_credentials(value: Any) -> Any:
    is_uri = isinstance(value, str) and "://" in value
    return without_credentials(value) if is_uri else value
