"""Values at the edges of every type, through both formats, read back by DuckDB and the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_type

from dedup.errors import DataError
from dedup.sinks.lakehouse.options import DELTA
from tests.lakehouse.lakes import Columns, Lake, Sink
from tests.support.edge_values import ALL, TEXTS, Edge, batch_of, told


def named(edges: tuple[Edge, ...]) -> Columns:
    kinds = ((edge.name, from_arrow_type(edge.arrow)) for edge in edges)
    return [("n", "int"), *kinds]


def by_duckdb(lake: Lake) -> dict[str, list[Any]]:
    """All columns, from the data files that the table names, in the order of `n`."""
    names = lake.named_files()
    paths = [str(path) for path in lake.folder.rglob("*.parquet") if path.name in names]
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.execute("SELECT * FROM read_parquet(?) ORDER BY n", [paths])
        columns = [column[0] for column in found.description]
        rows = found.fetchall()
    return {name: [row[place] for row in rows] for place, name in enumerate(columns)}


def test_edge_values_are_read_back_unchanged(lake: Lake, tmp_path: Path) -> None:
    rows = batch_of(ALL)
    sink = Sink(lake, tmp_path / "checkpoint", named(ALL))
    sink.work.complete([sink.write("run1", 0, 0, rows.slice(0, 7), rows.slice(7))])
    from_files, from_table = by_duckdb(lake), lake.read().sort_by("n").to_pydict()
    for name, wanted in zip(rows.schema.names, rows.columns, strict=True):
        values = list(map(told, wanted.to_pylist()))
        # pyiceberg's own reader makes empty lists of null ones where they hold structures.
        if lake.format == DELTA or "struct" not in name:
            assert list(map(told, from_table[name])) == values, name
        if not pa.types.is_map(wanted.type):  # which is another Python value there
            assert list(map(told, from_files[name])) == values, name


def test_a_table_can_be_partitioned_by_any_text(lake: Lake, tmp_path: Path) -> None:
    lake.create(pa.schema([("text", pa.string()), ("n", pa.int64())]), "text")
    sink = Sink(lake, tmp_path / "checkpoint", [("text", "string"), ("n", "bigint")])
    texts = [*TEXTS, "é" * 200, "y" * 5000, None]
    if lake.format == DELTA:
        rows = pa.RecordBatch.from_pydict({"text": [""], "n": [0]})
        with pytest.raises(DataError, match="reads back as null"):
            sink.write("run1", 0, 0, rows)
        texts.remove("")
    rows = pa.RecordBatch.from_pydict({"text": texts, "n": range(len(texts))})
    sink.work.complete([sink.write("run1", 0, 0, rows)])
    assert lake.read().sort_by("n").select(["text", "n"]).to_pydict() == rows.to_pydict()
