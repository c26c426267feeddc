"""Avro in Confluent's wire format, as the sink's side writes it and other readers read it."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import ConfigError, DataError, SourceError
from dedup.sinks.kafka.confluent_avro import AvroEncoder, _encoder
from dedup.sources.kafka import ConfluentAvro, Registry
from tests.support.avro import decoded, record
from tests.support.schema_registry import SchemaRegistry, running_registry

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
#: Fields of an order: Avro's type, Arrow's type as Spark sends it, and a value.
FIELDS: dict[str, tuple[Any, pa.DataType, Any]] = {
    "id": ("string", pa.string(), "ü"),
    "ok": (["null", "boolean"], pa.bool_(), None),
    "raw": ("bytes", pa.binary(), b"\xff"),
    "small": ("int", pa.int32(), -5),
    "price": (DECIMAL, pa.decimal128(10, 2), Decimal("-12345678.90")),
    "day": ({"type": "int", "logicalType": "date"}, pa.date32(), date(1969, 12, 31)),
    "ms": ({"type": "long", "logicalType": "timestamp-millis"}, pa.timestamp("us", "Asia/Tokyo"),
           NOON),
    "us": (["null", {"type": "long", "logicalType": "timestamp-micros"}],
           pa.timestamp("us", "UTC"), NOON.replace(microsecond=123_456)),
    "local": ({"type": "long", "logicalType": "local-timestamp-micros"}, pa.timestamp("us"),
              datetime(2024, 5, 1)),
    "kind": ({"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, pa.string(), "B"),
    "tags": ({"type": "map", "values": {"type": "int", "logicalType": "date"}},
             pa.map_(pa.string(), pa.date32()), [("x", date(2024, 5, 1))]),
    "lines": ({"type": "array", "items": ["null", {
        "type": "record", "name": "Line", "fields": [
            {"name": "n", "type": "double"},
            {"name": "m", "type": {"type": "map", "values": "string"}}]}]},
              pa.list_(pa.struct([("n", pa.float64()), ("m", pa.map_(pa.string(), pa.string()))])),
              [{"n": 0.1, "m": [("k", "v")]}, None]),
}  # fmt: skip
SCHEMA = record(*((name, avro) for name, (avro, _, _) in FIELDS.items()))
ROW = {name: value for name, (_, _, value) in FIELDS.items()}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with running_registry() as found:
        yield found


def encode(encoder: AvroEncoder, column: pa.Array) -> list[bytes | None]:
    loaded = pickle.loads(pickle.dumps(encoder))
    batch = pa.record_batch({"other": pa.nulls(len(column)), encoder.column: column})
    [found] = loaded.batches([batch])
    assert found.schema.names == batch.schema.names
    return found.column(1).to_pylist()  # type: ignore[no-any-return]


def test_written_avro_is_read_by_fastavro_and_by_our_source(registry: SchemaRegistry) -> None:
    registry.add(257, "unrelated")
    kind = pa.struct([(name, arrow) for name, (_, arrow, _) in FIELDS.items()])
    encoder = _encoder(registry.url, "orders-value", SCHEMA, "value")
    data, none = encode(encoder, pa.array([ROW, None], kind))
    assert none is None  # a tombstone
    assert data is not None
    assert data[:5] == b"\0\0\0\x01\x02"
    other: Any = fastavro.schemaless_reader(io.BytesIO(data[5:]), json.loads(SCHEMA), None)
    assert other == ROW | {
        "tags": {"x": date(2024, 5, 1)}, "lines": [{"n": 0.1, "m": {"k": "v"}}, None],
    }  # fmt: skip
    [row], [cause] = decoded(ConfluentAvro(registry.url).decoder(("orders",)), data)
    assert (row, cause) == (ROW, None)


def test_the_driver_registers_a_given_schema_or_takes_the_newest(registry: SchemaRegistry) -> None:
    server = Registry(registry.url, user="u", password="secret")
    registry.require("u", "secret")
    for _ in range(2):  # a restart gets the same ID
        assert _encoder(server, "o-value", record(("a", "long")), "value").schema_id == 1
    assert registry.asked == ["/subjects/o-value/versions"] * 2
    assert registry.headers[0]["Content-Type"] == "application/vnd.schemaregistry.v1+json"
    registry.add(9, record(("b", "long")), "o-value")
    newest = _encoder(server, "o-value", None, "value")
    assert (newest.schema_id, newest.type) == (9, pa.struct([("b", pa.int64())]))
    with pytest.raises(ConfigError, match="has no subject 'p-value'"):
        _encoder(server, "p-value", None, "value")


def test_a_schema_that_the_registry_refuses_is_an_error(registry: SchemaRegistry) -> None:
    registry.refusal = 409, {"error_code": 409, "message": "it is incompatible\nwith version 3"}
    with pytest.raises(ConfigError, match="refuses the schema: it is incompatible with version 3"):
        _encoder(registry.url, "o-value", record(("a", "long")), "value")
    registry.refusal = None
    registry.failures += [503]
    assert _encoder(registry.url, "o-value", record(("a", "long")), "value").schema_id == 1
    asked = len(registry.asked)
    with pytest.raises(ConfigError, match=r"schema of o-value cannot be used"):
        _encoder(registry.url, "o-value", '{"type": "nonsense"}', "value")
    uuid = record(("a", {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}))
    with pytest.raises(ConfigError, match="has a uuid of 16 bytes"):
        _encoder(registry.url, "o-value", uuid, "value")
    assert len(registry.asked) == asked  # a broken schema is not registered


def test_a_registry_that_fails_is_a_source_error(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dedup.sources.kafka.registry._PAUSES_S", ())
    registry.refusal = 500, {"message": "no"}
    with pytest.raises(SourceError, match="status 500"):
        _encoder(registry.url, "o-value", record(("a", "long")), "value")


def checked(schema: str, *fields: tuple[str, T.DataType]) -> None:
    kind = T.StructType([T.StructField(name, one) for name, one in fields])
    AvroEncoder(1, schema, (), "o-value", "value").check(kind)


def test_the_column_must_have_the_types_of_the_schema() -> None:
    schema = record(("a", ["null", "long"]), ("b", "string", "none"))
    checked(schema, ("b", T.StringType()), ("a", T.LongType()))
    checked(schema, ("a", T.LongType()))  # b has a default
    for fields, said in [
        ([("b", T.StringType())], "lacks field a, which the Avro schema of o-value needs"),
        ([("a", T.IntegerType())], "Field a of column `value` is int, and must be bigint"),
        ([("a", T.LongType()), ("c", T.LongType())], "fields that .* o-value lacks: c"),
    ]:
        with pytest.raises(ConfigError, match=said):
            checked(schema, *fields)
    with pytest.raises(ConfigError, match="Column `key` is bigint, and must be string"):
        AvroEncoder(1, '"string"', (), "o-key", "key").check(T.LongType())
    AvroEncoder(1, '["null", "string"]', (), "o-key", "key").check(T.StringType())


def test_a_missing_field_gets_its_default() -> None:
    encoder = AvroEncoder(1, record(("b", "string", "none"), ("a", "long")), (), "s", "value")
    [data] = encode(encoder, pa.array([{"a": 1}]))
    assert data == b"\0\0\0\0\x01\x08none\x02"


@pytest.mark.parametrize(
    ("avro", "kind", "value"),
    [
        ("long", pa.int64(), None),
        ({"type": "enum", "name": "K", "symbols": ["A"]}, pa.string(), "B"),
        ({"type": "fixed", "name": "F", "size": 2}, pa.binary(), b"x"),
        ({"type": "long", "logicalType": "timestamp-millis"}, pa.timestamp("us", "UTC"),
         NOON.replace(microsecond=1)),
    ],
)  # fmt: skip
def test_a_value_that_the_schema_cannot_hold_is_named(
    avro: Any, kind: pa.DataType, value: Any
) -> None:
    encoder = AvroEncoder(1, record(("n", "long"), ("a", avro)), (), "o-value", "value")
    good = {"a": None, "n": 1}
    column = pa.array(
        [None, good | {"n": 77, "a": value}], pa.struct([("a", kind), ("n", "int64")])
    )
    with pytest.raises(DataError, match=r"(?s)Column `value` has a value .* of o-value.*'n': 77"):
        encode(encoder, column)


def test_a_key_may_be_a_single_value() -> None:
    encoder = AvroEncoder(258, '"string"', (), "o-key", "key")
    assert encode(encoder, pa.array(["k", None])) == [b"\0\0\0\1\2\x02k", None]
