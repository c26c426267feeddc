"""The owner of an output folder, which is one sink of one query.

Every checkpoint numbers its micro-batches from 0. If two queries shared an output, the second query
would mistake the micro-batches of the first query for its own, and lose new rows.
"""

from __future__ import annotations

from collections.abc import Callable

from dedup.errors import ConfigError
from dedup.sinks.batch_folders import number_of
from dedup.sinks.marker import reading
from dedup.storage.document import from_document, to_document
from dedup.storage.root import Root

#: File in the output that names its owner.
OWNER = "_dedup.query"
#: The file that `dedup run` writes to its outputs.
_RUN = "_dedup.json"
#: Writers whose readers rely on a list of files, keyed by the name of the list.
_LISTS = {"_spark_metadata": "Spark's own file sink", "_delta_log": "a table of Delta Lake"}
_FORMAT = 1


def own_output(output: Root, query_id: str, sink: str = "") -> None:
    """Make a query, or its sink `sink` if that is not empty, the owner of an output.

    Raises ConfigError if somebody else owns the output.
    """
    other = foreign_to_all(output)
    if other is None:
        if not output.exists(OWNER):
            # If two queries do this at the same time, one becomes the owner.
            mine = {"query_id": query_id, "sink": sink}
            output.create_bytes(OWNER, to_document(mine, version=_FORMAT))
        owner = owner_of(output)
        if owner == (query_id, sink):
            return
        other = f"query {_named(*owner)}" if owner else "another program"
    raise ConfigError(
        f"output={output.url()} holds micro-batches of {other}, and this is query "
        f"{_named(query_id, sink)}: give a new folder, or the checkpoint of that query.",
        remedy="output-folder",
    )


def owner_of(output: Root) -> tuple[str, str] | None:
    """Return the query and the sink that own an output, or None if the output has no owner.

    Raises SinkError if the file that names the owner is damaged, or of another release.
    """
    if not output.exists(OWNER):
        return None
    loss = "It names the query that owns the output; without it, that query is refused."
    with reading(output.url(OWNER), loss, "output-folder"):
        document = from_document(output.read_bytes(OWNER), version=_FORMAT)
        return str(document["query_id"]), str(document["sink"])


def foreign_to_all(output: Root) -> str | None:
    """Return the program that made an output, or None if a query owns or may own the output."""
    if output.exists(OWNER):
        return None
    if output.exists(_RUN):
        return "`dedup run`"
    folders = output.folders()
    if whose := list_keeper(folders.__contains__):
        return whose
    return "another program" if any(number_of(name) is not None for name in folders) else None


def list_keeper(has: Callable[[str], bool]) -> str | None:
    """Return who lists the valid files of an output folder, such as Delta Lake, or None if nobody.

    `has` returns whether the folder has an entry with the given name.
    """
    for name, whose in _LISTS.items():
        if has(name):
            return f"{whose}, whose list in {name} leaves out all other files"
    return None


def _named(query_id: str, sink: str) -> str:
    return query_id + (f", sink {sink}" if sink else "")
