"""Files are read whole, each row group once, in the order of the listing."""

from __future__ import annotations

import base64
import os
import struct
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import DataError
from dedup.sources.files.bypass import LeftToSpark, arrow_schema
from dedup.sources.files.exact_values import NotExact, converted
from dedup.sources.files.folder_columns import folder_names
from dedup.sources.files.parquet_input import BATCH_ROWS, ParquetInput
from dedup.sources.files.scan import Scan
from dedup.spark.versions import IS_SPARK_3

NOW = pa.scalar(7, pa.timestamp("us", "UTC"))


def split(path: Path, number: int = 0, count: int = 1, **changes: Any) -> dict[str, Any]:
    """What Spark hands to a task."""
    status = path.stat()
    listed = {"size": status.st_size, "mtime_ms": status.st_mtime_ns // 1_000_000}
    return {
        "path": f"file:{path}",
        **listed,
        "number": number,
        "count": count,
        "now": NOW,
    } | changes


def rows(scan: Scan, *splits: dict[str, Any]) -> list[pa.RecordBatch]:
    return list(scan.rows(iter([pa.RecordBatch.from_pylist(list(splits))])))


def scan_of(schema: pa.Schema, **changes: Any) -> Scan:
    made = {"columns": schema, "names": tuple(schema.names), "folders": frozenset()}
    return Scan(**made | {"now_column": None} | changes)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some%20file.parquet"


@given(groups=st.integers(0, 12), count=st.integers(1, 30), compression=st.booleans())
def test_each_row_group_is_read_by_one_part(
    tmp_path_factory: pytest.TempPathFactory, groups: int, count: int, compression: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "parts.parquet"
    table = pa.table({"n": pa.array(range(groups * 10), pa.int64())})
    pq.write_table(
        table, path, row_group_size=10, compression="snappy" if compression else "none",
        use_dictionary=compression,
    )  # fmt: skip
    scan = scan_of(table.schema)
    found = [b["n"].to_pylist() for i in range(count) for b in rows(scan, split(path, i, count))]
    assert Counter(n for part in found for n in part) == Counter(range(groups * 10))


def test_rows_come_with_the_time_of_the_micro_batch_and_under_the_names_of_the_plan(
    path: Path,
) -> None:
    pq.write_table(pa.table({"a.b": ["x"], "N": pa.array([1], pa.int64()), "more": [2]}), path)
    columns = pa.schema([("n", pa.int64()), ("a.b", pa.string()), ("none", pa.date32())])
    scan = scan_of(columns, names=("n", "__dedup_column_1", "none"), now_column="__dedup_0")
    (batch,) = rows(scan, split(path))
    assert batch.to_pylist() == [
        {"n": 1, "__dedup_column_1": "x", "none": None, "__dedup_0": NOW.as_py()}
    ]


def test_columns_of_folders_come_from_the_folder_names(path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "day": [5]}), path)
    columns = pa.schema([("id", pa.string()), ("day", pa.string()), ("n", pa.int32())])
    scan = scan_of(columns, folders=frozenset({"day", "n"}))
    (batch,) = rows(scan, split(path, folders={"day": "007", "n": None}))
    assert batch.to_pylist() == [{"id": "a", "day": "007", "n": None}]


def test_wide_rows_come_in_small_batches(path: Path) -> None:
    table = pa.table({"text": ["x" * 10_000 + str(i) for i in range(5000)]})
    pq.write_table(table, path, use_dictionary=False)
    found = rows(scan_of(table.schema), split(path))
    assert max(batch.nbytes for batch in found) < 18 << 20
    assert pa.Table.from_batches(found).equals(table)
    repeated = pa.table({"text": ["x" * 100_000] * 5000})
    pq.write_table(repeated, path)
    assert path.stat().st_size < 1 << 20
    found = rows(scan_of(repeated.schema), split(path))
    # The file has each value once, memory once per read.
    assert max(batch.nbytes for batch in found) < 500 << 20
    assert len(found) > 1
    assert sum(batch.num_rows for batch in found) == 5000
    narrow = pa.table({"n": pa.array(range(BATCH_ROWS + 1), pa.int64())})
    pq.write_table(narrow, path)
    assert [b.num_rows for b in rows(scan_of(narrow.schema), split(path))] == [BATCH_ROWS, 1]


@pytest.mark.parametrize("change", [{"size": 1}, {"mtime_ms": 1}])
def test_a_file_that_changed_after_listing_is_an_error(path: Path, change: dict[str, int]) -> None:
    table = pa.table({"n": [1]})
    pq.write_table(table, path)
    with pytest.raises(DataError, match=r"some%20file\.parquet was overwritten while") as error:
        rows(scan_of(table.schema), split(path, **change))
    assert error.value.remedy == "unfinished-files"


def test_a_file_that_changes_while_it_is_read_is_an_error(path: Path) -> None:
    table = pa.table({"n": pa.array(range(2 * BATCH_ROWS), pa.int64())})
    pq.write_table(table, path)
    batches = scan_of(table.schema).rows(iter([pa.RecordBatch.from_pylist([split(path)])]))
    next(batches)
    os.utime(path, (1, 1))
    with pytest.raises(DataError, match="was overwritten while"):
        list(batches)
    path.unlink()


def test_a_file_that_disappeared_is_an_error(path: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), path)
    listed = split(path)
    path.unlink()
    with pytest.raises(DataError, match=r"cannot be read: No such file or directory\. It existed"):
        rows(scan_of(pa.schema([("n", pa.int64())])), listed)


def test_a_damaged_file_is_reported_as_unreadable_parquet(path: Path) -> None:
    table = pa.table({"n": pa.array(range(1000), pa.int64())})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"cannot be read as Parquet: .*CRC") as error:
        rows(scan_of(table.schema), split(path))
    assert error.value.remedy == "bad-records"
    # Spark reads pages of DuckDB that pyarrow does not.
    assert "If it is healthy, have Spark read it (dedup run --parquet spark)" in str(error.value)
    path.write_bytes(b"no Parquet")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        rows(scan_of(table.schema), split(path))


def test_an_unchecked_file_that_only_spark_reads_is_an_error(path: Path) -> None:
    pq.write_table(pa.table({"n": pa.array([1], pa.time64("us"))}), path)
    with pytest.raises(DataError, match=r"its column 'n' is time64.*Run again"):
        rows(scan_of(pa.schema([("n", pa.int64())])), split(path))


# --- which files are read alike


def fault(path: Path, table: pa.Table, columns: pa.Schema | None = None, **how: Any) -> str | None:
    pq.write_table(table, path, **how)
    with ParquetInput(str(path)) as file:
        return file.misfit(columns or table.schema)


NANOS = pa.timestamp("ns")


def nested_of(kind: pa.DataType) -> pa.DataType:
    inner = pa.map_(kind, pa.struct([("c", kind)]))
    return pa.struct([("a", pa.list_(kind)), ("b", inner)])


LIKE = {
    "large_string": (pa.array(["a"], pa.large_string()), pa.string()),
    "dictionary": (pa.array(["a"]).dictionary_encode(), pa.string()),
    "fixed_size_binary": (pa.array([b"ab"], pa.binary(2)), pa.binary()),
    "milliseconds": (pa.array([1], pa.timestamp("ms")), pa.timestamp("us")),
    "another zone": (
        pa.array([1], pa.timestamp("us", "Asia/Tokyo")), pa.timestamp("us", "America/Lima"),
    ),
    "nanoseconds": (pa.array([-1000, None, 10**18], NANOS), pa.timestamp("us")),
    "instants with nanoseconds": (
        pa.array([5000], pa.timestamp("ns", "Asia/Tokyo")), pa.timestamp("us", "UTC"),
    ),
    "nanoseconds inside": (
        pa.array([{"a": [1000, None], "b": [(1000, {"c": 2000})]}, None], nested_of(NANOS)),
        nested_of(pa.timestamp("us")),
    ),
    "uint8": (pa.array([255, None], pa.uint8()), pa.int16()),
    "uint16": (pa.array([2**16 - 1, None], pa.uint16()), pa.int32()),
    "uint32": (pa.array([[2**32 - 1], None], pa.list_(pa.uint32())), pa.list_(pa.int64())),
    "uint64": (pa.array([2**64 - 1, None], pa.uint64()), pa.decimal128(20, 0)),
    "half float": (pa.array([np.float16(1.5), None], pa.float16()), pa.float32()),
    "list": (pa.array([[1]], pa.list_(pa.int64())), pa.list_(pa.int64())),
    "large list": (
        pa.array([[1000], None, []], pa.large_list(NANOS)), pa.list_(pa.timestamp("us")),
    ),
    "map": (
        pa.array([[("a", [1])]], pa.map_(pa.string(), pa.list_(pa.int32()))),
        pa.map_(pa.string(), pa.list_(pa.int32())),
    ),
    "struct": (pa.array([{"a": {"b": "x"}}]), pa.struct([("a", pa.struct([("b", pa.string())]))])),
}  # fmt: skip
UNLIKE = {
    "unsigned": (pa.array([1], pa.uint8()), pa.int8()),
    "wider": (pa.array([1], pa.int32()), pa.int64()),
    "other decimal": (pa.array([1]).cast(pa.decimal128(20, 0)), pa.decimal128(21, 0)),
    "no zone": (pa.array([1], pa.timestamp("us")), pa.timestamp("us", "UTC")),
    "a zone": (pa.array([1], pa.timestamp("us", "UTC")), pa.timestamp("us")),
    "instants with nanoseconds": (pa.array([1], pa.timestamp("ns", "UTC")), pa.timestamp("us")),
    "nanoseconds of no zone": (pa.array([1], pa.timestamp("ns")), pa.timestamp("us", "UTC")),
    "time of day": (pa.array([1], pa.time64("us")), pa.int64()),
    "half float as text": (pa.array([np.float16(1)], pa.float16()), pa.string()),
    "16 bytes for text": (pa.array([b"x" * 16], pa.binary(16)), pa.string()),
    "text for bytes": (pa.array(["a"]), pa.binary()),
    "bytes for text": (pa.array([b"a"]), pa.string()),
    "field order": (
        pa.array([{"a": 1, "b": 2}]), pa.struct([("b", pa.int64()), ("a", pa.int64())]),
    ),
    "fewer fields": (pa.array([{"a": 1}]), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
    "other case inside": (pa.array([{"A": 1}]), pa.struct([("a", pa.int64())])),
    "list of unsigned": (pa.array([[1]], pa.list_(pa.uint32())), pa.list_(pa.int32())),
    "fixed size list": (pa.array([[1]], pa.list_(pa.int32(), 1)), pa.list_(pa.int32())),
}  # fmt: skip


@pytest.mark.parametrize("name", LIKE)
def test_types_that_differ_from_sparks_only_by_a_cast_are_read(path: Path, name: str) -> None:
    array, wanted = LIKE[name]
    columns = pa.schema([("x", wanted)])
    assert fault(path, pa.table({"x": array}), columns) is None
    (batch,) = rows(scan_of(columns), split(path))
    assert batch.schema.types == [wanted]
    assert batch["x"].to_pylist() == array.cast(wanted).to_pylist()


@pytest.mark.parametrize("name", UNLIKE)
def test_types_that_a_cast_cannot_bring_to_sparks_are_left_to_spark(path: Path, name: str) -> None:
    array, wanted = UNLIKE[name]
    told = fault(path, pa.table({"x": array}), pa.schema([("x", wanted)]))
    assert told is not None
    assert told.startswith("its column 'x' is ")


def test_nanoseconds_that_do_not_fit_microseconds_are_an_error(path: Path) -> None:
    values = pa.array([1000, None, 1_714_521_600_000_000_001], NANOS)
    for array, wanted in (
        (values, pa.timestamp("us")),
        (pa.array([[values[2]]], pa.list_(NANOS)), pa.list_(pa.timestamp("us"))),
    ):
        pq.write_table(pa.table({"x": array}), path)
        told = r"its column 'x' has nanoseconds \(.*: 1714521600000000001\), and a timestamp"
        with pytest.raises(DataError, match=told) as error:
            rows(scan_of(pa.schema([("x", wanted)])), split(path))
        assert "empty file" not in str(error.value)


def uuids(count: int) -> list[uuid.UUID | None]:
    return [None if n % 3 == 1 else uuid.UUID(int=n << 96 | 0xABCDEF << n) for n in range(count)]


def test_uuids_are_text_in_lower_case(path: Path) -> None:
    """This holds for any Arrow type and inside nested columns."""
    values = uuids(10)
    shown = [f"('{value}'::uuid)" if value else "(null)" for value in values]
    duckdb.sql(f"copy (select u, [u, null] l from (values {', '.join(shown)}) t(u)) to '{path}'")
    columns = pa.schema([("u", pa.string()), ("l", pa.list_(pa.string()))])
    with ParquetInput(str(path)) as file:
        assert file.misfit(columns) is None
    (batch,) = rows(scan_of(columns), split(path))
    batch.validate(full=True)
    texts = [None if value is None else str(value) for value in values]
    assert batch["u"].to_pylist() == texts
    assert batch["l"].to_pylist() == [[text, None] for text in texts]
    inner = pa.array([None if v is None else v.bytes for v in values], pa.binary(16))
    assert converted(inner[4:9], pa.string()).to_pylist() == texts[4:9]
    lists = pa.ListArray.from_arrays([0, 3, 3, 10], inner)
    wanted = [[], texts[3:]]
    assert converted(lists[1:], pa.list_(pa.string())).to_pylist() == wanted
    # Read in their stored type, they are bytes.
    (batch,) = rows(scan_of(pa.schema([("u", pa.binary())])), split(path))
    assert batch["u"].to_pylist() == [None if value is None else value.bytes for value in values]


def test_intervals_beside_uuids_are_not_read_as_bytes(path: Path) -> None:
    duckdb.sql(f"copy (select interval 1 day i, uuid() u, [interval 1 day] l) to '{path}'")
    with ParquetInput(str(path)) as file:
        for name, kind in (("i", pa.binary()), ("l", pa.list_(pa.binary()))):
            assert "where" in str(file.misfit(pa.schema([(name, kind)])))
        with pytest.raises(pa.ArrowNotImplementedError):
            pq.write_table(file.spark_schema.empty_table(), pa.BufferOutputStream())


def int96(path: Path, times: list[tuple[int, int]]) -> None:
    """A file of Julian days and nanoseconds, and a null."""
    marks = [1_000_000_000 * (n + 1) for n in range(len(times))]
    table = pa.table({"x": pa.array([*marks, None], NANOS), "id": ["a"] * (len(times) + 1)})
    pq.write_table(
        table, path, use_deprecated_int96_timestamps=True, compression="none", use_dictionary=False,
        write_statistics=False,
    )  # fmt: skip
    data = path.read_bytes()
    for mark, (day, nanos) in zip(marks, times, strict=True):
        written = struct.pack("<qi", mark, 2_440_588)
        assert data.count(written) == 1
        data = data.replace(written, struct.pack("<qi", nanos, day))
    path.write_bytes(data)


ZONED = pa.timestamp("us", "UTC")
DAY = 86_400_000_000


def test_int96_is_read_whatever_wrote_it(path: Path) -> None:
    """Old Arrow wrote times before 1970 as negative nanoseconds of the day after."""
    times = [
        (2_440_588, -1_000_000_000), (2_440_587, 86_399_000_000_000), (2_433_433, -1000),
        (2_440_588, 0), (2_440_588, 1000), (1_721_426, 1000), (5_373_484, 86_399_999_999_000),
        (2_335_000, -86_399_999_999_000), (2_600_000, 5000),
    ]  # fmt: skip
    int96(path, times)
    columns = pa.schema([("x", ZONED), ("id", pa.string())])
    (batch,) = rows(scan_of(columns), split(path))
    found = batch["x"].cast(pa.int64()).to_pylist()
    assert found == [*((day - 2_440_588) * DAY + nanos // 1000 for day, nanos in times), None]


@pytest.mark.parametrize("nanos", [1, 616, 999, -1, -999, 86_399_999_999_999])
def test_nanoseconds_of_int96_are_an_error(path: Path, nanos: int) -> None:
    int96(path, [(2_440_588, 5000), (2_440_588, nanos)])
    columns = pa.schema([("x", ZONED)])
    with pytest.raises(
        DataError, match=r"its column 'x' has nanoseconds \(1.*Write the file again"
    ):
        rows(scan_of(columns), split(path))
    with ParquetInput(str(path)) as file, pytest.raises(NotExact, match="column 'x' has nano"):
        file.unread_by_spark(columns)


def test_types_and_codecs_that_spark_does_not_read_are_named(path: Path) -> None:
    def unread(x: pa.Array | list[str], kind: pa.DataType, **how: Any) -> str | None:
        pq.write_table(pa.table({"x": x}), path, **how)
        with ParquetInput(str(path)) as file:
            return file.unread_by_spark(pa.schema([("x", kind)]))

    times = pa.array([0], NANOS)
    told = "its column 'x' holds {}, which Spark does not read"
    assert unread(times, pa.timestamp("us")) == told.format("nanoseconds")
    assert unread(times, pa.int64()) is None
    assert unread(LIKE["half float"][0], pa.float32()) == told.format("half floats")
    codec = "it is compressed by Brotli, for which Spark has no codec"
    assert unread(["a"], pa.string(), compression="brotli") == codec
    for name in ("none", "snappy", "gzip", "zstd", "lz4"):
        assert unread(["a"], pa.string(), compression=name) is None
    duckdb.sql(f"copy (select uuid() x) to '{path}'")
    with ParquetInput(str(path)) as file:
        assert file.unread_by_spark(pa.schema([("x", pa.string())])) == told.format("UUIDs")
        assert file.unread_by_spark(pa.schema([("x", pa.binary())])) is None
        assert file.unread_by_spark(pa.schema([("y", pa.string())])) is None


def test_int96_counts_as_a_time_with_a_zone(path: Path) -> None:
    table = pa.table({"x": pa.array([0], pa.timestamp("us", "UTC"))})
    for wanted, like in ((pa.timestamp("us", "UTC"), True), (pa.timestamp("us"), False)):
        told = fault(path, table, pa.schema([("x", wanted)]), use_deprecated_int96_timestamps=True)
        assert (told is None) == like


def test_nested_int96_is_read_like_top_level_int96(path: Path) -> None:
    def inside(values: list[int | None], kind: pa.DataType) -> pa.Array:
        made = [{"l": [n, None], "m": [("k", n)], "s": {"n": n}} for n in values]
        times = pa.map_(pa.string(), kind)
        all_ = pa.struct({"l": pa.list_(kind), "m": times, "s": pa.struct({"n": kind})})
        return pa.array([*made, None], all_)

    def written(values: list[int | None]) -> None:
        table = pa.table({"x.y": inside(values, NANOS), "n": pa.array([*values, None], NANOS)})
        pq.write_table(table, path, use_deprecated_int96_timestamps=True)

    written([5000, None, -1000])
    wanted = inside([5, None, -1], ZONED)
    columns = pa.schema([("n", ZONED), ("X.y", wanted.type)])
    with ParquetInput(str(path)) as file:
        assert file.misfit(columns) is None
    (batch,) = rows(scan_of(columns), split(path))
    assert batch["X.y"].to_pylist() == wanted.to_pylist()
    written([5000, None, 1])
    with pytest.raises(DataError, match=r"its column 'X.y' has nanoseconds"):
        rows(scan_of(pa.schema([("X.y", wanted.type)])), split(path))


class OpenKeys(encryption.KmsClient):  # type: ignore[misc]
    """Wraps no keys."""

    def __init__(self, _: object) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, _: str) -> bytes:
        return base64.b64encode(key_bytes)


def test_encrypted_columns_under_a_plain_footer_are_left_to_spark(path: Path) -> None:
    """Reading their entries in the footer would end the process."""
    table = pa.table({"a": [1], "b": [2]})
    how = encryption.EncryptionConfiguration(
        footer_key="k", column_keys={"k": ["a"]}, plaintext_footer=True
    )
    keys = encryption.CryptoFactory(OpenKeys).file_encryption_properties(
        encryption.KmsConnectionConfig(), how
    )
    pq.write_table(table, path, encryption_properties=keys)
    with pytest.raises(pa.ArrowNotImplementedError, match="some of its columns are encrypted"):
        ParquetInput(str(path))
    with pytest.raises(DataError, match=r"cannot be read as Parquet: some .* are encrypted"):
        rows(scan_of(table.schema), split(path))


def test_two_columns_that_differ_only_in_case_are_rejected(path: Path) -> None:
    told = fault(path, pa.table({"a": [1], "A": [2]}), pa.schema([("a", pa.int64())]))
    assert told == "it has 2 columns named 'a', in other case"


def test_lists_in_an_older_layout_are_left_to_spark(path: Path) -> None:
    table = pa.table({"x": [[1]]})
    told = fault(path, table, use_compliant_nested_type=False)
    assert told == "its column 'x' is a list or map in another layout than today's"
    assert fault(path, table) is None


@pytest.mark.parametrize(
    ("version", "keys", "like"),
    [
        (None, [], True),
        ("3.5.1", [], True),
        ("4.0.0", [], True),
        ("2.4.8", [], False),
        ("3.0.3", [], False),
        ("4.0.0", ["org.apache.spark.legacyDateTime"], False),
        ("4.0.0", ["org.apache.spark.legacyINT96"], False),
    ],
)
def test_dates_that_may_use_another_calendar_are_left_to_spark(
    path: Path, version: str | None, keys: list[str], like: bool
) -> None:
    noted = dict.fromkeys(keys, "") | (
        {} if version is None else {"org.apache.spark.version": version}
    )
    table = pa.table({"day": pa.array([0], pa.date32()), "n": [1]}).replace_schema_metadata(noted)
    assert (fault(path, table) is None) == like
    assert fault(path, table, pa.schema([("n", pa.int64())])) is None


def test_columns_without_a_name_and_files_without_columns_are_accepted(path: Path) -> None:
    assert fault(path, pa.table({"": [1], "n": [2]}), pa.schema([("n", pa.int64())])) is None
    pq.write_table(pa.table({"n": [1]}).select([]), path)
    assert rows(scan_of(pa.schema([("n", pa.int64())])), split(path)) == []


SPECIAL = [
    T.StructType([T.StructField("a", T.StringType(), True, {name: "5"})])
    for name in ("EXISTS_DEFAULT", "parquet.field.id", "__CHAR_VARCHAR_TYPE_STRING")
]


@pytest.mark.parametrize(
    "kind",
    [
        *([] if IS_SPARK_3 else [T.StringType("UNICODE"), T.VariantType()]),
        *(T.DayTimeIntervalType(), T.StructType([])),
        *SPECIAL,
        *map(T.ArrayType, SPECIAL),
    ],
    ids=str,
)
def test_columns_that_spark_reads_in_its_own_way_are_left_to_spark(kind: T.DataType) -> None:
    with pytest.raises(LeftToSpark, match=r"column 'x(\[\])?(\.a)?' is "):
        arrow_schema(T.StructType([T.StructField("x", kind)]), "UTC")


def test_columns_of_folders_are_named_as_spark_reads_their_names(tmp_path: Path) -> None:
    names = ["a%3Ab=1/B=x=y/1.parquet", "plain/c%=2/2.parquet", "d=4.parquet"]
    found = [name for n in names for name in folder_names(tmp_path / n, tmp_path)]
    assert found == ["a:b", "B", "c%"]
