"""Values at the edges of every type, through the files of each format, read back by others."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from dedup.errors import DataError
from dedup.sinks.files.function import ready
from dedup.sinks.files.options import files_options
from dedup.sinks.work import new_batch
from tests.support.edge_values import (
    ALL,
    NUL,
    SCALARS,
    TEXTS,
    batch_of,
    data_files,
    differences,
    from_csv,
    from_json,
    from_parquet,
)


def write(folder: Path, rows: pa.RecordBatch, **options: str) -> Path:
    """Let the sink write a micro-batch of two tasks; the folder that shows it."""
    given = {"path": str(folder / "out"), "checkpointLocation": str(folder / "checkpoint")}
    named = {name.replace("_", "."): value for name, value in options.items()}
    work = ready(files_options(given | named), from_arrow_schema(rows.schema))
    batch = new_batch("q", work.name, "run", 0)
    work.complete([work.write(batch, n, [rows.slice(n * 9, 9 if n == 0 else None)])
                   for n in range(2)])  # fmt: skip
    return folder / "out" / "batch=0"


def test_parquet(tmp_path: Path) -> None:
    rows = batch_of(ALL)
    assert differences(from_parquet(write(tmp_path, rows), rows.schema), rows) == []


def test_json(tmp_path: Path) -> None:
    rows = batch_of(ALL)
    folder = write(tmp_path, rows, file_format="json")
    assert differences(from_json(folder, rows.schema), rows) == []


def test_csv(tmp_path: Path) -> None:
    rows = batch_of(edge for edge in SCALARS if edge.spark != "binary")
    folder = write(tmp_path, rows, file_format="csv", header="true")
    assert differences(from_csv(folder, rows.schema, escape="\\"), rows) == []


#: Two of them readers would take for no value; the others cannot name a folder.
REFUSED = ["", "__HIVE_DEFAULT_PARTITION__", NUL, 'in "\0, quotes"', "x" * 300]


def test_folders(tmp_path: Path) -> None:
    texts = [text for text in TEXTS if text not in REFUSED]
    rows = pa.record_batch({"text": [*texts, None], "n": range(len(texts) + 1)})
    folder = write(tmp_path, rows, partition_by="text")
    found = {}
    for path in data_files(folder):
        told = unquote(path.parent.name.removeprefix("text="), errors="strict")
        text = None if told == "__HIVE_DEFAULT_PARTITION__" else told
        found |= dict.fromkeys(pq.ParquetFile(path).read()["n"].to_pylist(), text)
    assert [found[n] for n in range(len(texts) + 1)] == [*texts, None]


@pytest.mark.parametrize("text", REFUSED)
def test_folders_that_would_be_another_value_are_refused(tmp_path: Path, text: str) -> None:
    rows = pa.record_batch({"text": ["a", text], "n": [1, 2]})
    with pytest.raises(DataError, match="Column 'text' names folders") as refused:
        write(tmp_path, rows, partition_by="text")
    assert repr(text[:40]) in str(refused.value)
    assert data_files(tmp_path / "out") == []


@pytest.mark.parametrize("file_format", ["parquet", "json", "csv"])
def test_texts_that_are_not_utf8(tmp_path: Path, file_format: str) -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"]).buffers())
    rows = pa.record_batch({"text": broken})
    if file_format == "parquet":  # which keeps all bytes
        [path] = data_files(write(tmp_path, rows))
        assert pq.read_table(path)["text"].cast(pa.binary()).to_pylist() == [b"caf\xe9"]
        return
    with pytest.raises(DataError, match="not UTF-8"):
        write(tmp_path, rows, file_format=file_format)
