"""Values at the edges of Spark's types, for what must come out of every sink as it went in."""

from __future__ import annotations

import base64
import csv
import json
import math
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


@dataclass(frozen=True, slots=True)
class Edge:
    """Values of one type, as `to_pylist` gives them; null is one of them everywhere."""

    #: Spark's name of the type, and the type that Spark hands to a sink.
    spark: str
    arrow: pa.DataType
    values: tuple[Any, ...]

    @property
    def name(self) -> str:
        """Of a column."""
        return "c_" + "".join(each if each.isalnum() else "_" for each in self.spark)

    def array(self, count: int | None = None) -> pa.Array:
        """All values and null, repeated up to `count`."""
        values = [*self.values, None]
        count = len(values) if count is None else count
        return pa.array([values[n % len(values)] for n in range(count)], self.arrow)

    def only(self, is_held: Callable[[Any], bool]) -> Edge:
        """The same type with the values that a target holds."""
        return replace(self, values=tuple(filter(is_held, self.values)))


NUL = "a\0b"
TEXTS = (
    "", " ", "  two  ", "\t", "tab\tbetween", NUL, '"', '""', 'say "x"', "'", "`", "\\", '\\"',
    'in "\0, quotes"', "a\\", "\\N", "\\n", ",", "a,b", ";", "|", "=", "#", "# no comment", "--",
    "// x", "/* x */", "\n", "two\nlines", "\r", "\r\n", "a\r\nb\rc", "null", "NULL", "None",
    "NaN", "true", "007", "1e5", "-0", "{}", "[1]", '{"a":1}', "%20", "%", "a/b", "..", "\u0085",
    "\u2028", "\ufeffbom", "é", "e\u0301", "🐍", "\U0010ffff", "\x7f", "\x1b[31m", "\x01",
    "2024-02-30", "x" * 300,
)  # fmt: skip
_DATES = (date(1, 1, 1), date(1582, 10, 4), date(1582, 10, 15), date(1900, 2, 28),
          date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29), date(9999, 12, 31))  # fmt: skip
_TIMES = (
    datetime(1, 1, 1), datetime(1582, 10, 4, 23, 59, 59, 999999), datetime(1883, 11, 18, 12, 3, 58),
    datetime(1900, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(1970, 1, 1),
    datetime(2024, 3, 31, 2, 30, 0, 1), datetime(9999, 12, 31, 23, 59, 59, 999999),
)  # fmt: skip
_FLOATS = (0.0, -0.0, 1.0, math.nan, math.inf, -math.inf)
_US = pa.timestamp("us", "UTC")

#: Types of one value.
SCALARS = (
    Edge("boolean", pa.bool_(), (True, False)),
    Edge("tinyint", pa.int8(), (-(2**7), 0, 2**7 - 1)),
    Edge("smallint", pa.int16(), (-(2**15), 2**15 - 1)),
    Edge("int", pa.int32(), (-(2**31), 2**31 - 1)),
    Edge("bigint", pa.int64(), (-(2**63), 2**53 + 1, 2**63 - 1)),
    Edge("float", pa.float32(), (*_FLOATS, 0.5, 3.4028234663852886e38, 1.401298464324817e-45)),
    Edge("double", pa.float64(), (*_FLOATS, 0.1, 1e16, 1.7976931348623157e308, 5e-324)),
    Edge("decimal(38,0)", pa.decimal128(38, 0),
         (Decimal("9" * 38), Decimal("-" + "9" * 38), Decimal(0))),
    Edge("decimal(38,38)", pa.decimal128(38, 38),
         (Decimal("0." + "9" * 38), Decimal("-0." + "0" * 37 + "1"))),
    Edge("decimal(12,2)", pa.decimal128(12, 2), (Decimal("-9999999999.99"), Decimal("0.10"))),
    Edge("string", pa.string(), TEXTS),
    Edge("binary", pa.binary(), (b"", b"\0", b"\xff\xfe", b"caf\xe9", b'"', b",\n")),
    Edge("date", pa.date32(), _DATES),
    Edge("timestamp", _US, tuple(each.replace(tzinfo=UTC) for each in _TIMES)),
    Edge("timestamp_ntz", pa.timestamp("us"), _TIMES),
)  # fmt: skip
_PAIR = pa.struct([("a", pa.string()), ("b", pa.list_(pa.struct([("c", pa.float64())])))])
#: Types within types, null at every depth.
NESTED = (
    Edge("array<string>", pa.list_(pa.string()), ([], [None], ["", None, NUL, '"', "🐍"])),
    Edge("array<decimal(12,2)>", pa.list_(pa.decimal128(12, 2)), ([Decimal("-0.10"), None],)),
    Edge("array<array<int>>", pa.list_(pa.list_(pa.int32())), ([None, [], [None, 1]], [])),
    Edge("map<string,double>", pa.map_(pa.string(), pa.float64()),
         ([], [("", None), ('"k\\', math.nan), (NUL, -0.0)])),
    Edge("struct<a:string,b:array<struct<c:double>>>", _PAIR,
         ({"a": None, "b": None}, {"a": "", "b": []}, {"a": "\n", "b": [None, {"c": None}]},
          {"a": " ", "b": [{"c": -math.inf}, {"c": 0.1}]})),
    Edge("map<string,array<timestamp>>", pa.map_(pa.string(), pa.list_(_US)),
         ([("t", None)], [("t", [None, datetime(1, 1, 1, tzinfo=UTC)])])),
)  # fmt: skip
ALL = SCALARS + NESTED


def batch_of(edges: Iterable[Edge]) -> pa.RecordBatch:
    """A row for each value: a column ``n`` that numbers them, and one for each type."""
    edges = tuple(edges)
    count = max(len(edge.values) for edge in edges) + 1
    columns = {"n": pa.array(range(count), pa.int32())}
    # A type with fewer values begins again.
    columns |= {edge.name: edge.array(count) for edge in edges}
    return pa.RecordBatch.from_pydict(columns)


def has_nul(value: Any) -> bool:
    """Whether a text in a value has the character NUL."""
    if isinstance(value, dict):
        return any(map(has_nul, value.values()))
    return (isinstance(value, str) and "\0" in value) or (
        isinstance(value, (list, tuple)) and any(map(has_nul, value))
    )


def told(value: Any) -> str:
    """A value as text: NaN equals NaN, 1 equals 1.00, a UUID its text; -0.0 differs from 0.0."""
    if isinstance(value, dict):
        return str({name: told(each) for name, each in sorted(value.items())})
    if isinstance(value, (list, tuple)):
        return str([told(each) for each in value])
    if isinstance(value, uuid.UUID):
        return repr(str(value))
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return str(Context(prec=40).create_decimal(value).normalize())
    if isinstance(value, datetime) and value.tzinfo is not None:
        return repr(value.astimezone(UTC).replace(tzinfo=UTC))
    if isinstance(value, (memoryview, bytearray)):
        return repr(bytes(value))
    return repr(value)


def parsed(kind: pa.DataType, value: Any) -> Any:
    """A value that JSON, or a text of CSV, holds, as Arrow gives values of this type."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: parsed(field.type, value.get(field.name)) for field in kind}
    if pa.types.is_map(kind):
        return [(key, parsed(kind.item_type, each)) for key, each in value.items()]
    if pa.types.is_list(kind):
        return [parsed(kind.value_type, each) for each in value]
    if pa.types.is_floating(kind):
        return pa.scalar(float(value), kind).as_py()
    if pa.types.is_binary(kind):
        return base64.b64decode(value, validate=True)
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    if pa.types.is_timestamp(kind):
        return datetime.fromisoformat(value)
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}[str(value).lower()]
    if pa.types.is_integer(kind):
        return int(value)
    return Decimal(value) if pa.types.is_decimal(kind) else value


def from_json(folder: Path, schema: pa.Schema) -> list[dict[str, Any]]:
    """Rows of the JSON lines below a folder, by Python's reader, in the order of `n`."""
    rows = [
        json.loads(line, parse_float=Decimal)
        for path in data_files(folder)
        for line in path.read_text(encoding="utf-8").split("\n")
        if line
    ]
    return _typed(rows, schema)


def from_csv(folder: Path, schema: pa.Schema, *, escape: str) -> list[dict[str, Any]]:
    """Rows of the CSV files below a folder, by DuckDB, in the order of `n`.

    It tells an empty text from no value; texts are compared with Python's reader as well.
    """
    import duckdb

    found: list[dict[str, Any]] = []
    for path in data_files(folder):
        with duckdb.connect() as connection:
            ask = connection.execute(
                "SELECT * FROM read_csv(?, header=true, all_varchar=true, delim=',', quote=?, "
                "escape=?, allow_quoted_nulls=false, parallel=false, hive_partitioning=false)",
                [str(path), '"', escape],
            )  # fmt: skip
            names = [column[0] for column in ask.description]
            rows = [dict(zip(names, row, strict=True)) for row in ask.fetchall()]
        how: Any = {"doublequote": True} if escape == '"' else {
            "doublequote": False, "escapechar": escape}  # fmt: skip
        with open(path, newline="", encoding="utf-8") as text:
            lines = list(csv.DictReader(text, strict=True, **how))
        assert lines == [{name: each or "" for name, each in row.items()} for row in rows]
        found += rows
    return _typed(found, schema)


def from_parquet(folder: Path, schema: pa.Schema) -> list[dict[str, Any]]:
    """Rows of the Parquet files below a folder, by DuckDB; maps by Arrow, whose values they are."""
    import duckdb

    paths = list(map(str, data_files(folder)))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        names = ", ".join(schema.names)
        ask = connection.execute(f"SELECT {names} FROM read_parquet(?) ORDER BY n", [paths])
        rows = [dict(zip(schema.names, row, strict=True)) for row in ask.fetchall()]
    by_arrow = pa.concat_tables([pq.read_table(path).select(schema.names) for path in paths])
    maps = [name for name in schema.names if pa.types.is_map(schema.field(name).type)]
    for row, other in zip(rows, by_arrow.sort_by("n").select(maps).to_pylist(), strict=True):
        row.update(other)
    return rows


def data_files(folder: Path) -> list[Path]:
    """Files below a folder that readers take for its data."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    return sorted(
        path for path in files
        if not any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts)
    )  # fmt: skip


def _typed(rows: list[dict[str, Any]], schema: pa.Schema) -> list[dict[str, Any]]:
    typed = [{f.name: parsed(f.type, row.get(f.name)) for f in schema} for row in rows]
    return sorted(typed, key=lambda row: row["n"])


def differences(found: list[dict[str, Any]], rows: pa.RecordBatch) -> list[tuple[str, Any, Any]]:
    """Columns and values that came out otherwise than they went in; too few rows count as one."""
    wanted = rows.to_pylist()
    if len(found) != len(wanted):
        return [("number of rows", len(wanted), len(found))]
    return [
        (name, value, out[name])
        for row, out in zip(wanted, found, strict=True)
        for name, value in row.items()
        if told(value) != told(out[name])
    ]
