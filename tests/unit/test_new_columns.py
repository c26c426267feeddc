"""Columns of files, found without Spark, and how they may change."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as T  # noqa: N812

from dedup.cli.run.input.columns import (
    changes,
    check_new_schema,
    first_fault,
    joined,
    schema_bytes,
    widens,
)
from dedup.cli.run.input.event_time import arrival_note, time_columns
from dedup.cli.run.options import RunOptions
from dedup.errors import ConfigError, DataError
from dedup.sources.files.text_options import header_of


def ddl(**fields: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


STRING, INT, LONG = T.StringType(), T.IntegerType(), T.LongType()


@pytest.mark.parametrize(
    ("header", "fault"),
    [("id,x,", "has no name for column 3"), ("id,x,x", "has two columns named 'x'"),
     ('"Id",x,id', "has two columns named 'id'"), ('"id', "a value in quotes has no end"),
     ('"id"x', "text behind the closing quote")],
)  # fmt: skip
def test_headers_with_missing_or_duplicate_names_are_rejected(
    tmp_path: Path, header: str, fault: str
) -> None:
    path = tmp_path / "f.csv"
    path.write_text(f"{header}\n1,2,3\n")
    with pytest.raises(DataError, match=fault):
        header_of(path, {})


def test_names_are_read_from_the_header(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text('\n#no\nid||"a\nb"|| \n')
    assert header_of(path, {"sep": "||", "comment": "#"}) == ["id", "a\nb", " "]
    path.write_text("\n")
    assert header_of(path, {}) == []


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_files_with_the_same_columns_have_equal_schema_bytes(
    tmp_path: Path, file_format: str
) -> None:
    write = pq.write_table if file_format == "parquet" else orc.write_table

    def kind(name: str, **columns: object) -> bytes | None:
        write(pa.table(columns).replace_schema_metadata({"n": name}), str(tmp_path / name))
        return schema_bytes(tmp_path / name, file_format)

    assert kind("1", id=["a"]) == kind("2", id=["b"])
    assert kind("1", id=["a"]) != kind("2", id=["b"], x=[1])
    (tmp_path / "0").touch()
    assert schema_bytes(tmp_path / "0", file_format) is None


def test_columns_that_differ_between_files_are_named(tmp_path: Path) -> None:
    """Spark names neither the file nor the column."""
    tables = [
        pa.table({"t": pa.array([0], pa.timestamp("ns")), "s": [{"a": 1}], "n": [1]}),
        pa.table({"t": pa.array([0], pa.timestamp("us")), "s": [{"b": 1}]}),
        pa.table({"n": pa.array([1], pa.int32())}),
    ]
    paths = [tmp_path / str(number) for number in range(3)]
    for path, rows in zip(paths, tables, strict=True):
        pq.write_table(rows, path)
    assert first_fault(paths[:2], "parquet") is None
    assert first_fault(paths, "parquet") == (
        f"{paths[2]}: its column 'n' is int32, and int64 in {paths[0]}. --schema may give the "
        "wider type for both"
    )
    (tmp_path / "no Parquet").write_bytes(b"x")
    told = first_fault([*paths[:1], tmp_path / "no Parquet", *paths], "parquet")
    assert str(told).startswith(f"{tmp_path}/no Parquet: it is not Parquet (")


def test_changes_of_columns_are_classified() -> None:
    known = ddl(id=STRING, n=INT, d=T.DecimalType(4, 1), s=ddl(a=INT), l=T.ArrayType(ddl(b=LONG)))
    found = ddl(
        ID=STRING, n=LONG, d=STRING, s=ddl(a=INT, x=INT), l=T.ArrayType(ddl(b=INT)), new=STRING
    )
    told = {change.column: change.kind for change in changes(known, found)}
    assert told == {
        "n": "other", "d": "other", "s.x": "added", "l[].b": "narrower", "new": "added",
    }  # fmt: skip
    exact = {change.column: change.kind for change in changes(known, found, exact=True)}
    assert exact["ID"] == "respelled"
    assert exact["id"] == "removed"
    larger = {"s": ddl(a=INT, x=INT), "new": STRING}
    assert joined(known, found) == ddl(**({f.name: f.dataType for f in known} | larger))


@pytest.mark.parametrize(
    ("narrow", "wide", "does"),
    [(T.ByteType(), T.LongType(), True), (INT, LONG, True), (LONG, INT, False),
     (T.FloatType(), T.DoubleType(), True), (INT, T.DoubleType(), False),
     (T.DecimalType(5, 2), T.DecimalType(6, 2), True),
     (T.DecimalType(5, 2), T.DecimalType(6, 4), False),
     (T.DecimalType(5, 2), T.DecimalType(5, 2), False), (INT, STRING, False)],
)  # fmt: skip
def test_a_type_widens_only_without_loss(narrow: T.DataType, wide: T.DataType, does: bool) -> None:
    assert widens(narrow, wide) is does


def options_for(folder: Path, **given: object) -> RunOptions:
    (folder / "in").mkdir(exist_ok=True)
    options = {"input": folder / "in", "id": ("id",), "horizon": "1 day", "output": folder / "out"}
    return RunOptions.make(**(options | given))  # type: ignore[arg-type]


def test_a_schema_that_changes_the_type_of_a_known_column_is_rejected(tmp_path: Path) -> None:
    options = options_for(tmp_path, timestamp="t")
    known = ddl(id=INT, t=T.TimestampType(), n=INT, s=ddl(a=INT))
    check_new_schema(known, ddl(id=INT, t=T.TimestampType(), n=INT, s=ddl(b=INT)), options)
    for given, text in (
        (ddl(id=INT, n=LONG), "makes the column 'n' bigint, and in --output .* a new --output"),
        (ddl(id=INT, t=STRING), "makes the column 't' string, and in --output"),
        (ddl(id=INT, t=T.TimestampType(), n=T.ShortType()), "makes the column 'n' smallint"),
    ):
        with pytest.raises(ConfigError, match=text):
            check_new_schema(known, given, options)


def test_a_note_suggests_time_columns_if_the_run_uses_its_own_clock(tmp_path: Path) -> None:
    texts = dict.fromkeys(("id", "note", "created_at", "eventTime", "cat"), STRING)
    schema = ddl(**texts, ts=LONG, amount=LONG, seen=T.TimestampType())
    assert time_columns(schema, ("id",)) == ["seen", "created_at", "eventTime", "ts"]
    told = arrival_note(options_for(tmp_path), schema)
    assert told is not None
    assert "measured by this run's own clock" in told
    assert "--timestamp seen" in told
    assert arrival_note(options_for(tmp_path, timestamp="seen"), schema) is None
