"""What goes into which column, what is refused by name, and tables that are divided."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import ConfigError, DataError, DedupError
from dedup.sinks.batch import new_batch
from dedup.sinks.lakehouse.columns import new_columns, spark_name
from dedup.sinks.lakehouse.delta import stats_of
from dedup.sinks.lakehouse.function import ready
from dedup.sinks.lakehouse.options import DELTA, ICEBERG, lake_options
from tests.lakehouse.lakes import QUERY, Columns, Lake, Sink, schema_of

STRUCT = pa.struct([("x-y", pa.int32())])
_STRUCT = T.StructType([T.StructField("x-y", T.IntegerType())])


@pytest.mark.parametrize(
    ("kind", "arrow", "values"),
    [
        (T.ArrayType(_STRUCT), pa.list_(STRUCT), [None, [], [None], [{"x-y": 1}]]),
        (T.MapType(T.StringType(), _STRUCT), pa.map_(pa.string(), STRUCT),
         [None, [], [("a", None)], [("a", {"x-y": 1})]]),
        (T.StructType([T.StructField("l", T.ArrayType(_STRUCT))]),
         pa.struct([("l", pa.list_(STRUCT))]),
         [None, {"l": None}, {"l": []}, {"l": [None, {"x-y": None}]}]),
    ],
)  # fmt: skip
def test_null_and_empty_lists_of_structs_stay_different(
    lake: Lake, tmp_path: Path, kind: T.DataType, arrow: pa.DataType, values: list[Any]
) -> None:
    """The test reads the files, because pyiceberg's reader turns null lists into empty ones."""
    sink = Sink(lake, tmp_path / "checkpoint", [("c", kind)])
    rows = pa.RecordBatch.from_arrays([pa.array(values, arrow)], names=["c"])
    sink.work.complete([sink.write("run1", 0, 0, rows)])
    (path,) = (each for each in lake.folder.rglob("*.parquet") if "_delta_log" not in each.parts)
    assert pq.read_table(path)["c"].to_pylist() == values


FAR = [253_402_300_800_000_000, -62_135_596_800_000_001]  # in microseconds, at both ends


@pytest.mark.parametrize("us", FAR)
def test_times_and_dates_beyond_python_are_kept(lake: Lake, tmp_path: Path, us: int) -> None:
    """For example 9999-12-31 23:59:59 west of Greenwich."""
    columns: Columns = [("n", "bigint"), ("day", "date"), ("at", "timestamp")]
    sink = Sink(lake, tmp_path / "checkpoint", columns)
    days = pa.array([us // 86_400_000_000, 0], pa.int32()).view(pa.date32())
    times = pa.array([us, 0], pa.int64()).view(pa.timestamp("us", "America/Los_Angeles"))
    numbers = pa.array([1, 2], pa.int64())
    rows = pa.RecordBatch.from_arrays([numbers, days, times], names=["n", "day", "at"])
    sink.work.complete([sink.write("run1", 0, 0, rows)])
    found = lake.read().sort_by("n")
    assert found["n"].to_pylist() == [1, 2]
    assert found["day"].cast(pa.int32()).combine_chunks() == days.view(pa.int32())
    assert found["at"].cast(pa.int64()).combine_chunks() == times.view(pa.int64())


@pytest.mark.parametrize("lake", [ICEBERG], indirect=True)
def test_a_text_whose_prefix_has_no_successor_is_found_by_a_filter(
    lake: Lake, tmp_path: Path
) -> None:
    """The upper bound is 16 characters, the last one incremented, and would not be valid text."""
    text = "x" * 15 + "\ud7ff and more"
    sink = Sink(lake, tmp_path / "checkpoint")
    rows = pa.record_batch({"n": [1, 2], "text": [text, "a"]})
    sink.work.complete([sink.write("run1", 0, 0, rows)])
    for one in (text, "a"):
        found = lake.iceberg().scan(row_filter=f"text = '{one}'").to_arrow()
        assert found["text"].to_pylist() == [one]


def test_a_date_beyond_the_year_9999_is_refused_as_a_partition(lake: Lake, tmp_path: Path) -> None:
    lake.create(pa.schema([("day", pa.date32()), ("n", pa.int64())]), "day")
    sink = Sink(lake, tmp_path / "checkpoint", [("day", "date"), ("n", "bigint")])
    days = pa.array([2_932_897], pa.int32()).view(pa.date32())
    rows = pa.RecordBatch.from_arrays([days, pa.array([1], pa.int64())], names=["day", "n"])
    with pytest.raises(DataError, match="beyond the years 1 to 9999"):
        sink.write("run1", 0, 0, rows)


def test_narrow_types_go_into_wider_columns(lake: Lake, tmp_path: Path) -> None:
    wide: Columns = [
        ("a", "bigint"), ("b", "double"), ("c", T.DecimalType(20, 5)), ("text", "string"),
    ]  # fmt: skip
    Sink(lake, tmp_path / "first", wide)
    narrow: Columns = [
        ("text", T.VarcharType(9)), ("c", T.DecimalType(9, 2)), ("b", "float"), ("a", "smallint"),
    ]  # fmt: skip
    sink = Sink(lake, tmp_path / "second", narrow)
    rows = pa.RecordBatch.from_pydict({
        "text": ["x"], "c": pa.array([Decimal("1.25")], pa.decimal128(9, 2)),
        "b": pa.array([0.5], pa.float32()), "a": pa.array([7], pa.int16()),
    })  # fmt: skip
    sink.work.complete([sink.write("run1", 0, 0, rows)])
    assert lake.read().to_pylist() == [{"a": 7, "b": 0.5, "c": Decimal("1.25000"), "text": "x"}]


def test_columns_that_the_stream_lacks_are_null(lake: Lake, tmp_path: Path) -> None:
    Sink(lake, tmp_path / "first", [("n", "bigint"), ("more", "string")])
    sink = Sink(lake, tmp_path / "second", [("n", "bigint")])
    rows = pa.RecordBatch.from_pydict({"n": [1]})
    sink.work.complete([sink.write("run1", 0, 0, rows)])
    assert lake.read().to_pylist() == [{"n": 1, "more": None}]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ([("n", T.DecimalType(20, 0))], r"'n' does not go into table .*: it is decimal\(20,0\)"),
        ([("n", "bigint"), ("text", "binary")], "it is binary, and there string"),
        ([("n", "bigint"), ("at", "timestamp_ntz")], "it is timestamp_ntz, and there timestamp"),
        ([("N", "bigint")], "has no column 'N'; it has 'n'"),
        ([("n", "bigint"), ("n", "bigint")], "two columns of the name"),
        ([("n", "string")], "it is string, and there bigint"),
        ([("list", T.ArrayType(T.StringType()))], r"it is array<string>, and there array<int>"),
    ],
)
def test_columns_that_do_not_fit_are_rejected(
    lake: Lake, tmp_path: Path, columns: Columns, why: str
) -> None:
    there: Columns = [
        ("n", "bigint"), ("text", "string"), ("at", "timestamp"),
        ("list", T.ArrayType(T.IntegerType())),
    ]  # fmt: skip
    Sink(lake, tmp_path / "first", there)
    with pytest.raises(ConfigError, match=why):
        Sink(lake, tmp_path / "second", columns)


@pytest.mark.parametrize(
    "kind", [T.VariantType(), T.DayTimeIntervalType(), T.NullType(), T.ArrayType(T.VariantType())]
)
def test_types_that_cannot_be_created_are_rejected(
    lake: Lake, tmp_path: Path, kind: T.DataType
) -> None:
    with pytest.raises(ConfigError, match=r"cannot be created: column 'c.*' is .*Cast it"):
        Sink(lake, tmp_path / "checkpoint", [("c", kind)])


def test_a_new_table_has_the_types_of_the_stream_and_requires_no_value() -> None:
    texts = T.StructField("b", T.ArrayType(T.CharType(3)), nullable=False)
    kind = T.MapType(T.VarcharType(9), T.ArrayType(T.StructType([texts]), False), False)
    columns = new_columns(T.StructType([T.StructField("c", kind, nullable=False)]))
    assert spark_name(columns.field("c").type) == "map<string,array<struct<b:array<string>>>>"
    assert columns.field("c").nullable


# --- tables that are divided

DIVIDED: Columns = [("day", "date"), ("city", "string"), ("n", "bigint")]


def divided(lake: Lake) -> None:
    """Make a table that is divided by day and city."""
    columns = pa.schema([("day", pa.date32()), ("city", pa.string()), ("n", pa.int64())])
    if lake.format == DELTA:
        lake.create(columns, "day", "city")
    else:
        lake.create(columns, day="month", city="identity", n="bucket[4]")


def rows_of_days() -> pa.RecordBatch:
    days = [date(2026, 11, 1 + n % 3) if n % 5 else None for n in range(60)]
    cities = [("Ulm", "a/b=c d%", None)[n % 3] for n in range(60)]
    return pa.RecordBatch.from_pydict({
        "day": pa.array(days, pa.date32()), "city": cities, "n": pa.array(range(60), pa.int64()),
    })  # fmt: skip


def test_rows_go_into_the_partitions_of_a_table(lake: Lake, tmp_path: Path) -> None:
    divided(lake)
    sink = Sink(lake, tmp_path / "checkpoint", DIVIDED)
    rows = rows_of_days()
    sink.work.complete([sink.write("run1", 0, 0, rows.slice(0, 30), rows.slice(30))])
    found = lake.read().select(["day", "city", "n"]).sort_by("n")
    assert found.to_pylist() == rows.to_pylist()
    if lake.format == DELTA:
        from deltalake import DeltaTable, QueryBuilder

        table = DeltaTable(str(lake.folder / "numbers"))
        ask = "SELECT n FROM numbers WHERE city = 'a/b=c d%' ORDER BY n"
        part = QueryBuilder().register("numbers", table).execute(ask).read_all()
        assert pa.table(part)["n"].to_pylist() == [n for n in range(60) if n % 3 == 1]
        return
    scan = lake.iceberg().scan(row_filter="city == 'Ulm' and day == '2026-11-01'")
    assert all(task.file.partition[1] == "Ulm" for task in scan.plan_files())
    wanted = [n for n in range(60) if n % 3 == 0 and n % 5]
    assert sorted(scan.to_arrow()["n"].to_pylist()) == wanted


def test_a_partitioned_table_rejects_missing_columns_and_empty_texts(
    lake: Lake, tmp_path: Path
) -> None:
    divided(lake)
    with pytest.raises(ConfigError, match="is divided by"):
        Sink(lake, tmp_path / "checkpoint", DIVIDED[1:])
    if lake.format == ICEBERG:
        return
    sink = Sink(lake, tmp_path / "checkpoint", DIVIDED)
    rows = pa.RecordBatch.from_pydict({
        "day": pa.array([None], pa.date32()), "city": [""], "n": pa.array([1], pa.int64()),
    })  # fmt: skip
    with pytest.raises(DataError, match="an empty text in it, which Delta Lake reads back as null"):
        sink.write("run1", 0, 0, rows)


@pytest.mark.parametrize("lake", [DELTA], indirect=True)
def test_a_stream_of_nothing_but_partition_columns_is_rejected(lake: Lake, tmp_path: Path) -> None:
    divided(lake)
    # A file without columns would have no rows.
    with pytest.raises(ConfigError, match="by all columns that the stream has"):
        Sink(lake, tmp_path / "checkpoint", DIVIDED[:2])


@pytest.mark.parametrize("lake", [DELTA], indirect=True)
def test_rows_are_found_by_every_column(lake: Lake, tmp_path: Path) -> None:
    import pyarrow.dataset as ds
    from deltalake import DeltaTable

    # One column more that has bounds in no file, and one that has them in one file alone.
    stream: Columns = [("n", "bigint"), ("text", "string"), ("f", "double")]
    sink = Sink(lake, tmp_path / "checkpoint", stream)
    for number, text in enumerate(["short", "long" * 30]):
        rows = pa.RecordBatch.from_pydict({"n": [number], "text": [text], "f": [float(number)]})
        sink.work.complete([sink.write("run1", number, 0, rows)])
    table = DeltaTable(str(lake.folder / "numbers"))
    assert pa.table(table.get_add_actions(flatten=True))["num_records"].to_pylist() == [1, 1]
    for number, text in enumerate(["short", "long" * 30]):
        for wanted in ("n", number), ("text", text), ("f", float(number)):
            found = table.to_pyarrow_table(filters=ds.field(wanted[0]) == wanted[1])
            assert found["n"].to_pylist() == [number], wanted


def test_statistics_count_rows_and_nulls() -> None:
    import io

    collected: list[pq.FileMetaData] = []
    table = pa.table({"n": pa.array([None, None], pa.int64()), "f": [1.0, float("nan")]})
    pq.write_table(table, io.BytesIO(), metadata_collector=collected)
    assert json.loads(stats_of(collected[0])) == {"numRecords": 2, "nullCount": {"n": 2, "f": 0}}


def test_complete_mode_is_rejected(lake: Lake) -> None:
    from pyspark.sql.types import StructType

    from dedup.sinks.data_source import source_of
    from dedup.sinks.files.function import FILES
    from dedup.sinks.lakehouse.function import DELTA_LAKE, ICEBERG_TABLES

    for source in map(source_of, (FILES, DELTA_LAKE, ICEBERG_TABLES)):
        with pytest.raises(ConfigError, match=r"outputMode\('complete'\) gives the whole result"):
            source(lake.options()).streamWriter(StructType(), True)


# --- tables that ask for more


@pytest.mark.parametrize("lake", [DELTA], indirect=True)
@pytest.mark.parametrize(
    ("asks", "settings", "why"),
    [
        ("table", {"delta.constraints.positive": "n > 0"}, "has the constraint positive"),
        ("table", {"delta.columnMapping.mode": "name"}, "has column mapping"),
        ("table", {"delta.enableRowTracking": "true"}, "row tracking"),
        ("table", {"delta.setTransactionRetentionDuration": "interval 1 days"},
         "forgets application"),
        ("column", {"delta.generationExpression": "n + 1"}, "has a generated column"),
        ("column", {"delta.invariants": "x"}, "has an invariant"),
        ("column", {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}, "limits its length"),
    ],
)  # fmt: skip
def test_delta_tables_with_unsupported_features_are_rejected(
    lake: Lake, tmp_path: Path, asks: str, settings: dict[str, str], why: str
) -> None:
    """The first commit of the table declares the feature."""
    Sink(lake, tmp_path / "checkpoint")
    first = lake.folder / f"numbers/_delta_log/{0:020d}.json"
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    (told,) = (line["metaData"] for line in lines if "metaData" in line)
    if asks == "table":
        told["configuration"].update(settings)
    else:
        schema = json.loads(told["schemaString"])
        schema["fields"][1]["metadata"] = settings
        told["schemaString"] = json.dumps(schema)
    first.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(ConfigError, match=why):
        Sink(lake, tmp_path / "checkpoint")


@pytest.mark.parametrize("lake", [ICEBERG], indirect=True)
def test_iceberg_tables_of_another_file_or_table_format_are_rejected(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Sink(lake, tmp_path / "checkpoint")
    table = lake.iceberg()
    with table.transaction() as transaction:
        transaction.set_properties({"write.format.default": "orc"})
    with pytest.raises(ConfigError, match="asks for files of orc; this sink writes Parquet"):
        Sink(lake, tmp_path / "checkpoint")
    with table.transaction() as transaction:
        transaction.set_properties({"write.format.default": "parquet"})
    monkeypatch.setattr("dedup.sinks.lakehouse.iceberg._NEWEST_FORMAT", 1)
    with pytest.raises(ConfigError, match="has format 2, and this sink writes up to 1"):
        Sink(lake, tmp_path / "checkpoint")


def test_large_slices_become_several_files(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dedup.sinks.lakehouse.work.CHUNK_BYTES", 1000)
    sink = Sink(lake, tmp_path / "checkpoint", [("n", "bigint")])
    rows = [pa.RecordBatch.from_pydict({"n": range(100 * n, 100 * n + 100)}) for n in range(5)]
    batch = new_batch(QUERY, sink.work.name, "run1", 0)
    sink.work.complete([sink.work.write(batch, 0, iter(rows))])
    assert lake.found() == dict.fromkeys(range(500), 1)
    assert len(lake.named_files()) == 3


@pytest.mark.parametrize(
    ("format_name", "given", "why"),
    [
        (DELTA, {"path": "/dev/null/orders"}, "/dev/null/orders cannot be opened"),
        (DELTA, {"path": "/proc/x"}, "/proc/x cannot be opened"),
        (ICEBERG, {"catalog.uri": "sqlite:////dev/null/c.db"}, "unable to open database file"),
        (ICEBERG, {"catalog.uri": "mysql://u:s3cret@h/x"}, "cannot be opened: .*not installed"),
        (ICEBERG, {"catalog.type": "rest", "catalog.uri": "http://u:s3cret@127.0.0.1:1/x"},
         "cannot be opened: .*refused"),
        (ICEBERG, {"catalog.warehouse": "file:///dev/null/x"}, "cannot be opened: .*Not a dir"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("create", ["true", "false"])
def test_a_table_that_cannot_be_reached_is_reported_without_secrets(
    tmp_path: Path, format_name: str, given: dict[str, str], why: str, create: str
) -> None:
    """The library's own error names neither the cause nor the remedy."""
    whole = Lake(format_name, tmp_path).options() | {"checkpointLocation": str(tmp_path)} | given
    told = why if create == "true" else "cannot|does not exist|not installed"
    with pytest.raises(DedupError, match=told) as refused:
        ready(lake_options(format_name, whole | {"create": create}), schema_of([("n", "bigint")]))
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("format_name", "given", "why"),
    [
        (DELTA, {}, "option path is missing"),
        (ICEBERG, {}, "option table is missing"),
        (ICEBERG, {"table": "orders"}, "must be its name with the namespace"),
        (DELTA, {"path": "/a%20b"}, "has a percent sign"),
        (DELTA, {"path": "s3://b/a#b/t"}, "has a '#'"),
        (DELTA, {"path": "/x", "name": "a b"}, "letters, digits"),
        (DELTA, {"path": "/x", "craete": "true"}, "Did you mean create"),
        (DELTA, {"path": "/x", "storage.AWS_ENDPOINT_URL": "x"}, "storage.AWS_ENDPOINT_URL is not"),
        (DELTA, {"path": "/x", "storage.aws_secret_access_key": "x"}, "is not supported"),
        (DELTA, {"path": "/x", "create": "yes"}, "must be true or false"),
        (DELTA, {"path": "/x", "accept.difference": "x"}, "must be a whole number"),
    ],
)
def test_options_that_cannot_work_are_rejected(
    format_name: str, given: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        lake_options(format_name, {"checkpointLocation": "/c"} | given)


def test_options_are_normalised() -> None:
    made = lake_options(DELTA, {"path": "s3a://b/t/", "checkpointLocation": "/c",
                                "storage.AWS_ALLOW_HTTP": "x"})  # fmt: skip
    assert (made.table, dict(made.properties)) == ("s3://b/t", {"AWS_ALLOW_HTTP": "x"})
    made = lake_options(DELTA, {"path": "s3://b/a%20b", "checkpointLocation": "/c"})
    assert made.table == "s3://b/a%20b"
    made = lake_options(DELTA, {"path": "file:/a%20b/t", "checkpointLocation": "/c"})
    assert made.table == "/a b/t"
    made = lake_options(ICEBERG, {"table": "a.b", "catalog.uri": "u", "checkpointLocation": "/c"})
    assert (made.catalog, dict(made.properties)) == ("default", {"uri": "u"})
