"""Whose an output is: its micro-batches are numbered by one query, and one sink of it.

Micro-batches are numbered anew in every checkpoint: those of another query would be taken for
done, and new rows be lost.
"""

from __future__ import annotations

from collections.abc import Callable

from dedup.catalog.document import from_document, to_document
from dedup.catalog.root import Root
from dedup.core.parse import OtherVersion
from dedup.errors import ConfigError, SinkError
from dedup.sinks.batch_folders import number_of

#: In the output: which query's micro-batches it shows.
OWNER = "_dedup.query"
#: What `dedup run` keeps in its outputs.
_RUN = "_dedup.json"
#: Folders of others, whose readers and cleaners go by a list, and not by the files that are there.
_LISTS = {"_spark_metadata": "Spark's own file sink", "_delta_log": "a table of Delta Lake"}
_FORMAT = 1


def own_output(output: Root, query_id: str, sink: str = "") -> None:
    """Make an output the query's, where it is nobody's.

    Parameters
    ----------
    output : Root
    query_id : str
    sink : str, optional
        Name of the sink within its query, where it has one.

    Raises
    ------
    ConfigError
        When it is another's.
    """
    mine = {"query_id": query_id, "sink": sink}
    other = foreign_to_all(output)
    if other is None:
        if not output.exists(OWNER):
            # Of two that come at the same time one is the owner.
            output.create_bytes(OWNER, to_document(mine, version=_FORMAT))
        other = _other(output, mine)
    if other is not None:
        raise ConfigError(
            f"output={output.url()} holds micro-batches of {other}, and this is query "
            f"{_named(mine)}: give a new folder, or the checkpoint of then.",
            remedy="output-folder",
        )


def owner_of(output: Root) -> tuple[str, str] | None:
    """Return the query that owns an output, and which sink of it; None where none does.

    Raises
    ------
    SinkError
        When what says so is damaged, or of another release.
    """
    if not output.exists(OWNER):
        return None
    try:
        found = from_document(output.read_bytes(OWNER), version=_FORMAT)[1]
        return str(found["query_id"]), str(found["sink"])
    except OtherVersion as error:
        raise SinkError(
            f"{output.url(OWNER)} was written by another release: {error}. Install the release "
            "that wrote it, or a newer one.",
            remedy="other-version",
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise SinkError(
            f"{output.url(OWNER)} is damaged: {error}. It says which query the output belongs to; "
            "without it that query is refused.",
            remedy="output-folder",
        ) from None


def foreign_to_all(output: Root) -> str | None:
    """Return who made an output that no query may own; None where one has owned it, or may."""
    if output.exists(OWNER):
        return None
    if output.exists(_RUN):
        return "`dedup run`"
    folders = output.folders()
    if whose := list_keeper(folders.__contains__):
        return whose
    return "another program" if any(number_of(name) is not None for name in folders) else None


def list_keeper(has: Callable[[str], bool]) -> str | None:
    """Return whose list says which files of a folder count, and that; None where none does.

    Parameters
    ----------
    has : callable
        Whether the folder has one of this name.
    """
    for name, whose in _LISTS.items():
        if has(name):
            return f"{whose}, whose list in {name} leaves out all other files"
    return None


def _other(output: Root, mine: dict[str, str]) -> str | None:
    try:
        found = from_document(output.read_bytes(OWNER), version=_FORMAT)[1]
    except OtherVersion:
        return "another release of this library"
    except ValueError:
        return f"a query that cannot be told, because {OWNER} in it is damaged"
    return None if found == mine else f"query {_named(found)}"


def _named(owner: dict[str, str]) -> str:
    return owner["query_id"] + (f", sink {owner['sink']}" if owner.get("sink") else "")
