"""Fit Spark columns to PostgreSQL columns, so that no value is lost or changed.

The sink sends rows in the binary format of COPY. PostgreSQL converts nothing in that format, so
each value must have the bytes of its column's own type (PostgreSQL's manual, "COPY", "Binary
Format").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from dedup.sinks.columns import Unsuitable, check_length, decimal_size, fitting_decimal, plain_type
from dedup.sinks.kit.database import create_table
from dedup.spark.id_encoding import encode_ids

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: For each Spark type, the PostgreSQL types that fit, in the spelling of `format_type`. Each has
#: the Arrow type that the encoder needs. `postgres_ddl` uses the first PostgreSQL type.
_SCALARS: dict[str, dict[str, pa.DataType]] = {
    "boolean": {"boolean": pa.bool_()},
    "tinyint": {"smallint": pa.int16(), "integer": pa.int32(), "bigint": pa.int64()},
    "smallint": {"smallint": pa.int16(), "integer": pa.int32(), "bigint": pa.int64()},
    "int": {"integer": pa.int32(), "bigint": pa.int64()},
    "bigint": {"bigint": pa.int64()},
    "float": {"real": pa.float32(), "double precision": pa.float64()},
    "double": {"double precision": pa.float64()},
    "string": dict.fromkeys(("text", "character varying", "json", "jsonb", "uuid"), pa.string()),
    "binary": {"bytea": pa.binary()},
    "date": {"date": pa.date32()},
    "timestamp": {"timestamp with time zone": pa.timestamp("us")},
    "timestamp_ntz": {"timestamp without time zone": pa.timestamp("us")},
    "interval day to second": {"interval": pa.duration("us")},
}
#: Types that the sink cannot write as elements of an array. The binary format of an array names the
#: elements' type, and the encoder cannot name these types.
_NO_ELEMENTS = frozenset(
    {"character varying", "json", "jsonb", "uuid", "timestamp with time zone", "interval"}
)
#: Types in which different values may be equal, such as 0.0 and -0.0, or have no order.
_NO_KEY = frozenset({"real", "double precision", "interval", "json", "jsonb"})
#: PostgreSQL's first day, 24 November 4714 BC, as date and as timestamp in Arrow's units. The sink
#: checks this limit, because the server does not reject all earlier days: some overflow its
#: integers, and one means ``-infinity``.
_FIRST_DAY, _FIRST_US = -2_440_588, -210_866_803_200_000_000
#: Difference between the type modifier (`atttypmod`) of a ``varchar(n)`` column and n.
_LENGTH_OFFSET = 4
_ARRAY = re.compile(r"array<(.+)>")
_NESTED = ("struct", "map", "variant")
_AS_JSON = "make it a text with to_json(...), for a column of type jsonb"


@dataclass(frozen=True, slots=True)
class Encoding:
    """A function that converts a column's values to the Arrow type that the encoder needs.

    `kind` is the PostgreSQL type without modifiers. `longest` is the largest number of characters
    that the column allows. If `is_compared`, the column decides which rows replace others, so a
    value must have only one spelling.
    """

    arrow: pa.DataType
    kind: str
    longest: int | None = None
    is_compared: bool = False

    def __call__(self, values: pa.Array) -> pa.Array:
        """Return values in the column's form, or raise Unsuitable if a value does not fit."""
        _check_days(values)
        if self.longest is not None:
            check_length(values, self.longest)
        if self.kind == "uuid":
            return _uuid(values, any_case=not self.is_compared)
        if self.kind == "jsonb":
            return _jsonb(values)
        if pa.types.is_timestamp(values.type) and values.type.tz is not None:
            values = values.cast(pa.timestamp("us", "UTC"))  # keeps the same instants
        return values.cast(self.arrow)


def encoding(spark: str, kind: str, modifier: int) -> Encoding:
    """Return the encoding that writes a Spark column to a PostgreSQL column.

    `spark` is the Spark type's `simpleString`. `kind` is the PostgreSQL type without modifiers, as
    `format_type` spells it, or ``enum`` for any enum. `modifier` is the column's `atttypmod`, which
    is -1 for a column without modifiers. Raises Unsuitable if values could be lost or changed.
    """
    if inner := _ARRAY.fullmatch(spark):
        if not kind.endswith("[]"):
            raise Unsuitable(f"it is {spark}, and there {kind}")
        element = kind.removesuffix("[]")
        if inner[1].startswith("array") or element in _NO_ELEMENTS:
            raise Unsuitable(f"this sink does not write {spark} into {kind}; {_AS_JSON}")
        return Encoding(pa.list_(encoding(inner[1], element, modifier).arrow), kind)
    if spark.startswith(_NESTED):
        raise Unsuitable(f"it is {spark.partition('<')[0]}; {_AS_JSON}")
    if kind == "numeric":
        return Encoding(_decimal(spark, modifier), kind)
    if kind == "enum" and plain_type(spark) == "string":
        return Encoding(pa.string(), kind)
    arrow = _SCALARS.get(plain_type(spark), {}).get(kind)
    if arrow is None:
        wanted = ", ".join(_wanted(spark)) or "none that this sink knows"
        raise Unsuitable(f"it is {spark}, and there {kind}; without loss it goes into {wanted}")
    if kind.startswith("timestamp") and modifier not in (-1, 6):
        raise Unsuitable(f"the table keeps {modifier} digits of its seconds, Spark has 6")
    if kind == "interval" and modifier != -1:
        raise Unsuitable("the table keeps less of it than Spark has; make it a plain interval")
    is_limited = kind == "character varying" and modifier != -1
    return Encoding(arrow, kind, modifier - _LENGTH_OFFSET if is_limited else None)


def check_compared(kind: str, *, in_key: bool) -> None:
    """Raise Unsuitable if PostgreSQL compares a type otherwise than Spark, in a key or version."""
    if in_key and kind.removesuffix("[]") in _NO_KEY:
        raise Unsuitable(
            f"it is part of the key, and values of type {kind} that differ may be equal; make it a "
            "text with cast(... AS STRING), and the column TYPE text"
        )
    if not in_key and (kind.startswith("json") or kind.endswith("[]")):
        raise Unsuitable(f"it is the version, and PostgreSQL orders {kind} otherwise than Spark")


def column_type(spark: str, in_key: bool = False) -> str:
    """Return the PostgreSQL type that fits a Spark type best, or raise Unsuitable if none does."""
    if inner := _ARRAY.fullmatch(spark):
        element = column_type(inner[1], in_key)
        encoding(spark, f"{element.partition('(')[0]}[]", -1)
        return f"{element}[]"
    wanted = _wanted(spark)
    if not wanted:
        advice = _AS_JSON if spark.startswith(_NESTED) else "cast it"
        raise Unsuitable(f"it is {spark.partition('<')[0]}; {advice}")
    check_compared(wanted[0], in_key=in_key)
    return wanted[0]


def postgres_ddl(schema: StructType, table: str, *, key: str | Sequence[str] = ()) -> str:
    """Return the statement that creates a table for the rows of a stream.

    Parameters
    ----------
    schema : StructType
        The stream's ``df.schema``. A column that is not nullable becomes ``NOT NULL``.
    table : str
        Name of the table as in SQL.
    key : str or sequence of str, optional
        Columns of the primary key, for the modes ``upsert`` and ``atomic``.

    Raises
    ------
    ConfigError
        If a column has no type in PostgreSQL, or a column of the key does not exist or has a type
        that no key may have.
    """
    return create_table(schema, table, key, quoted, column_type)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _check_days(values: pa.Array) -> None:
    if pa.types.is_list(values.type):
        values = values.flatten()
    if pa.types.is_date(values.type):
        first, numbers = _FIRST_DAY, values.view(pa.int32())
    elif pa.types.is_timestamp(values.type):
        first, numbers = _FIRST_US, values.view(pa.int64())
    else:
        return
    least = pc.min(numbers).as_py()
    if least is not None and least < first:
        raise Unsuitable("a record is before 24 November 4714 BC, where PostgreSQL's days begin")


def _wanted(spark: str) -> list[str]:
    if size := decimal_size(spark):
        return [f"numeric({size[0]},{size[1]})"]
    return list(_SCALARS.get(plain_type(spark), {}))


def _decimal(spark: str, modifier: int) -> pa.DataType:
    # PostgreSQL's `numerictypmodin` packs the modifier: the scale takes 11 bits, with a sign.
    digits, after = (modifier - 4) >> 16 & 0xFFFF, ((modifier - 4 & 0x7FF) ^ 1024) - 1024
    room = None if modifier == -1 else (digits, after)
    return pa.decimal128(*fitting_decimal(spark, "numeric", room))


def _uuid(values: pa.Array, any_case: bool) -> pa.Array:
    is_uuid = pc.match_substring_regex(values, _UUID, ignore_case=any_case)
    wrong = values.filter(pc.invert(is_uuid))
    if len(wrong):
        text = wrong[0].as_buffer().to_pybytes()[:100].decode(errors="backslashreplace")
        in_lower_case = (
            ""
            if any_case
            else " in lower case, and spellings of one UUID would be one key; use lower()"
        )
        raise Unsuitable(f"{text!r} is not a UUID{in_lower_case}")
    text = pc.utf8_lower(values.cast(pa.string()))
    # Skip the first byte of a key, which tells UUIDs from other texts. Give the slice an end,
    # because without an end pyarrow (26) computes a negative size for some numbers of rows.
    raw = pc.binary_slice(encode_ids([text]).keys.to_arrow(), 1, 17)
    return pc.if_else(values.is_valid(), raw, None).cast(pa.binary())


def _jsonb(values: pa.Array) -> pa.Array:
    """Return the texts with the version number of jsonb before each text (`jsonb_recv`)."""
    text = values.cast(pa.binary())
    return pc.binary_join_element_wise(pa.scalar(b"\x01"), text, pa.scalar(b""))


_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
