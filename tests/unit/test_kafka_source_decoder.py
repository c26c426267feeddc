"""Values that a user's function decodes: what fits a column, and what makes a poison record."""

from __future__ import annotations

import pickle
import re
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from dedup.errors import ConfigError, SourceError
from dedup.sources.kafka.avro_rows import AvroDecoder
from dedup.sources.kafka.decoder import KEY_CAUSE, FunctionDecoder
from tests.support.avro import decoded, encoded

NOON = datetime(2024, 5, 1, 12)
NANOS = pd.Timestamp("2024-05-01 12:00:00.000000001")
#: In UTC this is in the year before the first.
FIRST = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))


class Level(IntEnum):
    HIGH = 3


class NoOffset(tzinfo):
    """A time zone that knows no offset."""

    def utcoffset(self, time: datetime | None) -> None:
        return None


def answers(kind: DataType, *results: Any, nullable: bool = True) -> tuple[list[Any], list[Any]]:
    """The rows and causes for a function that returns each result as field ``f``."""
    schema = StructType().add("f", kind, nullable)
    decoder = FunctionDecoder(lambda data: {"f": results[data[0]], "other": 1}, schema)
    rows, causes = decoded(decoder, *(bytes([n]) for n in range(len(results))))
    return [row and row["f"] for row in rows], causes


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (BooleanType(), True),
        (LongType(), -(2**63)),
        (DoubleType(), 0.1),
        (FloatType(), float("inf")),
        (StringType(), "ü"),
        (BinaryType(), b"\xff"),
        (DecimalType(5, 2), Decimal("-123.45")),
        (DateType(), date(2024, 5, 1)),
        (TimestampType(), NOON.replace(tzinfo=UTC)),
        (TimestampNTZType(), NOON),
        (TimestampNTZType(), pd.Timestamp("2024-05-01 12:00:00.000001")),
        (TimestampType(), NOON.replace(tzinfo=timezone(timedelta(hours=-3, microseconds=1)))),
        (TimestampType(), pd.Timestamp("2024-11-03 06:30Z").tz_convert("America/New_York")),
        (FloatType(), 2**24 + 2),
        (DecimalType(5, 2), Decimal("1E+2")),
        (LongType(), Level.HIGH),
        (StringType(), np.str_("x")),
        (ArrayType(LongType()), [1, None]),
        (StructType().add("x", LongType()).add("y", StringType()), {"x": 1, "y": None}),
    ],
)
def test_a_value_of_each_type_is_kept_unchanged(kind: DataType, value: Any) -> None:
    assert answers(kind, value, None) == ([value, None], [None, None])


def test_rows_and_maps_are_decoded() -> None:
    kind = StructType().add("x", LongType()).add("m", MapType(StringType(), LongType()))
    assert answers(kind, Row(m={"a": 1}, x=2))[0] == [{"x": 2, "m": [("a", 1)]}]


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (LongType(), True, "Field f is bool, and must be int."),
        (LongType(), 1.0, "Field f is float, and must be int."),
        (IntegerType(), 2**31, "A value does not fit its column f (2147483648): "),
        (LongType(), "1", "Field f is str, and must be int."),
        (StringType(), b"x", "Field f is bytes, and must be str."),
        (StringType(), "\ud800", "A value does not fit its column"),
        (BinaryType(), "x", "Field f is str, and must be bytes or bytearray."),
        (FloatType(), 1e300, "Field f is 1e+300, which FLOAT cannot hold exactly."),
        (FloatType(), 0.1, "Field f is 0.1, which FLOAT cannot hold exactly."),
        (FloatType(), 10**400, "which FLOAT cannot hold exactly."),
        (DoubleType(), 2**60 + 1, "A value does not fit its column"),
        (DecimalType(5, 2), Decimal("0.001"), "does not fit its column f (Decimal('0.001')): "),
        (DecimalType(5, 2), Decimal("NaN"), "does not fit its column f (Decimal('NaN')): "),
        (DecimalType(5, 2), 0.5, "Field f is float, and must be Decimal or int."),
        (DateType(), NOON, "Field f is datetime, and must be date."),
        (TimestampType(), NOON, "must be a datetime with a time zone."),
        (TimestampNTZType(), NOON.replace(tzinfo=UTC), "must be a datetime without a time zone."),
        (ArrayType(StringType()), "abc", "Field f is str, and must be a list."),
        (ArrayType(LongType()), [1, "2"], "Field f[] is str, and must be int."),
        (MapType(StringType(), LongType()), [1], "Field f is list, and must be a dict."),
        (StructType().add("x", LongType()), 1, "Field f is int, and must be a dict or a Row."),
        (StructType().add("x", LongType(), False), {}, "Field f.x is missing or null"),
        (
            StructType().add("x", IntegerType()),
            {"x": 2**40},
            "fit its column f ({'x': 1099511627776})",
        ),
        (ArrayType(LongType(), False), [1, None], "Field f[] is missing or null"),
        (ArrayType(LongType()), Row(x=1, y=2), "Field f is Row, and must be a list."),
        (MapType(StringType(), LongType()), {None: 1}, "Field f[] is missing or null"),
        (MapType(StringType(), LongType(), False), {"a": None}, "Field f[] is missing or null"),
        (TimestampType(), FIRST, "which TIMESTAMP cannot hold exactly."),
        (TimestampType(), NANOS.tz_localize("UTC"), "Field f is Timestamp('2024-05-01 12:00:00.0"),
        (TimestampNTZType(), NANOS, "which TIMESTAMP_NTZ cannot hold exactly."),
        (ArrayType(TimestampNTZType()), [NANOS], "which TIMESTAMP_NTZ cannot hold exactly."),
        (MapType(TimestampNTZType(), LongType()), {NANOS: 1}, "TIMESTAMP_NTZ cannot hold exactly."),
        (MapType(LongType(), TimestampNTZType()), {1: NANOS}, "TIMESTAMP_NTZ cannot hold exactly."),
        (StructType().add("x", TimestampNTZType()), {"x": NANOS}, "Field f.x is Timestamp("),
        (TimestampNTZType(), pd.Timestamp(np.datetime64("20000-01-01", "s")), "cannot hold"),
        (TimestampNTZType(), pd.NaT, "Field f is NaT, which TIMESTAMP_NTZ cannot hold exactly."),
        (TimestampType(), NOON.replace(tzinfo=NoOffset()), "must be a datetime with a time zone."),
        (DateType(), NANOS, "Field f is Timestamp, and must be date."),
        (DateType(), pd.NaT, "Field f is NaTType, and must be date."),
    ],
)
def test_a_value_that_does_not_fit_is_poison(kind: DataType, value: Any, said: str) -> None:
    rows, [cause, none] = answers(kind, value, None)
    assert rows == [None, None]
    assert said in cause
    assert none is None


def test_a_null_in_a_required_field_is_poison() -> None:
    assert answers(LongType(), 1, None, nullable=False) == (
        [1, None],
        [None, "Field f is missing or null, and the schema needs it."],
    )


def fails(data: bytes) -> Any:
    if data == b"stop":
        raise SourceError("the service does not answer")
    return None if data == b"none" else 1 / (len(data) - 1)


def test_an_exception_of_the_function_makes_a_poison_record() -> None:
    decoder = pickle.loads(pickle.dumps(FunctionDecoder(fails, StructType().add("a", LongType()))))
    assert decoded(decoder, b"x", None, b"none")[1] == [
        "The function raised ZeroDivisionError: division by zero.",
        None,
        "The function's result is NoneType, and must be a dict or a Row.",
    ]
    with pytest.raises(SourceError, match="does not answer"):
        decoded(decoder, b"stop")


class Broken(dict[str, Any]):
    """A result whose values cannot be read."""

    def get(self, key: str, default: Any = None) -> Any:
        raise KeyError(key)


def test_a_result_that_raises_is_poison() -> None:
    decoder = FunctionDecoder(lambda data: Broken(), StructType().add("f", LongType()))
    assert decoded(decoder, b"x")[1] == ["Its result raised KeyError: 'f'."]


#: Values of every kind that a function is likely to return.
VALUES: list[Any] = [
    True, 0, 1, -1, 127, 128, 2**24 + 1, 2**31, 2**53 + 1, 2**63, 10**38, 0.0, -0.0, 1.0, 1.5, 0.1,
    1e-46, 1e39, float("inf"), "", "1", "true", "\ud800", "\0", b"", b"\xff", bytearray(b"x"),
    memoryview(b"x"), Decimal("1.5"), Decimal("1.50"), Decimal("1.005"), Decimal("-0"),
    Decimal("1E+2"), Decimal("1E-400"), Decimal("NaN"), Decimal("Infinity"), date(1, 1, 1),
    date(9999, 12, 31), NOON, NOON.replace(microsecond=1), NOON.replace(tzinfo=UTC), FIRST,
    NOON.replace(tzinfo=timezone(timedelta(seconds=0.5))), NOON.replace(tzinfo=NoOffset()), NANOS,
    NANOS.tz_localize("UTC"), NANOS.floor("us"), NANOS.floor("us").tz_localize("Asia/Tokyo"),
    pd.Timestamp(np.datetime64("20000-01-01", "s")), pd.NaT, pd.NA, pd.Timedelta("1ns"),
    timedelta(1), time(1), np.int64(1), np.float64(0.1), np.float32(0.1), np.bool_(True),
    np.str_("x"), np.bytes_(b"x"), np.datetime64("2024-05-01T00:00:00.000000001"), Level.HIGH,
    UUID(int=1), Fraction(1, 2), 1j, object(),
]  # fmt: skip
SCALARS: list[DataType] = [
    BooleanType(), ByteType(), ShortType(), IntegerType(), LongType(), FloatType(), DoubleType(),
    DecimalType(5, 2), DecimalType(38, 0), StringType(), BinaryType(), DateType(), TimestampType(),
    TimestampNTZType(),
]  # fmt: skip


@pytest.mark.parametrize("kind", SCALARS, ids=DataType.simpleString)
@pytest.mark.parametrize(
    "inside",
    [
        lambda kind: (kind, lambda v: v),
        lambda kind: (StructType().add("x", kind), lambda v: {"x": v}),
        lambda kind: (ArrayType(kind), lambda v: [v]),
        lambda kind: (MapType(LongType(), kind), lambda v: {1: v}),
    ],
    ids=["plain", "struct", "array", "map"],
)
def test_a_value_is_kept_equal_or_becomes_poison(kind: DataType, inside: Any) -> None:
    """The cause names the column."""
    nested, wrap = inside(kind)
    rows, causes = answers(nested, *map(wrap, VALUES))
    kept = 0
    for value, row, cause in zip(VALUES, rows, causes, strict=True):
        if cause is None:
            found = dict(row) if isinstance(nested, MapType) else row
            assert found == wrap(value), repr(value)
            kept += 1
        else:
            assert row is None
            assert re.match(r"Field f|A value does not fit its column f", cause), cause
    assert kept > 0


def test_a_type_that_a_function_cannot_return_is_rejected() -> None:
    kind = StructType().add("a", ArrayType(StructType().add("v", VariantType())))
    with pytest.raises(ConfigError, match=r"column .Decoder\.a\[\]\.v. is variant"):
        FunctionDecoder(fails, kind)


def test_the_bytes_of_a_value_stay_if_the_key_is_poison() -> None:
    decoder = FunctionDecoder(lambda data: {}, StructType().add("a", LongType()))
    given = {"value": [b"a", b"b"], KEY_CAUSE: pa.array([None, "It is empty."], pa.string())}
    [found] = decoder.batches([pa.record_batch(given)])
    assert found.column("value").to_pylist() == [None, b"b"]


def test_a_key_of_avro_may_be_a_single_value() -> None:
    for schema, value in [('"string"', "x"), ('["null", "long"]', None), ('["null", "long"]', 5)]:
        decoder = pickle.loads(pickle.dumps(AvroDecoder(schema, is_record=False)))
        batch = pa.record_batch({"key": pa.array([encoded(schema, value), None], pa.binary())})
        [found] = decoder.batches([batch], "key")
        assert found.column(1).to_pylist() == [value, None]
        assert found.column(2).to_pylist() == [None, None]
        assert found.column("key") == batch.column("key")
    with pytest.raises(ConfigError, match="describes no record"):
        AvroDecoder('"string"')
