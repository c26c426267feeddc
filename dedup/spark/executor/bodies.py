"""Keeps the user's rows in files on Spark's local disk while the operator decides about them.

Pack collects the rows of a shard into blobs. A **body** is the part of a blob with the user's rows,
as Arrow bytes. The other parts are small: the records' IDs, times and flags. A row crosses six
process boundaries on its way through the three passes, and only the first and the last pass look at
the whole row. So a pass writes the body to a file as early as possible, and sends only the body's
**place** through Spark: file, offset, length and checksum. `Plan.bodies` names the pass that
writes:

- ``"pack"``, if all tasks run on one machine. Spark then shuffles and sorts only the small parts.
  The file stays until the query's next micro-batch begins or the session ends, because retries of
  the later passes and every action of a `foreachBatch` may read the file again.
- ``"group"``, on a cluster. Spark shuffles the body, and the group function writes the file. Unpack
  runs in the same task, and unlinks the file when it opens it. If unpack does not find the file,
  the task fails, and its retry sends the bodies through Spark.
- ``"none"``. The body goes through Spark all the way.

Files are in Spark's folders for local data, and Spark deletes them with the session or executor.
Each attempt of a task writes its own file.
"""

from __future__ import annotations

import io
import mmap
import os
import shutil
import struct
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from dedup import kernel
from dedup.errors import DedupError, faults
from dedup.kernel.arrays import U8
from dedup.spark.executor import wire
from dedup.spark.executor.task import Task
from dedup.spark.machine import local_folders
from dedup.spark.plan import Plan

FOLDER = "dedup-bodies"
#: A place: magic and version, offset, length, checksum. The path of the file follows. The magic
#: distinguishes a place from a body, because no IPC message starts like that.
_PLACE = struct.Struct("<4sQQQ")
_MAGIC = b"DBP1"
#: Alignment of bodies, and of Arrow's buffers in the bodies.
_ALIGNED_BYTES = 8
_PAGE_BYTES = 65_536
#: Prefix of files that only the writing task reads.
_HANDED_ON = b"shard-"


@dataclass(slots=True)
class BodyFile:
    """The file for the bodies of one attempt. The first body creates the file."""

    path: Path
    _file: io.FileIO | None = None
    _end: int = 0
    _memory: pa.Buffer | None = None

    def write(self, body: pa.RecordBatch) -> pa.Buffer:
        """Append a body, and return its place. Raises DedupError if the disk refuses it."""
        return pa.py_buffer(self.append(self._serialized(body)))

    def append(self, data: U8) -> bytes:
        """Append a body from `wire.write_body`, as `write` does."""
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
        """Close the file. Some file systems report a full disk only now."""
        with self._errors():
            if self._file is not None:
                file, self._file = self._file, None
                file.close()

    def _begun(self) -> io.FileIO:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return io.FileIO(self.path, "xb", opener=lambda path, flags: os.open(path, flags, 0o600))

    def _serialized(self, body: pa.RecordBatch) -> U8:
        """Return the body as an IPC message. The next call overwrites the returned memory."""
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
            # The partial file would take the space that the next attempt needs.
            with suppress(OSError):
                os.unlink(self.path)
            raise DedupError(
                f"Cannot write rows of a micro-batch to {self.path}: {error.strerror}. Nothing is "
                "lost. Free space on that disk and start the query again, or name another disk in "
                "spark.local.dir (SPARK_LOCAL_DIRS) and start Spark again.",
                remedy="local-disk",
            ) from error


@dataclass(slots=True)
class BodyReader:
    """Reads bodies. A blob holds either a body or the body's place in a file."""

    _handed_on: dict[bytes, io.FileIO] = field(default_factory=dict)

    def read(self, body: pa.Buffer | bytes, schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows of a body. If `body` is a place, the rows are mapped from the file."""
        data = memoryview(body)
        if bytes(data[: len(_MAGIC)]) != _MAGIC:
            return wire.read_batch(body, schema)
        _, offset, length, expected = _PLACE.unpack(data[: _PLACE.size])
        path = bytes(data[_PLACE.size :])
        message = self._mapped(path, offset, length)
        if message is None or checksum(np.frombuffer(message, np.uint8)) != expected:
            raise DedupError(
                f"{os.fsdecode(path)} is damaged: it holds rows of a micro-batch, but not as they "
                "were written. Check that disk, or name another one in spark.local.dir "
                "(SPARK_LOCAL_DIRS). Then start Spark and the query again: it recomputes the "
                "micro-batch.",
                remedy="local-disk",
            )
        return wire.read_batch(message, schema)

    def _mapped(self, path: bytes, offset: int, length: int) -> memoryview | None:
        """Map a part of a file into memory, or return None if the file is shorter."""
        begin = offset - offset % mmap.ALLOCATIONGRANULARITY
        try:
            with self._opened(path) as file:
                # Map only this part: a worker's address space may be limited.
                mapped = mmap.mmap(
                    file.fileno(), offset - begin + length, access=mmap.ACCESS_READ, offset=begin
                )
        except ValueError:
            return None
        except FileNotFoundError as error:
            raise _gone(path) from error
        except OSError as error:
            raise DedupError(
                f"Cannot read rows of a micro-batch from {os.fsdecode(path)}: {error.strerror}. "
                "Fix that, and start the query again: it recomputes the micro-batch.",
                remedy="local-disk",
            ) from error
        return memoryview(mapped)[offset - begin :]

    @contextmanager
    def _opened(self, path: bytes) -> Iterator[io.FileIO]:
        """Open a file. If only this task reads the file, unlink the file and keep it open."""
        if not os.path.basename(path).startswith(_HANDED_ON):
            with io.FileIO(path) as file:
                yield file
            return
        if path not in self._handed_on:
            self._handed_on[path] = io.FileIO(path)
            os.unlink(path)
        yield self._handed_on[path]

    def close(self) -> None:
        """Close the files. Rows that `read` returned stay valid."""
        while self._handed_on:
            self._handed_on.popitem()[1].close()


def packed_bodies(plan: Plan, task: Task) -> BodyFile | None:
    """Return the file for the bodies of pack, or None if bodies travel inside their blobs."""
    if plan.bodies != "pack":
        return None
    return BodyFile(_folder(task) / f"map-{task.partition:05d}-{_attempt(task)}")


def handed_on(plan: Plan, task: Task, shard: int) -> BodyFile | None:
    """Return the file in which the group function passes bodies to unpack, or None for no file.

    In some sandboxes the two Python processes of a task have different disks, so unpack does not
    find the file. Therefore a retried task sends its bodies through Spark. Later tasks on the same
    executor do the same until the query starts again.
    """
    if plan.bodies != "group":
        return None
    failed = Path(local_folders()[0], FOLDER, task.query_id, f"failed-{task.run_id}")
    if task.retries:
        with suppress(OSError):
            failed.mkdir(mode=0o700, parents=True, exist_ok=True)
    if task.retries or failed.exists():
        return None
    return BodyFile(_folder(task) / f"{os.fsdecode(_HANDED_ON)}{shard:05d}-{_attempt(task)}")


def drop_earlier(task: Task) -> None:
    """Delete the files that this executor wrote in earlier micro-batches and runs of the query.

    Files of later micro-batches stay, because this task may outlive its own micro-batch.
    """
    for root in local_folders():
        for other in Path(root, FOLDER, task.query_id).glob("*-*"):
            epoch, _, run_id = other.name.partition("-")
            if epoch.isdecimal() and (run_id != task.run_id or int(epoch) < task.epoch):
                shutil.rmtree(other, ignore_errors=True)


def checksum(data: U8) -> int:
    sums = kernel.page_sums(data, _PAGE_BYTES)
    while len(sums) > 1:
        sums = kernel.page_sums(sums.view(np.uint8), _PAGE_BYTES)
    return int(sums[0]) if len(sums) else 0


def _folder(task: Task) -> Path:
    roots = local_folders()
    root = roots[task.partition % len(roots)]
    return Path(root, FOLDER, task.query_id, f"{task.epoch:012d}-{task.run_id}")


def _attempt(task: Task) -> str:
    # The attempt's ID is not enough: a plan may hold the operator's passes twice.
    return f"{task.attempt_id}-{uuid.uuid4().hex}.arrow"


def _gone(path: bytes) -> DedupError:
    return DedupError(
        f"{os.fsdecode(path)} is gone, which held rows of a micro-batch. If something empties the "
        "folders of spark.local.dir (SPARK_LOCAL_DIRS), exclude them and start the query again: it "
        "recomputes the micro-batch. If a foreachBatch function kept its DataFrame and read the "
        "rows after the query had continued, let it do all its work before it returns: this query "
        "cannot return the rows of a committed micro-batch again. If the Python processes of an "
        "executor have different disks, do nothing: Spark's retry of the task sends its rows "
        "another way.",
        remedy="local-disk",
    )


def _write_all(file: io.FileIO, data: U8) -> None:
    left = data.data
    while left:
        left = left[file.write(left) or 0 :]
