"""What the checkpoint of a query remembers of a sink, apart from the sink's own markers.

- ``published.json``: a micro-batch that the sink has published.
- ``sink.json``: the options that its markers hang on.

Both are JSON documents with a format number and a checksum (`dedup.catalog.document`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dedup.catalog.document import from_document, to_document
from dedup.catalog.root import Root
from dedup.catalog.uri import without_credentials
from dedup.core.parse import integer
from dedup.errors import CatalogError, ConfigError, ObjectMissing, SinkError

FORMAT = 1
_PUBLISHED, _SETTING = "published.json", "sink.json"
_TABLE_ID = "table ID"

T = TypeVar("T")


class Ledger:
    """The memory of one sink.

    Parameters
    ----------
    where : str
        A local path, or a URI that pyarrow knows.
    query_id : str
        Two queries may share the folder.
    """

    def __init__(self, where: str, query_id: str) -> None:
        self._root = Root(f"{where}/{query_id}")

    def differs(self, setting: Mapping[str, str]) -> bool:
        """Return whether the sink has published with another setting."""
        return self._root.exists(_SETTING) and read_document(self._root, _SETTING, dict) != setting

    def settle(
        self, setting: Mapping[str, str], *, table_id: str | None = None, is_moved: bool = False
    ) -> None:
        """Fix what may not change while the sink has markers, with its first micro-batch.

        Parameters
        ----------
        setting : mapping of str to str
            Options and their values.
        table_id : str, optional
            Of a table that may be made anew under its name, and keeps its ID under another.
        is_moved : bool
            Whether what the sink has published is where this setting leads to.

        Raises
        ------
        ConfigError
            If the sink has published under another value, and elsewhere.
        SinkError
            If it has published into another table.
        """
        fields = dict(setting) if table_id is None else {**setting, _TABLE_ID: table_id}
        self._root.create_bytes(_SETTING, to_document(fields, version=FORMAT))
        known = read_document(self._root, _SETTING, dict)
        # Earlier releases took credentials in paths, and kept them here.
        found = {name: _without_credentials(value) for name, value in known.items()}
        is_same_table = table_id is not None and found.get(_TABLE_ID) == table_id
        if found != fields and (is_same_table or is_moved):
            # Its markers came along, and are compared with what was published.
            self._root.put_bytes(_SETTING, to_document(fields, version=FORMAT))
            return
        if found != known:
            self._root.put_bytes(_SETTING, to_document(found, version=FORMAT))
        for option, value in setting.items():
            if found.get(option) != value:
                raise ConfigError(
                    f"Option {option} is {value!r}, and this sink has published with "
                    f"{found.get(option)!r}: what is under way there could not be seen, and would "
                    f"be published again. Give {option} its earlier value. If you have moved what "
                    "is published, move all of it, with what begins with _; a second sink of the "
                    "query needs a `name` of its own."
                )
        if found.get(_TABLE_ID) != table_id:
            raise SinkError(
                f"This is another table than the one that the sink has published into: its ID is "
                f"{table_id}, and was {found.get(_TABLE_ID)}. That one was dropped and made anew, "
                "or another one has its place, so what was published is not here. Nothing was "
                "written. Bring the earlier table back; or give the sink another `name`, and it "
                "writes here what the query reads from now on.",
                remedy="sink-markers",
            )

    def published(self) -> int | None:
        """Return a micro-batch that the sink is known to have published, None for a new sink."""
        try:
            return read_document(
                self._root, _PUBLISHED, lambda found: integer(found["batch_id"], 0)
            )
        except ObjectMissing:
            return None

    def note_published(self, batch_id: int) -> None:
        """Remember that the sink has published a micro-batch, unless a later one is known.

        A driver that stood still after its commit comes here when others are further.
        """
        known = self.published()
        if known is None or known < batch_id:
            body = to_document({"batch_id": batch_id}, version=FORMAT)
            self._root.put_bytes(_PUBLISHED, body)


def read_document(root: Root, name: str, taken_apart: Callable[[dict[str, Any]], T]) -> T:
    """Return what a function makes of the fields of a document.

    Parameters
    ----------
    root : Root
    name : str
    taken_apart : callable
        Raises ValueError if these are not the fields of such a document.

    Raises
    ------
    CatalogError
        When it is damaged.
    """
    try:
        return root.read(name, lambda data: taken_apart(from_document(data, version=FORMAT)[1]))
    except (ValueError, TypeError, KeyError) as error:
        raise CatalogError(
            f"{root.url(name)} is damaged: {error}. Restore it from a copy of the checkpoint.",
            remedy="storage",
        ) from None


def _without_credentials(value: Any) -> Any:
    is_uri = isinstance(value, str) and "://" in value
    return without_credentials(value) if is_uri else value
