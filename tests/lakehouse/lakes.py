"""Tables of both formats, and the harness of their sinks."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import faults
from dedup.sinks.lakehouse.function import ready
from dedup.sinks.lakehouse.options import DELTA, ICEBERG, lake_options
from dedup.sinks.lakehouse.work import LakeWork
from dedup.sinks.work import TaskResult
from dedup.testing.sinks import QUERY as QUERY
from dedup.testing.sinks import SinkHarness
from dedup.testing.sinks import once as once

#: Name and type of each column; a text is Spark's name of a type without parameters.
Columns = Sequence[tuple[str, str | T.DataType]]
NUMBERS: Columns = [("n", "bigint"), ("text", "string")]
_PLAIN = {
    kind.simpleString(): kind
    for kind in (
        T.BooleanType(), T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(),
        T.DoubleType(), T.StringType(), T.BinaryType(), T.DateType(), T.TimestampType(),
        T.TimestampNTZType(),
    )
}  # fmt: skip
FORMATS = [DELTA, ICEBERG]


class Lake:
    """A folder with tables of one format, `DELTA` or `ICEBERG`."""

    def __init__(self, format_name: str, folder: Path) -> None:
        self.format, self.folder = format_name, folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def catalog(self) -> dict[str, str]:
        """How pyiceberg finds the tables."""
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/warehouse",
        }

    def options(self, table: str = "numbers") -> dict[str, str]:
        """Options of a sink into a table."""
        if self.format == DELTA:
            return {"path": str(self.folder / table)}
        named = {f"catalog.{name}": value for name, value in self.catalog.items()}
        return {"table": f"shop.{table}", **named}

    def iceberg(self, table: str = "numbers") -> Any:
        """The table, by pyiceberg and a catalog of the test's own."""
        from pyiceberg.catalog import load_catalog

        return load_catalog("default", **self.catalog).load_table(f"shop.{table}")

    def create(self, columns: pa.Schema, *names: str, **transforms: str) -> None:
        """Make the table of numbers, divided by columns, or in Iceberg by `transforms` of them."""
        if self.format == DELTA:
            from deltalake import DeltaTable, Schema

            where, by = str(self.folder / "numbers"), [*names, *transforms]
            DeltaTable.create(where, Schema.from_arrow(columns), partition_by=by)
            return
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("default", **self.catalog)
        catalog.create_namespace("shop")
        with catalog.create_table("shop.numbers", columns).update_spec() as spec:
            for name, transform in {**dict.fromkeys(names, "identity"), **transforms}.items():
                spec.add_field(name, transform)

    def drop(self) -> None:
        """Remove the table of numbers."""
        if self.format == DELTA:
            shutil.rmtree(self.folder / "numbers")
        else:
            self.iceberg().catalog.drop_table("shop.numbers")

    def read(self, table: str = "numbers") -> pa.Table:
        """All rows of a table, by a reader of polars' own where there is one."""
        if self.format == DELTA:
            from deltalake import DeltaTable

            return DeltaTable(str(self.folder / table)).to_pyarrow_table()
        return self.iceberg(table).scan().to_arrow()

    def found(self, table: str = "numbers") -> Counter[int]:
        """How often each number is in a table."""
        return Counter(self.read(table)["n"].to_pylist())

    def versions(self, table: str = "numbers") -> int:
        """How many commits a table has."""
        if self.format == DELTA:
            from deltalake import DeltaTable

            return int(DeltaTable(str(self.folder / table)).version()) + 1
        return len(self.iceberg(table).metadata.snapshots) + 1

    def add(self, number: int, table: str = "numbers") -> None:
        """Let somebody else append a row."""
        rows = pa.table({"n": pa.array([number], pa.int64()), "text": ["theirs"]})
        if self.format == DELTA:
            from deltalake import write_deltalake

            write_deltalake(str(self.folder / table), rows, mode="append")
        else:
            self.iceberg(table).append(rows)

    def data_files(self, table: str = "numbers") -> set[str]:
        """Data files that are there, by name."""
        where = self.folder if self.format == DELTA else self.folder / "warehouse/shop"
        return {path.name for path in (where / table).rglob("*.parquet")
                if path.parent.name != "_delta_log"}  # fmt: skip

    def named_files(self, table: str = "numbers") -> set[str]:
        """Data files that the newest version names."""
        if self.format == DELTA:
            from deltalake import DeltaTable

            return {Path(uri).name for uri in DeltaTable(str(self.folder / table)).file_uris()}
        tasks = self.iceberg(table).scan().plan_files()
        return {Path(task.file.file_path).name for task in tasks}

    def lose_markers(self) -> None:
        """Take the markers out of the table of numbers, whose rows stay."""
        if self.format == DELTA:
            for path in (self.folder / "numbers/_delta_log").glob("*.json"):
                lines = [line for line in path.read_text().splitlines() if '"txn":' not in line]
                path.write_text("\n".join(lines))
        else:
            table = self.iceberg()
            with table.transaction() as transaction:
                transaction.remove_properties(*[p for p in table.properties if "marker" in p])


class Sink(SinkHarness):
    """A sink of a stream with these columns into a table.

    Names of options have underscores for dots.
    """

    def __init__(
        self,
        lake: Lake,
        checkpoint: Path,
        columns: Columns = NUMBERS,
        *,
        table: str = "numbers",
        query: str = QUERY,
        **options: str,
    ) -> None:
        named = {name.replace("_", "."): value for name, value in options.items()}
        given = {"checkpointLocation": str(checkpoint), "create": "true"}
        self.given, self.format = given | lake.options(table) | named, lake.format
        self.lake, self.table, self.query = lake, table, query
        self.work: LakeWork = ready(lake_options(lake.format, self.given), schema_of(columns))

    def rows(self, numbers: Sequence[int]) -> pa.RecordBatch:
        """Return rows of a table of numbers."""
        return numbers_of(numbers)

    def write(self, run_id: str, batch_id: int, slot: int, *rows: pa.RecordBatch) -> TaskResult:
        """Let a task write rows."""
        return self.send(run_id, batch_id, slot, rows)

    def tasks(self, run_id: str, batch_id: int, *slices: Iterable[int]) -> list[TaskResult]:
        """Let tasks write numbers, each slice in one record batch."""
        return [
            self.write(run_id, batch_id, slot, numbers_of([*each]))
            for slot, each in enumerate(slices)
        ]

    def numbers(self) -> Counter[int]:
        """Return how often each number is in the table."""
        return self.lake.found(self.table)


def schema_of(columns: Columns) -> T.StructType:
    """The columns as Spark describes them."""
    pairs = ((name, _PLAIN[kind] if isinstance(kind, str) else kind) for name, kind in columns)
    return T.StructType([T.StructField(name, kind) for name, kind in pairs])


def numbers_of(some: Sequence[int]) -> pa.RecordBatch:
    """Rows of a table of numbers."""
    texts = [f"v{n}" for n in some]
    return pa.RecordBatch.from_pydict({"n": pa.array(some, pa.int64()), "text": pa.array(texts)})


@contextmanager
def at_point(name: str, then: Callable[[], object]) -> Iterator[None]:
    """Call a function at the next visit to a point, which must come."""
    visited: list[str] = []

    def point(here: str, path: object = None) -> None:
        if here == name and not visited:
            visited.append(here)
            then()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "point", point)
        yield
    assert visited
