"""The sink as tasks and the driver hold it, without a Spark around them, and a plain reader."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from pyspark.sql import types as T  # noqa: N812

from dedup.sinks.files.options import files_options
from dedup.sinks.files.ready import ready
from dedup.sinks.files.work import FilesWork
from dedup.sinks.work import TaskResult, new_batch

QUERY = "11111111-2222-3333-4444-555555555555"
SCHEMA = T.StructType([T.StructField("n", T.LongType()), T.StructField("day", T.StringType())])


class FolderSink:
    """A sink of rows ``(n bigint, day string)``, whose tasks and driver the test calls.

    Parameters
    ----------
    path : str or Path
        The output.
    folder : Path
        In place of the query's checkpoint.
    query : str
    **options : str
        With underscores for dots.
    """

    def __init__(
        self, path: str | Path, folder: Path, *, query: str = QUERY, **options: str
    ) -> None:
        self.path, self.query = str(path), query
        given = {"path": self.path, "checkpointLocation": str(folder)}
        named = {name.replace("_", "."): value for name, value in options.items()}
        self.work: FilesWork = ready(files_options(given | named), SCHEMA)

    def task(self, run_id: str, batch_id: int, slot: int, numbers: Iterable[int]) -> TaskResult:
        """Let a task write numbers, each in a batch of its own."""
        rows = (batch_of([n]) for n in numbers)
        return self.work.write(self.batch_of(run_id, batch_id), slot, rows)

    def batch_of(self, run_id: str, batch_id: int):  # type: ignore[no-untyped-def]
        return new_batch(self.query, self.work.name, run_id, batch_id)

    def batch(self, run_id: str, batch_id: int, *slices: Iterable[int]) -> None:
        """Run a micro-batch, a task for each slice."""
        self.work.complete([self.task(run_id, batch_id, n, rows) for n, rows in enumerate(slices)])

    def numbers(self) -> Counter[int]:
        """How often each number is seen by a plain reader of the folder."""
        return seen(self.path, self.work.options.file_format)


def seen(path: str, file_format: str = "parquet") -> Counter[int]:
    """How often each number is seen by a plain reader of a folder."""
    if "://" in path:
        fs, place = pafs.FileSystem.from_uri(path)
    else:
        fs, place = pafs.LocalFileSystem(), path
    if fs.get_file_info(place).type == pafs.FileType.NotFound:
        return Counter()
    found = ds.dataset(place, filesystem=fs, format=file_format, partitioning="hive")
    if "n" not in found.schema.names:
        return Counter()
    return Counter(found.to_table(columns=["n"])["n"].to_pylist())


def seen_locally(path: str, file_format: str = "parquet") -> Counter[int]:
    """The same, by a reader that looks into no folder that it passes over, as Spark's does."""
    found: Counter[int] = Counter()
    for parent, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith("_")]
        for name in names:
            if not name.startswith(("_", ".")):
                rows = ds.dataset(f"{parent}/{name}", format=file_format).to_table(columns=["n"])
                found.update(rows["n"].to_pylist())
    return found


def batch_of(numbers: Sequence[int]) -> pa.RecordBatch:
    """Rows of numbers, and the day that each belongs to."""
    days = [f"d{n % 3}" for n in numbers]
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), "day": pa.array(days)})


def once(count: int) -> Counter[int]:
    """Each number once."""
    return Counter(range(count))
