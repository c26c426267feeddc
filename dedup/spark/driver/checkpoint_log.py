"""Reads a query's state from Spark's logs in its checkpoint, without Spark.

======================== ==============================================================
file                     content
======================== ==============================================================
metadata                 JSON: the query's ID
offsets/N                version; JSON with the pinned settings; a line per source
commits/N                exists if micro-batch N is committed
state/O/_metadata/...    version; JSON with the name of operator O
======================== ==============================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import index
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from dedup.errors import ConfigError, StateError
from dedup.spark.machine import home_path
from dedup.values.parse import name

T = TypeVar("T")

#: Errors that parsing raises if a file does not have the expected form.
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError)
#: Folder in which sinks keep their slices, one folder per sink, unless the user names another.
SINKS = "dedup-sinks"
#: Spark's name for the state of this package's operators.
OPERATOR = "applyInPandasWithState"
#: Number of newest micro-batches in which we search for a source's last offset.
_RECENT = 100
#: Kind of a source that is neither Kafka nor files, and whose name is unknown.
OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source of a stream."""

    #: ``"kafka"``, ``"file"``, `OTHER`, or Spark's name for the source.
    kind: str
    #: Known options by name, in lower case.
    options: Mapping[str, str] = field(default_factory=dict)
    #: Whether all given options are known. If so, every other option has Spark's default.
    complete: bool = False
    #: Kafka topics, and the number of their partitions.
    topics: tuple[str, ...] = ()
    partitions: int | None = None

    def option(self, name: str) -> str | None:
        return self.options.get(name.lower())

    @property
    def name(self) -> str:
        """The source's name in a sentence."""
        if self.topics:
            return f"topic{'s' if len(self.topics) > 1 else ''} {', '.join(self.topics)}"
        if self.kind == OTHER:
            return "a source that is neither Kafka nor files"
        return f"the {self.kind} source"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLog:
    """A query's state at its last planned micro-batch."""

    query_id: str
    #: Last planned micro-batch. None before the first one: then only the query's ID is known.
    batch_id: int | None = None
    #: Whether the query has committed any micro-batch.
    committed: bool = False
    #: Settings that Spark fixed at the query's first start.
    pinned: dict[str, str] | None = None
    sources: tuple[Source, ...] | None = None
    state_partitions: int | None = None
    #: Names of the sinks that stage their rows in the checkpoint.
    kafka_sinks: tuple[str, ...] = ()


def find_checkpoint(where: str) -> CheckpointLog | None:
    """Read a checkpoint as `read_checkpoint` does, or return None if there is no checkpoint."""
    return None if _Folder.at(where).read("metadata") is None else read_checkpoint(where)


def read_checkpoint(where: str) -> CheckpointLog:
    """Read the logs of a checkpoint, given a local path or a URI that pyarrow knows.

    Raises ConfigError if the checkpoint does not exist, cannot be read, or belongs to a query
    without this operator. Raises StateError if a log that a restart needs is damaged.
    """
    folder = _Folder.at(where)
    query_id = _query_id(folder, where)
    batches = folder.numbers("offsets")[-_RECENT:]
    if not batches:
        return CheckpointLog(query_id=query_id)
    pinned, newest = _parsed(folder, f"offsets/{batches[-1]}", offsets_in)
    entries = [newest]
    for number in reversed(batches[:-1]):
        with suppress(*_UNREADABLE):  # only the newest entry must be readable
            entries.append(offsets_in(folder.read(f"offsets/{number}") or "")[1])
    return CheckpointLog(
        query_id=query_id,
        batch_id=batches[-1],
        committed=bool(folder.numbers("commits")),
        pinned=pinned,
        sources=tuple(map(_source, last_offsets(entries))),
        state_partitions=_state_partitions(folder, where, pinned),
        kafka_sinks=tuple(sorted(folder.names(SINKS))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The micro-batch that a query's next start runs first. `again` marks a replay."""

    query_id: str
    next_batch_id: int
    again: bool


def read_progress(where: str) -> Progress:
    """Return the micro-batch with which a checkpoint of any query continues."""
    folder = _Folder.at(where)
    query_id = _query_id(folder, where)
    planned, finished = (max(folder.numbers(log), default=-1) for log in ("offsets", "commits"))
    again = planned > finished
    return Progress(
        query_id=query_id, next_batch_id=planned if again else finished + 1, again=again
    )


def committed_offsets(where: str) -> tuple[str, ...]:
    """Return the offset of each source after a query's last committed micro-batch, as Spark's text.

    Raises the errors of `read_checkpoint`.
    """
    folder = _Folder.at(where)
    _query_id(folder, where)
    committed = folder.numbers("commits")[-1:]
    if not committed:
        raise ConfigError(f"The query of {where} has committed no micro-batch.")
    planned = [number for number in folder.numbers("offsets") if number <= committed[0]]
    names = (f"offsets/{number}" for number in reversed(planned[-_RECENT:]))
    return tuple(last_offsets([_parsed(folder, name, offsets_in)[1] for name in names]))


def _query_id(folder: _Folder, where: str) -> str:
    if folder.read("metadata") is None:
        raise ConfigError(
            f"{where} holds no checkpoint of a streaming query: it has no file `metadata`. Give "
            "the folder of the query's option `checkpointLocation`, or the OUTPUT of `dedup run`."
        )
    return _parsed(folder, "metadata", lambda text: name(json.loads(text)["id"]))


@dataclass(frozen=True, slots=True)
class _Folder:
    fs: pafs.FileSystem
    path: str
    where: str

    @classmethod
    def at(cls, where: str) -> _Folder:
        if "://" not in where:
            return cls(pafs.LocalFileSystem(), str(home_path(where).absolute()), where)
        try:
            fs, path = pafs.FileSystem.from_uri(where)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise ConfigError(
                f"{where} cannot be read: {_first_line(error)}. Give a local path, a URI that "
                "pyarrow knows (s3://, not s3a://), or a copy of the folder."
            ) from None
        return cls(fs, path, where)

    def read(self, name: str) -> str | None:
        """Return a file's text, or None if there is no file."""
        with self._answering(name), suppress(FileNotFoundError, NotADirectoryError):
            stream = self.fs.open_input_stream(f"{self.path}/{name}", compression=None)
            with stream:
                return bytes(stream.read()).decode(errors="replace")
        return None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, which need not exist."""
        with self._answering(folder), suppress(NotADirectoryError):
            selector = pafs.FileSelector(f"{self.path}/{folder}", allow_not_found=True)
            return [info.base_name for info in self.fs.get_file_info(selector)]
        return []

    @contextmanager
    def _answering(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(
                f"{self.where}/{name} cannot be read: {_first_line(error)}."
            ) from None

    def numbers(self, folder: str) -> list[int]:
        """Return the entries of one of Spark's logs, in order."""
        return sorted(int(n) for n in self.names(folder) if n.isascii() and n.isdigit())


def _parsed(folder: _Folder, name: str, parse: Callable[[str], T]) -> T:
    text = folder.read(name) or ""
    try:
        return parse(text)
    except _UNREADABLE:
        raise StateError(
            f"{folder.where}/{name} is damaged: it is cut short, or Spark did not write it. The "
            "query cannot start from it. Restore the checkpoint from a copy (with its catalog).",
            remedy="damaged-state",
        ) from None


def offsets_in(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings in an entry of the offset log, and the offset of each source as text."""
    version, about, *lines = text.split("\n")
    if version not in ("v1", "v2"):
        raise ValueError(version)
    conf = {str(name): str(value) for name, value in json.loads(about)["conf"].items()}
    if version == "v2":
        named = dict(line.split(":", 1) for line in lines if line)
    else:
        named = {str(n): line for n, line in enumerate(lines) if line}
    if not named:
        raise ValueError("no source")
    for line in named.values():
        if line.startswith("{"):
            json.loads(line)
    return conf, named


def last_offsets(entries: Sequence[dict[str, str]]) -> Iterator[str]:
    """Yield the last known offset of each source. `entries` begin with the newest."""
    for key, text in entries[0].items():
        yield next((entry[key] for entry in entries if entry.get(key, "-") != "-"), text)


def _source(offset: str) -> Source:
    if (topics := kafka_offsets(offset)) and all(topics.values()):
        partitions = sum(map(len, topics.values()))
        return Source(kind="kafka", topics=tuple(topics), partitions=partitions)
    with suppress(*_UNREADABLE):
        if json.loads(offset).keys() == {"logOffset"}:
            return Source(kind="file")
    return Source(kind=OTHER)


def kafka_offsets(offset: Any) -> dict[str, dict[int, int]]:
    """Return a source's offset by topic and partition, or an empty dict for other sources."""
    try:
        offset = json.loads(offset) if isinstance(offset, str) else offset
        return {t: {int(n): index(at) for n, at in each.items()} for t, each in offset.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _state_partitions(folder: _Folder, where: str, pinned: Mapping[str, str]) -> int | None:
    operators = []
    for number in folder.numbers("state"):
        text = folder.read(f"state/{number}/_metadata/metadata")
        try:
            name = OPERATOR
            if text is not None:  # Spark 3.5 writes none
                about = json.loads(text.split("\n")[1])
                name = about["operatorInfo"]["operatorName"]
                operators.append(name)
            if name == OPERATOR:
                # After Spark has repartitioned the state, this file has the old number.
                return int(pinned["spark.sql.shuffle.partitions"])
        except _UNREADABLE:
            return None
    if operators:
        raise ConfigError(
            f"{where} is the checkpoint of a query without dedup_by_id. Its operators with state: "
            f"{', '.join(operators)}."
        )
    return None


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
