"""Values that a user's function decodes: what fits a column, and what makes a poison record."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
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
        (ArrayType(LongType()), [1, None]),
        (StructType().add("x", LongType()).add("y", StringType()), {"x": 1, "y": None}),
    ],
)
def test_a_value_keeps_what_it_is(kind: DataType, value: Any) -> None:
    assert answers(kind, value, None) == ([value, None], [None, None])


def test_rows_and_maps() -> None:
    kind = StructType().add("x", LongType()).add("m", MapType(StringType(), LongType()))
    assert answers(kind, Row(m={"a": 1}, x=2))[0] == [{"x": 2, "m": [("a", 1)]}]


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (LongType(), True, "Field f is bool, and must be int."),
        (LongType(), 1.0, "Field f is float, and must be int."),
        (IntegerType(), 2**31, "A value does not fit its column"),
        (LongType(), "1", "Field f is str, and must be int."),
        (StringType(), b"x", "Field f is bytes, and must be str."),
        (StringType(), "\ud800", "A value does not fit its column"),
        (BinaryType(), "x", "Field f is str, and must be bytes or bytearray."),
        (FloatType(), 1e300, "Field f is 1e+300, too large for a FLOAT."),
        (DoubleType(), 2**60 + 1, "A value does not fit its column"),
        (DecimalType(5, 2), Decimal("0.001"), "A value does not fit its column"),
        (DecimalType(5, 2), 0.5, "Field f is float, and must be Decimal or int."),
        (DateType(), NOON, "Field f is datetime, and must be date."),
        (TimestampType(), NOON, "must be a datetime with a time zone."),
        (TimestampNTZType(), NOON.replace(tzinfo=UTC), "must be a datetime without a time zone."),
        (ArrayType(StringType()), "abc", "Field f is str, and must be a list."),
        (ArrayType(LongType()), [1, "2"], "Field f[] is str, and must be int."),
        (MapType(StringType(), LongType()), [1], "Field f is list, and must be a dict."),
        (StructType().add("x", LongType()), 1, "Field f is int, and must be a dict or a Row."),
        (StructType().add("x", LongType(), False), {}, "Field f.x is missing or null"),
    ],
)
def test_a_value_that_does_not_fit_is_poison(kind: DataType, value: Any, said: str) -> None:
    rows, [cause, none] = answers(kind, value, None)
    assert rows == [None, None]
    assert said in cause
    assert none is None


def test_a_field_that_must_not_be_null() -> None:
    assert answers(LongType(), 1, None, nullable=False) == (
        [1, None],
        [None, "Field f is missing or null, and the schema needs it."],
    )


def fails(data: bytes) -> Any:
    if data == b"stop":
        raise SourceError("the service does not answer")
    return None if data == b"none" else 1 / (len(data) - 1)


def test_a_function_that_raises() -> None:
    decoder = pickle.loads(pickle.dumps(FunctionDecoder(fails, StructType())))
    assert decoded(decoder, b"x", None, b"none")[1] == [
        "The function raised ZeroDivisionError: division by zero.",
        None,
        "The function's result is NoneType, and must be a dict or a Row.",
    ]
    with pytest.raises(SourceError, match="does not answer"):
        decoded(decoder, b"stop")


def test_a_type_that_a_function_cannot_return() -> None:
    kind = StructType().add("a", ArrayType(StructType().add("v", VariantType())))
    with pytest.raises(ConfigError, match=r"Field a\[\]\.v of the schema of Decoder is variant"):
        FunctionDecoder(fails, kind)


def test_the_bytes_of_a_value_stay_if_the_key_is_poison() -> None:
    decoder = FunctionDecoder(lambda data: {}, StructType())
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
