"""A store of staged slices, in files, and of the manifests of whole micro-batches.

The sink writes both to the folder of its ledger (`dedup.sinks.ledger`), which is by default in the
checkpoint:

- ``staged/<micro-batch>-<slot>-<random>.arrow``: the records of a slice, as Arrow's IPC stream.
  The task returns the slice's content hash and number of rows to the driver.
- ``manifests/<micro-batch>.json``: the list of staged slices that the driver publishes as a whole
  micro-batch.
"""

from __future__ import annotations

import os
import re
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from dedup.errors import ObjectMissing, SinkError, faults
from dedup.sinks.content import Content, content_of
from dedup.sinks.ledger import FORMAT, read_document
from dedup.sinks.protocol import StagedSlice
from dedup.storage.document import to_document
from dedup.storage.root import Root
from dedup.storage.uri import below
from dedup.values.parse import integer, text

#: Folder of the manifests.
MANIFESTS = "manifests"
_FILE = re.compile(r"staged/[0-9]+-[0-9]+-[0-9a-f]{32}\.arrow")
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class SliceStore:
    """The staged slices of one sink of one query. Several queries may share the folder `where`.

    `room` is the prefix of the fault points.
    """

    def __init__(self, where: str, query_id: str, room: str) -> None:
        self._root, self.room = Root(below(where, query_id)), room

    def write(self, batch_id: int, slot: int, rows: Iterable[pa.RecordBatch]) -> StagedSlice:
        name = f"staged/{batch_id}-{slot}-{uuid.uuid4().hex}.arrow"
        content = Content()
        handle, local = tempfile.mkstemp(prefix="dedup-slice-")
        try:
            with os.fdopen(handle, "wb") as file:
                writer = None
                for batch in rows:
                    writer = writer or pa.ipc.new_stream(file, batch.schema, options=_OPTIONS)
                    writer.write_batch(batch)
                    content += content_of(batch)
                if writer is not None:
                    writer.close()
            if content.rows:
                self._root.put_file(name, local)
        finally:
            Path(local).unlink(missing_ok=True)
        return StagedSlice(slot, content, name if content.rows else "")

    def read(self, piece: StagedSlice) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a staged slice, or raise SinkError if its file is damaged."""
        if not piece.file:
            return
        try:
            with self._root.open_input(piece.file) as file, pa.ipc.open_stream(file) as stream:
                yield from stream
        except (ObjectMissing, OSError, pa.ArrowException) as error:
            raise self._damaged(piece, error) from None

    def verify(self, slices: Iterable[StagedSlice]) -> None:
        """Read staged slices to the end. Raise SinkError if one has other rows than were staged."""
        for piece in slices:
            if sum(map(content_of, self.read(piece)), Content()) != piece.content:
                raise self._damaged(piece, "it has other rows than the task had staged")

    def _damaged(self, piece: StagedSlice, problem: object) -> SinkError:
        manifest = self._root.url(_manifest(batch_of(piece.file)))
        return SinkError(
            f"The staged slice {self._root.url(piece.file)} is missing or damaged: {problem}. "
            "This run published nothing of the micro-batch. Either another start of the query runs "
            "and has deleted the file: let only one run. Or the file is lost. Delete the manifest "
            f"of the micro-batch, if {manifest} exists, because it still names this file. Then "
            "start the query again. If it then misses the manifest, see `dedup remedies "
            "sink-markers`.",
            remedy="sink-differs",
        )

    def manifest(self, batch_id: int, slices: Sequence[StagedSlice]) -> list[StagedSlice]:
        """Return the slices that the driver publishes as a whole micro-batch.

        The first call for a micro-batch stores `slices` in a manifest, and later calls return the
        stored slices. Before the call the driver must have read the markers, and know that nothing
        of the micro-batch is published.
        """
        name = _manifest(batch_id)
        body = {"batch_id": batch_id, "slices": [asdict(piece) for piece in slices]}
        faults.point(f"{self.room}.manifest.before")
        self._root.create_bytes(name, to_document(body, version=FORMAT))
        faults.point(f"{self.room}.manifest.after")
        return read_document(self._root, name, lambda document: _slices(document, batch_id))

    def decided(self) -> list[int]:
        """Return the micro-batches that have a manifest."""
        return batch_ids(self._root, MANIFESTS)

    def clean(self, batch_id: int) -> None:
        clean(self._root, ("staged", MANIFESTS), batch_id + 1)


def _manifest(batch_id: int) -> str:
    return f"{MANIFESTS}/{batch_id}.json"


def _slices(document: dict[str, Any], batch_id: int) -> list[StagedSlice]:
    if document["batch_id"] != batch_id:
        raise ValueError(f"it is the manifest of micro-batch {document['batch_id']!r:.80}")
    pieces = [
        StagedSlice(integer(each["slot"], 0), Content(**each["content"]), text(each["file"]))
        for each in document["slices"]
    ]
    for piece in pieces:
        if piece.file and not _FILE.fullmatch(piece.file):
            raise ValueError(f"{piece.file!r:.80} is not a staged slice")
    return pieces


def batch_ids(root: Root, folder: str) -> list[int]:
    """Return the micro-batches that have a document ``<micro-batch>.json`` in a folder."""
    name = re.compile(rf"{folder}/([0-9]{{1,18}})\.json")
    matches = (name.fullmatch(each.name) for each in root.list(folder))
    return [int(match[1]) for match in matches if match]


def clean(root: Root, folders: Iterable[str], batch_id: int) -> None:
    """Delete the objects of earlier micro-batches, also those that a kill left unfinished."""
    for folder in folders:
        names = [file.name for file in root.list(folder)]
        root.delete(name for name in names if batch_of(name) < batch_id)


def batch_of(name: str) -> int:
    """Return the micro-batch of an object, or a huge number for a file of an unknown writer.

    A killed process leaves files with a dot before their name.
    """
    number = re.split("[-.]", name.split("/")[1].removeprefix("."))[0]
    return int(number) if number.isascii() and number.isdigit() else 1 << 62
