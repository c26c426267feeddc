"""Which columns of Spark go into which columns of PostgreSQL without loss, and how.

The rows travel in the binary format of COPY, in which PostgreSQL converts nothing: each value must
come in the bytes of its column's own type (PostgreSQL's manual, "COPY", "Binary Format").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dedup.spark.id_encoding import encode_ids

#: By Spark's type those of PostgreSQL, as `format_type` names them, with the type to encode.
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
#: What whole numbers are as decimals.
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
#: Of arrays, whose binary format names the type of the elements.
_NO_ELEMENTS = frozenset(
    {"character varying", "json", "jsonb", "uuid", "timestamp with time zone", "interval"}
)
#: Where PostgreSQL's days begin, on 24 November 4714 BC. The server refuses what is before
#: that, but for what its integers cannot hold, and what stands for ``-infinity``.
_EARLIEST = {"date": -2_440_588, "timestamp": -210_866_803_200_000_000}
#: What the modifier of a ``varchar(n)`` is more than n.
_LENGTH_BEGINS = 4
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_ARRAY = re.compile(r"array<(.+)>")


class Unsuitable(Exception):
    """Says why a column of Spark does not go into one of PostgreSQL."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a column is brought into the bytes of its type.

    Parameters
    ----------
    arrow : pyarrow.DataType
        As which it is encoded.
    kind : str
        The column's type in PostgreSQL, without its modifiers.
    longest : int or None
        Characters that the column takes.
    """

    arrow: pa.DataType
    kind: str
    longest: int | None = None

    def __call__(self, values: pa.Array) -> pa.Array:
        """Return the values as they are encoded.

        Raises
        ------
        Unsuitable
            For a text that is no UUID or too long, or a day that PostgreSQL does not know.
        """
        _check_days(values)
        if self.longest is not None:
            _check_length(values, self.longest)
        if self.kind in _OWN_BYTES:
            return _OWN_BYTES[self.kind](values)
        if pa.types.is_timestamp(values.type) and values.type.tz is not None:
            values = values.cast(pa.timestamp("us", "UTC"))  # the same instants
        return values if values.type == self.arrow else values.cast(self.arrow)


def encoding(spark: str, kind: str, modifier: int) -> Encoding:
    """Return how a column of Spark goes into one of PostgreSQL.

    Parameters
    ----------
    spark : str
        As `simpleString` names the type.
    kind : str
        PostgreSQL's type, as `format_type` names it without modifiers; ``enum`` for all of them.
    modifier : int
        `atttypmod` of the column, -1 for none.

    Raises
    ------
    Unsuitable
        If values could be lost or changed.
    """
    if inner := _ARRAY.fullmatch(spark):
        if not kind.endswith("[]"):
            raise Unsuitable(f"it is {spark}, and there {kind}")
        element = kind.removesuffix("[]")
        if inner[1].startswith("array") or element in _NO_ELEMENTS:
            raise Unsuitable(f"{spark} into {kind} is not written by this sink; {_AS_JSON}")
        return Encoding(pa.list_(encoding(inner[1], element, modifier).arrow), kind)
    if spark.startswith(("struct", "map", "variant")):
        raise Unsuitable(f"it is {spark.partition('<')[0]}; {_AS_JSON}")
    if kind == "numeric":
        return Encoding(_decimal(spark, modifier), kind)
    if kind == "enum" and _is_text(spark):
        return Encoding(pa.string(), "text")
    found = _SCALARS.get("string" if _is_text(spark) else spark, {}).get(kind)
    if found is None:
        wanted = ", ".join(_wanted(spark)) or "none that this sink knows"
        raise Unsuitable(f"it is {spark}, and there {kind}; without loss it goes into {wanted}")
    if kind.startswith("timestamp") and modifier not in (-1, 6):
        raise Unsuitable(f"the table keeps {modifier} digits of its seconds, Spark has 6")
    if kind == "interval" and modifier != -1:
        raise Unsuitable("the table keeps less of it than Spark has; make it a plain interval")
    is_limited = kind == "character varying" and modifier != -1
    return Encoding(found, kind, modifier - _LENGTH_BEGINS if is_limited else None)


_AS_JSON = "make it a text with to_json(...), for a column of type jsonb"


def _check_days(values: pa.Array) -> None:
    if pa.types.is_list(values.type):
        values = values.flatten()
    if pa.types.is_date(values.type):
        earliest, numbers = _EARLIEST["date"], values.view(pa.int32())
    elif pa.types.is_timestamp(values.type):
        earliest, numbers = _EARLIEST["timestamp"], values.view(pa.int64())
    else:
        return
    least = pc.min(numbers).as_py()
    if least is not None and least < earliest:
        raise Unsuitable("a record is before 24 November 4714 BC, where PostgreSQL's days begin")


def _check_length(values: pa.Array, longest: int) -> None:
    """Refuse long texts: if only blanks are beyond the end, the server removes them silently."""
    most = pc.max(pc.utf8_length(values)).as_py() or 0
    if most > longest:
        raise Unsuitable(f"value too long: {most:,} characters, and the column takes {longest:,}")


def column_type(spark: str) -> str:
    """Return the type of PostgreSQL that takes a type of Spark best.

    Raises
    ------
    Unsuitable
        If there is none.
    """
    if inner := _ARRAY.fullmatch(spark):
        element = column_type(inner[1])
        encoding(spark, f"{element.partition('(')[0]}[]", -1)
        return f"{element}[]"
    wanted = _wanted(spark)
    if not wanted:
        advice = _AS_JSON if spark.startswith(("struct", "map", "variant")) else "cast it"
        raise Unsuitable(f"it is {spark.partition('<')[0]}; {advice}")
    return wanted[0]


def _wanted(spark: str) -> list[str]:
    if found := _DECIMAL.fullmatch(spark):
        return [f"numeric({found[1]},{found[2]})"]
    return list(_SCALARS.get("string" if _is_text(spark) else spark, {}))


def _is_text(spark: str) -> bool:
    return spark.partition(" ")[0] == "string"  # also one with a collation


def _decimal(spark: str, modifier: int) -> pa.DataType:
    if found := _DECIMAL.fullmatch(spark):
        precision, scale = int(found[1]), int(found[2])
    elif spark in _DIGITS:
        precision, scale = _DIGITS[spark], 0
    else:
        raise Unsuitable(f"it is {spark}, and there numeric; make it a decimal")
    if modifier != -1:
        # As `numerictypmodin` of PostgreSQL packs it: 11 bits of scale, with a sign.
        digits, after = (modifier - 4) >> 16 & 0xFFFF, ((modifier - 4 & 0x7FF) ^ 1024) - 1024
        if after < scale or digits - after < precision - scale:
            raise Unsuitable(
                f"it has {precision} digits, {scale} of them after the point, and there is room "
                f"for {digits} and {after}"
            )
    return pa.decimal128(precision, scale)


def _uuid(values: pa.Array) -> pa.Array:
    is_uuid = pc.match_substring_regex(values, _UUID, ignore_case=True)
    wrong = values.filter(pc.invert(is_uuid))
    if len(wrong):
        text = wrong[0].as_buffer().to_pybytes()[:100].decode(errors="backslashreplace")
        raise Unsuitable(f"{text!r} is no UUID")
    text = pc.utf8_lower(values.cast(pa.string()))
    # Behind a byte that tells UUIDs from other texts.
    # With an end: without one pyarrow (26) computes a negative size for some numbers of rows.
    raw = pc.binary_slice(encode_ids([text]).keys.to_arrow(), 1, 17)
    return pc.if_else(values.is_valid(), raw, None).cast(pa.binary())


def _jsonb(values: pa.Array) -> pa.Array:
    """Text behind the number of the format (`jsonb_recv`)."""
    text = values.cast(pa.binary())
    return pc.binary_join_element_wise(pa.scalar(b"\x01"), text, pa.scalar(b""))


_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_OWN_BYTES: dict[str, Callable[[pa.Array], pa.Array]] = {"uuid": _uuid, "jsonb": _jsonb}
