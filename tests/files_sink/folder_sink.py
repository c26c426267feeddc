"""The harness of the file sink, and plain readers of its output."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from pyspark.sql import types as T  # noqa: N812

from dedup.sinks.files.function import ready
from dedup.sinks.files.options import files_options
from dedup.sinks.files.outputs import output_of
from dedup.sinks.files.work import FilesWork
from dedup.testing.sinks import QUERY, SinkHarness
from dedup.testing.sinks import once as once

SCHEMA = T.StructType([T.StructField("n", T.LongType()), T.StructField("day", T.StringType())])


class FolderSink(SinkHarness):
    """A sink of rows ``(n bigint, day string)``.

    Parameters
    ----------
    path : str or Path
        The output.
    folder : Path
        The checkpoint of the query.
    query : str
    **options : str
        With underscores for dots.
    """

    format = "dedup_files"

    def __init__(
        self, path: str | Path, folder: Path, *, query: str = QUERY, **options: str
    ) -> None:
        self.path, self.query = str(path), query
        given = {"path": self.path, "checkpointLocation": str(folder)}
        self.given = given | {name.replace("_", "."): value for name, value in options.items()}
        self.work: FilesWork = ready(files_options(self.given), SCHEMA)

    def rows(self, numbers: Sequence[int]) -> pa.RecordBatch:
        """Return rows of numbers."""
        return batch_of(numbers)

    def numbers(self) -> Counter[int]:
        """Return how often a plain reader of the folder finds each number."""
        return seen(self.path, self.work.options.file_format)


def left(sink: FolderSink) -> list[str]:
    """Return the names of what is below _staging."""
    return [found.name for found in output_of(sink.work.options).root.list("_staging")]


def seen(path: str, file_format: str = "parquet") -> Counter[int]:
    """Return how often a plain reader of a folder finds each number."""
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
    """Return the same by a reader that skips hidden folders, as Spark's does."""
    found: Counter[int] = Counter()
    for parent, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith("_")]
        for name in names:
            if not name.startswith(("_", ".")):
                rows = ds.dataset(f"{parent}/{name}", format=file_format).to_table(columns=["n"])
                found.update(rows["n"].to_pylist())
    return found


def batch_of(numbers: Sequence[int]) -> pa.RecordBatch:
    """Return rows of numbers, each with a day."""
    days = [f"d{n % 3}" for n in numbers]
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), "day": pa.array(days)})
