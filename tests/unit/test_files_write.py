"""What tasks write: files as Spark would, in bounded pieces, whole or not there."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row

from dedup.errors import DataError, DedupError
from dedup.sinks.files import output_files
from dedup.sinks.files.output_files import (
    ParquetOutput,
    TextOutput,
    parquet_writer,
    with_spark_metadata,
)
from dedup.sinks.files.slice_files import FileShape, SliceFiles, staging_folder
from dedup.sinks.files.task_files import TaskFiles
from dedup.sinks.files.text_lines import Dialect
from tests.support.small_disk import small_disk

N = pa.schema([("n", pa.int64())])


def numbers(count: int, first: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"n": np.arange(first, first + count)}, schema=N)


def writer_of(schema: pa.Schema, **changes: Any) -> TaskFiles:
    shape = FileShape(**{"columns": schema, "compression": "snappy"} | changes)
    return TaskFiles(staging="unused", shape=shape)


def test_row_groups_are_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_files, "GROUP_BYTES", 8000)
    file = ParquetOutput(tmp_path / "new" / "x.parquet", N, "snappy")
    for number in range(10):
        file.add(numbers(300, number * 300))
    file.finish()
    metadata = pq.read_metadata(file.path)
    groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert groups == [1200, 1200, 600]
    assert (metadata.num_rows, file.nbytes) == (3000, file.path.stat().st_size)
    assert pq.read_table(file.path)["n"].to_pylist() == list(range(3000))


def test_only_columns_that_repeat_values_get_a_dictionary(tmp_path: Path) -> None:
    rows = pa.record_batch(
        {
            "n": np.arange(1000),
            "few": ["a", "b"] * 500,
            "list": pa.array([[1]] * 1000, pa.list_(pa.field("element", pa.int32()))),
            "map": pa.array([[("k", 1)]] * 1000, pa.map_(pa.string(), pa.int32())),
            "struct": pa.array([{"a": {"b": 1}}] * 1000),
        }
    )
    file = ParquetOutput(tmp_path / "x.parquet", rows.schema, "zstd")
    file.add(rows)
    file.finish()
    group = pq.read_metadata(file.path).row_group(0)
    found = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert [name for name, column in found.items() if not column.has_dictionary_page] == ["n"]
    assert {column.compression for column in found.values()} == {"ZSTD"}


def test_a_footer_says_what_spark_says(tmp_path: Path) -> None:
    columns = pa.schema(
        [
            pa.field("must", pa.string(), nullable=False),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("small", pa.decimal128(9, 2)),
            ("mid", pa.decimal128(18, 2)),
            ("large", pa.decimal128(19, 2)),
        ]
    )
    told = with_spark_metadata(columns, '{"type":"struct"}', "4.3.0")
    with parquet_writer(tmp_path / "x.parquet", told, "none") as writer:
        writer.write_table(told.empty_table())
    file = pq.ParquetFile(tmp_path / "x.parquet")
    assert file.metadata.metadata == {
        b"org.apache.spark.version": b"4.3.0",
        b"org.apache.spark.sql.parquet.row.metadata": b'{"type":"struct"}',
    }
    leaves = [file.schema.column(i) for i in range(len(columns))]
    assert leaves[0].max_definition_level == 0
    assert [leaf.physical_type for leaf in leaves[1:]] == [
        "INT64", "INT64", "INT32", "INT64", "FIXED_LEN_BYTE_ARRAY",
    ]  # fmt: skip
    assert "isAdjustedToUTC=true" in str(leaves[1].logical_type)
    assert "isAdjustedToUTC=false" in str(leaves[2].logical_type)


def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        file = ParquetOutput(disk / "x.parquet", N, "none")
        rng = np.random.default_rng(1)
        rows = pa.record_batch({"n": rng.integers(0, 2**62, 1 << 20)}, schema=N)
        with pytest.raises(DedupError, match=r"cannot be written: .*Free space") as error:
            file.add(rows)
        assert error.value.remedy == "local-disk"
        file.drop()
        assert list(disk.iterdir()) == []


# --- on the driver


class Batch:
    """What a micro-batch's last pass told of its files."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = rows

    def collect(self) -> list[Row]:
        return [Row(**row) for row in self.rows]


@pytest.fixture
def staged(tmp_path: Path) -> tuple[TaskFiles, Path, dict[str, Any]]:
    """A task has written one file, another attempt left a second one."""
    folder = tmp_path / "_staging" / staging_folder(3, "run")
    files = writer_of(N)
    for name in ("counted", "left"):
        file = ParquetOutput(folder / f"{name}.parquet", N, "none")
        file.add(numbers(5))
        file.finish()
    row = {"path": str(folder / "counted.parquet"), "name": "v=unique/counted.parquet"}
    return files, folder, row | {"nbytes": (folder / "counted.parquet").stat().st_size}


def test_files_that_tasks_report_are_moved_and_others_are_removed(
    staged: tuple[TaskFiles, Path, dict[str, Any]], tmp_path: Path
) -> None:
    files, folder, row = staged
    files.write(cast(Any, Batch(row)), tmp_path / "rows", "v")
    assert [str(p.relative_to(tmp_path)) for p in (tmp_path / "rows").rglob("*.parquet")] == [
        "rows/v=unique/counted.parquet"
    ]
    assert not folder.exists()


@pytest.mark.parametrize("harm", ["gone", "shorter"])
def test_a_file_that_is_not_as_its_task_left_it_is_not_published(
    staged: tuple[TaskFiles, Path, dict[str, Any]], tmp_path: Path, harm: str
) -> None:
    files, _, row = staged
    path = Path(row["path"])
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DedupError, match=r"counted\.parquet.*cannot be published"):
        files.write(cast(Any, Batch(row)), tmp_path / "rows", "v")


def test_a_micro_batch_without_rows_writes_nothing_or_only_the_schema(
    staged: tuple[TaskFiles, Path, dict[str, Any]], tmp_path: Path
) -> None:
    files, _, _ = staged
    files.write(cast(Any, Batch()), tmp_path / "rows", None)
    assert list((tmp_path / "rows").iterdir()) == []
    nobody = cast(Any, SimpleNamespace())
    files.write_no_rows(nobody, tmp_path / "none", "v")
    assert pq.read_table(tmp_path / "none").schema.names == ["n"]
    every = N.append(pa.field("v", pa.string()))
    writer_of(every).write_no_rows(nobody, tmp_path / "all", None)
    assert pq.read_table(tmp_path / "all").schema.names == ["n", "v"]


# --- text

RUN = Dialect(header=True, escape='"', also_quoted="", null_fields=True)
PEOPLE = pa.record_batch(
    {"id": ["a", None, "#"], "n": [1, 2, None], "v": ["unique", "late", "unique"]}
)


def text_of(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_text_files_are_split_by_folder(tmp_path: Path, file_format: str, compression: str) -> None:
    columns = pa.schema([("id", pa.string()), ("n", pa.int64())])
    shape = FileShape(
        columns=columns,
        compression=compression,
        split_by=("v",),
        file_format=file_format,
        dialect=RUN,
    )
    with SliceFiles(tmp_path, shape, 7) as files:
        for _ in range(2):
            files.add(PEOPLE)
        written = files.finish()
    ending = f".{file_format}" + (".gz" if compression == "gzip" else "")
    assert all(f.path.endswith(ending) and "part-00007-" in f.path for f in written)
    assert [Path(f.path).stat().st_size for f in written] == [f.nbytes for f in written]
    unique = {"csv": 'id,n\na,1\n"#",\na,1\n"#",\n',
              "json": '{"id":"a","n":1}\n{"id":"#","n":null}\n' * 2}  # fmt: skip
    late = {"csv": "id,n\n,2\n,2\n", "json": '{"id":null,"n":2}\n' * 2}
    assert {os.path.dirname(f.name): text_of(Path(f.path)) for f in written} == {
        "v=unique": unique[file_format], "v=late": late[file_format],
    }  # fmt: skip
    nobody = cast(Any, SimpleNamespace())
    TaskFiles(staging="unused", shape=shape).write_no_rows(nobody, tmp_path / "none", "v")
    (none,) = (tmp_path / "none").iterdir()
    assert none.name == f"part-none{ending}"
    assert text_of(none) == {"csv": "id,n\n", "json": ""}[file_format]


def test_lines_are_made_in_bounded_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row may be larger than a piece, but not without bound."""
    monkeypatch.setattr(output_files, "_LINES_BYTES", 1000)
    monkeypatch.setattr(output_files, "_LARGEST_BYTES", 1 << 20)
    sizes = list[int]()

    def lines(rows: pa.RecordBatch) -> bytes:
        sizes.append(rows.nbytes)
        return "".join(f"{text}\n" for text in rows["t"].to_pylist()).encode()

    file = TextOutput(tmp_path / "x.csv", pa.schema([("t", pa.string())]), "none", lines)
    texts = ["x" * 90] * 50 + ["y" * 5000] * 2 + ["z"]
    file.add(pa.record_batch({"t": texts}))
    file.add(pa.record_batch({"t": pa.array([], pa.string())}))
    assert [size for size in sizes if size > 1000] == [5004, 5004]
    with pytest.raises(DataError, match="A row has 2 MiB, and a line of text has space for 1"):
        file.add(pa.record_batch({"t": ["x", "x" * (2 << 20)]}))
    file.finish()
    assert file.path.read_text().split() == [*texts, "x"]
