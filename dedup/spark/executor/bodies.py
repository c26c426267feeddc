"""Bodies of blobs in files of Spark's local disk, so that Spark carries a place in their stead.

A row crosses six borders between processes on its way through the three passes, and only the first
and the last pass look at all of it. So a body is written to a file as early as it can be, and what
goes on is its **place**: file, offset, length and checksum.

- Where all tasks run on one machine, pack writes it, and only heads and keys are shuffled, sorted
  and judged by Spark. The file stays until the query's next micro-batch begins: retries of the
  later passes, and every action of a `foreachBatch`, may read it again.
- On a cluster it is shuffled, and the group function writes it for unpack, which runs in the same
  task, and removes it.

Files lie below Spark's own folders for local data, beside those of the shuffle, and go with the
session or executor as they do. One is written by one attempt and never changed; each place names
the file of the attempt that sent it.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from dedup import faults, kernel
from dedup.core.arrays import U8
from dedup.errors import DedupError
from dedup.spark.executor import wire
from dedup.spark.executor.task import Task

FOLDER = "dedup-bodies"
#: Magic and version, offset, length and checksum; the path follows. An IPC message begins with
#: other bytes.
_PLACE = struct.Struct("<4sQQQ")
_MAGIC = b"DBP1"
#: Bodies begin at multiples of this, and so do Arrow's buffers within them.
_ALIGNED_BYTES = 8
_PAGE_BYTES = 65_536
#: Of the files that are read by the task that wrote them, and by no other.
_HANDED_ON = "shard-"


class Bodies(Protocol):
    """How pack hands on bodies."""

    def write(self, body: pa.RecordBatch) -> pa.Buffer:
        """Return what stands for a body in its blob."""

    def close(self) -> None:
        """End the task's bodies; all of them are where they can be read."""


class InlineBodies:
    """Bodies that travel within their blobs, to whatever machine."""

    def write(self, body: pa.RecordBatch) -> pa.Buffer:
        """Return the body's bytes."""
        return wire.write_body(body)

    def close(self) -> None:
        """Nothing is open."""


@dataclass(slots=True)
class BodyFile:
    """The bodies of one attempt, in a file that is begun with the first of them.

    Parameters
    ----------
    path : Path
        That no other attempt can have.
    """

    path: Path
    _fd: int = -1
    _end: int = 0
    _memory: pa.Buffer | None = None

    def write(self, body: pa.RecordBatch) -> pa.Buffer:
        """Append a body; return its place.

        Raises
        ------
        DedupError
            If the disk is full, or the folder cannot be written.
        """
        return pa.py_buffer(self.append(self._serialized(body)))

    def append(self, data: U8) -> bytes:
        """Append a body's bytes, as `wire.write_body` makes them; place and errors as `write`."""
        with self._errors():
            if self._fd < 0:
                self._begin()
            place = _PLACE.pack(_MAGIC, self._end, len(data), checksum(data))
            faults.point("bodies.write")
            padding = np.zeros(-len(data) % _ALIGNED_BYTES, np.uint8)
            for part in (data, padding):
                _write_all(self._fd, part)
                self._end += len(part)
        return place + os.fsencode(self.path)

    def close(self) -> None:
        """Let go of the file. It is for this machine's page cache, and need not be durable."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _begin(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o600)

    def _serialized(self, body: pa.RecordBatch) -> U8:
        """Return the IPC message, in memory that the next body takes over."""
        schema_bytes = body.schema.serialize().size
        size = schema_bytes + pa.ipc.get_record_batch_size(body) + _ALIGNED_BYTES
        if self._memory is None or self._memory.size < size:
            self._memory = pa.allocate_buffer(size * 5 // 4)
        sink = pa.FixedSizeBufferWriter(self._memory)
        with pa.ipc.new_stream(sink, body.schema) as stream:
            stream.write_batch(body)
            end = sink.tell()
        return np.frombuffer(self._memory, np.uint8)[schema_bytes:end]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            raise DedupError(
                f"Rows of this micro-batch cannot be written to {self.path}: {error.strerror}. "
                "Free space on that disk, or let spark.local.dir (SPARK_LOCAL_DIRS) name another, "
                "and start the query again. Nothing is lost.",
                remedy="local-disk",
            ) from error


@dataclass(slots=True)
class BodyReader:
    """Reads bodies by what stands for them in their blobs."""

    _files: dict[bytes, pa.Buffer] = field(default_factory=dict)

    def read(self, body: pa.Buffer | bytes, schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows, over the file's own pages where they are in one.

        Raises
        ------
        DedupError
            If the file is gone, or not as it was written.
        """
        data = memoryview(body)
        if bytes(data[: len(_MAGIC)]) != _MAGIC:
            return wire.read_batch(body, schema)
        _, offset, length, expected = _PLACE.unpack(data[: _PLACE.size])
        path = bytes(data[_PLACE.size :])
        if path not in self._files:
            self._files[path] = _mapped(path)
        whole = self._files[path]
        start = min(offset, whole.size)
        message = whole.slice(start, min(length, whole.size - start))
        if message.size != length or checksum(np.frombuffer(message, np.uint8)) != expected:
            raise DedupError(
                f"{os.fsdecode(path)} is damaged: it holds rows of this micro-batch, and not as "
                "they were written. Check that disk, or let spark.local.dir (SPARK_LOCAL_DIRS) "
                "name another, and start the query again: it computes the micro-batch anew, and "
                "nothing is lost.",
                remedy="local-disk",
            )
        return wire.read_batch(message, schema)

    def remove_handed_on(self) -> None:
        """Remove the files that were written for this task alone."""
        for path in self._files:
            if os.path.basename(os.fsdecode(path)).startswith(_HANDED_ON):
                with suppress(OSError):
                    os.unlink(path)


def of_map_task(task: Task) -> BodyFile:
    """Return the file for bodies that any task of this machine may read."""
    return BodyFile(_folder(task) / f"map-{task.partition:05d}-{task.attempt_id}.arrow")


def handed_on(task: Task, shard: int) -> BodyFile:
    """Return the file for bodies that unpack reads in the same task, and removes."""
    return BodyFile(_folder(task) / f"{_HANDED_ON}{shard:05d}-{task.attempt_id}.arrow")


def drop_earlier(task: Task) -> None:
    """Remove the bodies of the query's earlier micro-batches, whoever wrote them on this disk.

    Not those of later ones: a task may outlive its micro-batch.
    """
    for root in _roots():
        for other in Path(root, FOLDER, task.query_id).glob("*"):
            epoch = other.name.partition("-")[0]
            if epoch.isdigit() and int(epoch) < task.epoch:
                shutil.rmtree(other, ignore_errors=True)


def checksum(data: U8) -> int:
    """Return 64 bits over all of some bytes."""
    sums = kernel.page_sums(data, _PAGE_BYTES)
    while len(sums) > 1:
        sums = kernel.page_sums(sums.view(np.uint8), _PAGE_BYTES)
    return int(sums[0]) if len(sums) else 0


def _roots() -> list[str]:
    given = [folder for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if folder]
    return given or [tempfile.gettempdir()]


def _folder(task: Task) -> Path:
    roots = _roots()
    root = roots[task.partition % len(roots)]
    return Path(root, FOLDER, task.query_id, f"{task.epoch:012d}-{task.run_id}")


def _mapped(path: bytes) -> pa.Buffer:
    try:
        with pa.memory_map(os.fsdecode(path)) as file:
            return file.read_buffer()
    except OSError as error:
        raise DedupError(
            f"{os.fsdecode(path)} cannot be read ({error.strerror or error}), and holds rows of "
            "this micro-batch. Either something empties the folders of spark.local.dir "
            "(SPARK_LOCAL_DIRS), or a foreachBatch function kept its DataFrame and asked for the "
            "rows after the query had gone on. Start the query again: it computes the micro-batch "
            "anew, and nothing is lost.",
            remedy="local-disk",
        ) from error


def _write_all(fd: int, data: U8) -> None:
    left = data.data
    while left:
        left = left[os.write(fd, left) :]
