"""Values at the edges of every type, through both formats, read back by DuckDB and pyiceberg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from dedup.errors import DataError
from dedup.lakehouse.lake_options import DELTA
from tests.lakehouse.lakes import Lake, Sink
from tests.support.edge_values import ALL, SCALARS, Edge, batch_of, told


def columns_of(rows: pa.RecordBatch, edges: tuple[Edge, ...]) -> list[tuple[str, str]]:
    return [("n", "int"), *((edge.name, edge.spark) for edge in edges)]


def from_files(lake: Lake) -> dict[str, list[Any]]:
    """All rows, by DuckDB from the data files, in the order of `n`."""
    names = lake.named_files()
    paths = [str(path) for path in lake.folder.rglob("*.parquet") if path.name in names]
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = connection.execute("SELECT * FROM read_parquet(?) ORDER BY n", [paths])
        return dict(zip([d[0] for d in rows.description], zip(*rows.fetchall()), strict=True))


def test_values_at_the_edges(lake: Lake, tmp_path: Path) -> None:
    rows = batch_of(ALL)
    sink = Sink(lake, tmp_path / "checkpoint", columns_of(rows, ALL))
    sink.work.complete([sink.write("run1", 0, 0, rows.slice(0, 7), rows.slice(7))])
    by_duckdb, by_library = from_files(lake), lake.read().sort_by("n").to_pydict()
    for name, wanted in zip(rows.schema.names, rows.columns, strict=True):
        values = list(map(told, wanted.to_pylist()))
        assert list(map(told, by_library[name])) == values, name
        if not pa.types.is_nested(wanted.type):  # which are other values in DuckDB's Python
            assert list(map(told, by_duckdb[name])) == values, name
