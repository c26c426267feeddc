"""The marker that a sink commits together with rows. It proves that the rows are published.

A stored marker is a JSON document with format number and checksum (`dedup.storage.document`). If
the sink cannot read a marker, it raises an error rather than assume that nothing is published.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields

from dedup.errors import SinkError
from dedup.storage.document import from_document, to_document
from dedup.values.parse import OtherVersion, integer, mapping, text

FORMAT = 1
#: The slot in which the driver publishes a whole micro-batch in one transaction.
BATCH_SLOT = -1
#: The run ID of a revoked marker. A task that finds this run ID must not publish.
NO_RUN = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A record of what a slot of a sink published last.

    `slot` is a task's number, or `BATCH_SLOT`. `batch_id` is -1 if the slot has published nothing.
    `content` is the hash of the published rows, and does not depend on their order. `run_id` is the
    start of the query that published the rows, or `NO_RUN`. `tasks` is the number of slices of the
    micro-batch, or None if the writer did not know that number. `writer` (host and process) and
    `time_ms` are for people.
    """

    query_id: str
    sink: str
    slot: int
    batch_id: int
    rows: int
    content: str
    run_id: str
    tasks: int | None = None
    writer: str = ""
    time_ms: int = 0

    def key(self) -> bytes:
        """Return the key under which the slot's markers are stored.

        Compaction keeps the newest marker of a key.
        """
        return marker_key(self.query_id, self.sink, self.slot)

    def to_bytes(self) -> bytes:
        return to_document(asdict(self), version=FORMAT)

    @classmethod
    def from_json(cls, value: object) -> Marker:
        """Return the marker with the fields in `value`, or raise ValueError if they do not fit."""
        names = frozenset(field.name for field in fields(cls))
        values = mapping(value, needed=names, allowed=names)
        for name in ("query_id", "sink", "content", "run_id", "writer"):
            text(values[name])
        for name in ("slot", "batch_id", "rows", "time_ms"):
            integer(values[name])
        if values["tasks"] is not None:
            integer(values["tasks"])
        return cls(**values)

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Marker:
        """Return the marker that is stored as `data`. Errors name `where`, the place of `data`."""
        with reading(f"The marker at {where}"):
            return cls.from_json(from_document(data, version=FORMAT))


@contextmanager
def reading(
    what: str,
    loss: str = "Without it the sink cannot know what was published, so nothing was written.",
    remedy: str = "sink-markers",
) -> Iterator[None]:
    """Replace errors of the ``with`` block, which reads a document, by a SinkError.

    The error says that the document is damaged or of another release. `what` names the document,
    and `loss` says what follows from the damage.
    """
    try:
        yield
    except OtherVersion as error:
        raise SinkError(
            f"{what} was written by another release: {error}. Nothing was written. Install the "
            "release that wrote it, or a newer one.",
            remedy="other-version",
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise SinkError(f"{what} is damaged: {error}. {loss}", remedy=remedy) from None


def marker_key(query_id: str, sink: str, slot: int) -> bytes:
    return json.dumps(["dedup-marker", query_id, sink, slot]).encode()
