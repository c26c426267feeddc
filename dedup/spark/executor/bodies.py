"""Bodies of blobs in files of Spark's local disk, so that Spark carries a place in their stead.

A row crosses six borders between processes on its way through the three passes, and only the first
and the last pass look at all of it. So a body is written to a file as early as it can be, and what
goes on is its **place**: file, offset, length and checksum. `Plan.bodies` says who writes it:

- ``"pack"``, where all tasks run on one machine: only heads and keys are shuffled, sorted and
  judged by Spark. The file stays until the query's next micro-batch begins, or the session ends:
  retries of the later passes, and every action of a `foreachBatch`, may read it again.
- ``"group"``, on a cluster: the body is shuffled, and the group function writes it for unpack,
  which runs in the same task, and unlinks the file as soon as it has opened it. If unpack does not
  find the file, the task fails, and its retry sends the bodies through Spark.
- ``"nobody"``: it goes through Spark all the way.

Files lie below Spark's own folders for local data, beside those of the shuffle, and go with the
session or executor as they do. One is written by one attempt and never changed; each place names
the file of the attempt that sent it.
"""

from __future__ import annotations

import io
import mmap
import os
import shutil
import struct
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from dedup import kernel
from dedup.core.arrays import U8
from dedup.errors import DedupError, faults
from dedup.spark.executor import wire
from dedup.spark.executor.task import Task
from dedup.spark.plan import Plan

FOLDER = "dedup-bodies"
#: Magic and version, offset, length and checksum; the path follows. An IPC message begins with
#: other bytes.
_PLACE = struct.Struct("<4sQQQ")
_MAGIC = b"DBP1"
#: Bodies begin at multiples of this, and so do Arrow's buffers within them.
_ALIGNED_BYTES = 8
_PAGE_BYTES = 65_536
#: Prefix of files that only the task reads that wrote them.
_HANDED_ON = b"shard-"


class BodyWriter(Protocol):
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
    _file: io.FileIO | None = None
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
            file = self._file = self._file or self._begun()
            place = _PLACE.pack(_MAGIC, self._end, len(data), checksum(data))
            faults.point("bodies.write")
            padding = np.zeros(-len(data) % _ALIGNED_BYTES, np.uint8)
            for part in (data, padding):
                _write_all(file, part)
                self._end += len(part)
        return place + os.fsencode(self.path)

    def close(self) -> None:
        """Let go of the file. It is for this machine's page cache, and need not be durable.

        Raises
        ------
        DedupError
            Where a file system tells only now that it is full.
        """
        with self._errors():
            if self._file is not None:
                file, self._file = self._file, None
                file.close()

    def _begun(self) -> io.FileIO:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return io.FileIO(self.path, "xb", opener=_for_this_user)

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
            # What is there of it would take the room that the next attempt needs.
            with suppress(OSError):
                os.unlink(self.path)
            raise DedupError(
                f"Rows of a micro-batch cannot be written to {self.path}: {error.strerror}. Free "
                "space on that disk and start the query again, or let spark.local.dir "
                "(SPARK_LOCAL_DIRS) name another and start Spark again. Nothing is lost.",
                remedy="local-disk",
            ) from error


@dataclass(slots=True)
class BodyReader:
    """Reads bodies by what stands for them in their blobs."""

    _handed_on: dict[bytes, io.FileIO] = field(default_factory=dict)

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
        message = self._mapped(path, offset, length)
        if message is None or checksum(np.frombuffer(message, np.uint8)) != expected:
            raise DedupError(
                f"{os.fsdecode(path)} is damaged: it holds rows of a micro-batch, and not as "
                "they were written. Check that disk, or let spark.local.dir (SPARK_LOCAL_DIRS) "
                "name another, and start Spark and the query again: it computes the micro-batch "
                "anew.",
                remedy="local-disk",
            )
        return wire.read_batch(message, schema)

    def _mapped(self, path: bytes, offset: int, length: int) -> memoryview | None:
        """Return this part of a file, None where the file is shorter."""
        begin = offset - offset % mmap.ALLOCATIONGRANULARITY
        try:
            with self._opened(path) as file:
                # No more than this part: a worker's address space may be limited.
                mapped = mmap.mmap(
                    file.fileno(), offset - begin + length, access=mmap.ACCESS_READ, offset=begin
                )
        except ValueError:
            return None
        except FileNotFoundError as error:
            raise _gone(path) from error
        except OSError as error:
            raise DedupError(
                f"{os.fsdecode(path)} holds rows of a micro-batch and cannot be read: "
                f"{error.strerror}. Mend that, and start the query again: it computes the "
                "micro-batch anew.",
                remedy="local-disk",
            ) from error
        return memoryview(mapped)[offset - begin :]

    @contextmanager
    def _opened(self, path: bytes) -> Iterator[io.FileIO]:
        """Open a file; one that only this task reads loses its name, and stays open."""
        if not os.path.basename(path).startswith(_HANDED_ON):
            with io.FileIO(path) as file:
                yield file
            return
        if path not in self._handed_on:
            self._handed_on[path] = io.FileIO(path)
            os.unlink(path)
        yield self._handed_on[path]

    def close(self) -> None:
        """Let go of the files; rows that were read stay."""
        while self._handed_on:
            self._handed_on.popitem()[1].close()


def body_writer(plan: Plan, task: Task) -> BodyWriter:
    """Return what pack writes bodies with."""
    if plan.bodies != "pack":
        return InlineBodies()
    return BodyFile(_folder(task) / f"map-{task.partition:05d}-{_attempt(task)}")


def handed_on(plan: Plan, task: Task, shard: int) -> BodyFile | None:
    """Return the file in which the group function hands bodies to unpack, or None for no file.

    In some sandboxes the two Python processes of a task have different disks, and unpack does not
    find the file. So a task that is retried sends its bodies through Spark, and so do its
    executor's later tasks of this start.
    """
    if plan.bodies != "group":
        return None
    failed = Path(_roots()[0], FOLDER, task.query_id, f"failed-{task.run_id}")
    if task.retries:
        with suppress(OSError):
            failed.mkdir(mode=0o700, parents=True, exist_ok=True)
    if task.retries or failed.exists():
        return None
    return BodyFile(_folder(task) / f"{os.fsdecode(_HANDED_ON)}{shard:05d}-{_attempt(task)}")


def drop_earlier(task: Task) -> None:
    """Remove the bodies that the query's earlier micro-batches and runs left with this executor.

    Not those of the run's later micro-batches: a task may outlive its own.
    """
    for root in _roots():
        for other in Path(root, FOLDER, task.query_id).glob("*-*"):
            epoch, _, run_id = other.name.partition("-")
            if epoch.isdecimal() and (run_id != task.run_id or int(epoch) < task.epoch):
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


def _attempt(task: Task) -> str:
    # Not the attempt alone: a plan may hold the operator's passes twice.
    return f"{task.attempt_id}-{uuid.uuid4().hex}.arrow"


def _gone(path: bytes) -> DedupError:
    return DedupError(
        f"{os.fsdecode(path)} is gone, which held rows of a micro-batch. Either something empties "
        "the folders of spark.local.dir (SPARK_LOCAL_DIRS): let it spare them, and start the query "
        "again, which computes the micro-batch anew. Or a foreachBatch function kept its DataFrame "
        "and asked for the rows after the query had gone on: let it do all its work before it "
        "returns. Rows of a micro-batch that is committed cannot be had from this query again. If "
        "the Python processes of an executor have different disks, do nothing: Spark's retry of "
        "the task sends its rows another way.",
        remedy="local-disk",
    )


def _for_this_user(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write_all(file: io.FileIO, data: U8) -> None:
    left = data.data
    while left:
        left = left[file.write(left) or 0 :]
