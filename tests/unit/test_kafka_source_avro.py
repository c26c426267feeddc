"""Avro as columns: types without loss or rejected by name, and bytes that are not Avro."""

from __future__ import annotations

import json
import pickle
import re
from datetime import UTC as ZONE
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dedup.errors import ConfigError
from dedup.sources.kafka.avro_rows import AvroDecoder
from dedup.sources.kafka.avro_types import reader_schema
from dedup.sources.kafka.decoder import FIELDS
from tests.support.avro import decoded, encoded, record
from tests.support.pages import Row, table


def field(kind: Any, *references: str) -> pa.DataType:
    return reader_schema(record(("f", kind)), references).column.type.field("f").type


def logical(kind: Any, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


UTC = pa.timestamp("us", "UTC")
RAW = {
    "boolean": (pa.bool_(), True, True),
    "int": (pa.int32(), -5, -5),
    "long": (pa.int64(), 2**62, 2**62),
    "float": (pa.float32(), 0.5, 0.5),
    "double": (pa.float64(), 0.1, 0.1),
    "bytes": (pa.binary(), b"\xff", b"\xff"),
    "string": (pa.string(), "ü", "ü"),
}


@pytest.mark.parametrize("kind", RAW)
def test_primitive_types_are_decoded(kind: str) -> None:
    type_, given, expected = RAW[kind]
    assert field(kind) == field({"type": kind}) == field(["null", kind]) == field([kind]) == type_
    schema = record(("f", ["null", kind]))
    decoder = pickle.loads(pickle.dumps(AvroDecoder(schema)))
    values = encoded(schema, {"f": given}), encoded(schema, {"f": None}), None
    rows, causes = decoded(decoder, *values)
    assert rows == [{"f": expected}, {"f": None}, None]
    assert causes == [None, None, None]


@pytest.mark.parametrize(
    ("kind", "stored", "type_", "whole"),
    [
        (logical("int", "date"), 19_000, pa.date32(), 19_000),
        (logical("int", "date"), -(2**31), pa.date32(), -(2**31)),
        (logical("long", "timestamp-millis"), 1_234, UTC, 1_234_000),
        (logical("long", "timestamp-micros"), -1, UTC, -1),
        (logical("long", "local-timestamp-millis"), 5, pa.timestamp("us"), 5_000),
        (logical("long", "local-timestamp-micros"), 5, pa.timestamp("us"), 5),
        (logical("int", "time-millis"), 7, pa.int32(), 7),
        (logical("long", "time-micros"), 7, pa.int64(), 7),
        (logical("long", "timestamp-nanos"), 7, pa.int64(), 7),
        (logical("long", "nobody-knows-this"), 7, pa.int64(), 7),
    ],
)
def test_logical_types_keep_every_value(
    kind: Any, stored: int, type_: pa.DataType, whole: int
) -> None:
    schema = record(("f", kind))
    # Written without its meaning, so that the writer's library converts nothing.
    data = encoded(record(("f", kind["type"])), {"f": stored})
    assert field(kind) == type_
    batch = pa.record_batch({"value": pa.array([data], pa.binary())})
    [found] = AvroDecoder(schema).batches([batch])
    column = found.column(FIELDS).field("f")
    plain = pa.int64() if type_.bit_width == 64 else pa.int32()
    assert column.view(plain).to_pylist() == [whole]


def test_a_time_that_spark_cannot_hold_is_poison_and_its_neighbours_are_not() -> None:
    schema = record(("f", logical("long", "timestamp-millis")))
    plain = record(("f", "long"))
    data = [encoded(plain, {"f": n}) for n in (1, 2**62, 3)]
    rows, causes = decoded(AvroDecoder(schema), *data)
    assert [row is None for row in rows] == [False, True, False]
    assert causes[0] is causes[2] is None
    assert "does not fit its column" in str(causes[1])


@pytest.mark.parametrize("kind", ["bytes", {"type": "fixed", "name": "D", "size": 17}])
def test_decimals_of_bytes_and_fixed_are_decoded_exactly(kind: Any) -> None:
    base = {"type": kind} if isinstance(kind, str) else kind
    schema = record(("f", {**base, "logicalType": "decimal", "precision": 38, "scale": 10}))
    big = Decimal("-1234567890123456789012345678.0123456789")
    rows, _ = decoded(AvroDecoder(schema), encoded(schema, {"f": big}))
    assert rows == [{"f": big}]
    assert reader_schema(schema).column.type.field("f").type == pa.decimal128(38, 10)


def test_a_decimal_is_read_in_the_writers_scale_and_never_rounded() -> None:
    writer = record(("f", logical("bytes", "decimal", precision=6, scale=2)))
    wider = record(("f", logical("bytes", "decimal", precision=8, scale=4)))
    narrower = record(("f", logical("bytes", "decimal", precision=6, scale=1)))
    data = [encoded(writer, {"f": Decimal(text)}) for text in ("1.20", "1.25")]
    assert decoded(AvroDecoder(wider, writer=writer), *data)[0] == [
        {"f": Decimal("1.2000")}, {"f": Decimal("1.2500")},
    ]  # fmt: skip
    rows, causes = decoded(AvroDecoder(narrower, writer=writer), *data)
    assert rows == [{"f": Decimal("1.2")}, None]
    assert "loss" in str(causes[1])
    plain = encoded(record(("f", "bytes")), {"f": (-(10**37)).to_bytes(16, "big", signed=True)})
    whole = record(("f", logical("bytes", "decimal", precision=38, scale=1)))
    read = decoded(AvroDecoder(whole, writer=record(("f", "bytes"))), plain)[0]
    assert [str(row["f"]) for row in read] == [f"-1{'0' * 36}.0"]


def test_a_time_type_other_than_the_readers_is_rejected() -> None:
    millis, micros, nanos = (
        logical("long", f"timestamp-{u}") for u in ("millis", "micros", "nanos")
    )
    inner = {"type": "record", "name": "I", "fields": [{"name": "at", "type": millis}]}
    other = {"type": "record", "name": "I", "fields": [{"name": "at", "type": ["null", micros]}]}
    for written, read, path in (
        (millis, micros, "f"),
        (["null", micros], logical("long", "local-timestamp-millis"), "f"),
        (nanos, micros, "f"),
        (logical("int", "time-millis"), logical("long", "time-micros"), "f"),
        (logical("int", "time-millis"), millis, "f"),
        (logical("int", "date"), micros, "f"),
        (micros, logical("long", "local-timestamp-micros"), "f"),
        ({"type": "array", "items": inner}, {"type": "array", "items": other}, "f.items.at"),
        ({"type": "map", "values": inner}, {"type": "map", "values": other}, "f.values.at"),
    ):
        schemas = record(("f", written), ("n", "int")), record(("f", read), ("n", "int"))
        with pytest.raises(ConfigError, match=f"{path} is .*, but .* in the reader"):
            AvroDecoder(schemas[1], writer=schemas[0])
        # Only what both have counts.
        AvroDecoder(record(("n", "int")), writer=schemas[0])
        AvroDecoder(schemas[0], writer=schemas[0])
    # As Avro does, a field is looked up by its name first, and then by the aliases.
    renamed = json.loads(record(("young", micros), ("n", "int")))
    renamed["fields"][0]["aliases"] = ["f", "n"]
    with pytest.raises(ConfigError, match="young is timestamp-millis, but"):
        AvroDecoder(json.dumps(renamed), writer=record(("f", millis)))
    AvroDecoder(json.dumps(renamed), writer=record(("n", millis)))
    # A number without a unit has the reader's.
    AvroDecoder(record(("f", micros)), writer=record(("f", "long")))


def of_the_page(kind: str) -> tuple[str, Any]:
    """The schema of a row of the page, and one by which its examples can be written."""
    if found := re.fullmatch(r"decimal\((\d+),(\d+)\)", kind):
        precision, scale = map(int, found.groups())
        return record(("f", logical("bytes", "decimal", precision=precision, scale=scale))), "bytes"
    plain = {"string": "string", "uuid": "string", "int": "int", "date": "int"}
    base = plain.get(kind, "int" if kind == "time-millis" else "long")
    whole = base if kind == base else logical(base, kind)
    return record(("f", whole)), "string" if base == "string" else "long"


@pytest.mark.parametrize("row", table("avro"), ids=lambda row: row.kind)
def test_values_are_kept_or_rejected_as_the_page_says(row: Row) -> None:
    schema, base = of_the_page(row.kind)
    given: list[Any] = [text for text, _ in row.kept] + row.rejected
    if base == "bytes":
        given = [int(text).to_bytes(20, "big", signed=True) for text in given]
    elif base == "long":
        given = [int(text) for text in given]
    data = [encoded(record(("f", base)), {"f": value}) for value in given]
    rows, causes = decoded(AvroDecoder(schema), *data)
    said = [None if r is None else str(r["f"]).removesuffix("+00:00") for r in rows]
    assert said == [value for _, value in row.kept] + [None] * len(row.rejected)
    assert [cause is None for cause in causes] == [value is not None for value in said]


def test_nested_types_are_decoded() -> None:
    inner = {
        "type": "record", "name": "In", "namespace": "n",
        "fields": [
            {"name": "at", "type": logical("long", "timestamp-millis")},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}},
            {"name": "again", "type": ["null", "E"]},
        ],
    }  # fmt: skip
    schema = record(
        ("one", inner),
        ("many", {"type": "array", "items": ["null", "n.In"]}),
        ("map", {"type": "map", "values": ["null", logical("long", "timestamp-millis")]}),
        ("plain", {"type": "map", "values": {"type": "array", "items": "int"}}),
        ("u", {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}),
        ("x", {"type": "fixed", "name": "X2", "size": 2}),
    )
    item = {"at": 1, "e": "Y", "again": "X"}
    writer = json.loads(schema.replace('"logicalType": "timestamp-millis"', '"x": 1'))
    value = {
        "one": item, "many": [None, item], "map": {"a": 2, "b": None}, "plain": {"k": [1, 2]},
        "u": bytes(range(16)), "x": b"\x00\xff",
    }  # fmt: skip
    rows, causes = decoded(AvroDecoder(schema), encoded(json.dumps(writer), value))
    assert causes == [None]
    [row] = rows
    assert row["one"]["at"].microsecond == 1000
    assert (row["one"]["e"], row["one"]["again"]) == ("Y", "X")
    assert row["many"][0] is None
    assert row["many"][1]["at"].microsecond == 1000
    assert [(k, v and v.microsecond) for k, v in row["map"]] == [("a", 2000), ("b", None)]
    assert row["plain"] == [("k", [1, 2])]
    assert (row["u"], row["x"]) == ("00010203-0405-0607-0809-0a0b0c0d0e0f", b"\x00\xff")


def test_a_record_is_brought_to_the_readers_schema() -> None:
    writer = record(("a", "int"), ("gone", "string"), ("old", "float"))
    reader = record(
        ("a", "long"), ("new", "string", "here"), ("raw", "bytes", "\u00ff"),
        ("price", logical("bytes", "decimal", precision=4, scale=2), "\u0001"),
    )  # fmt: skip
    renamed = json.loads(reader)
    renamed["fields"].append({"name": "young", "type": "double", "aliases": ["old"]})
    data = encoded(writer, {"a": 1, "gone": "x", "old": 0.5})
    rows, causes = decoded(AvroDecoder(json.dumps(renamed), writer=writer), data)
    assert causes == [None]
    assert rows == [{"a": 1, "new": "here", "raw": b"\xff", "price": Decimal("0.01"), "young": 0.5}]
    other, causes = decoded(AvroDecoder(record(("a", "string")), writer=writer), data)
    assert other == [None]
    assert "int is not string" in str(causes[0])


def test_defaults_at_any_depth_are_those_of_the_schema_for_each_record() -> None:
    writer = record(("a", "int"))
    deep = {
        "type": "record", "name": "D",
        "fields": [
            {"name": "at", "type": logical("long", "timestamp-millis")},
            {"name": "raw", "type": "bytes"},
            {"name": "price", "type": logical("bytes", "decimal", precision=4, scale=2)},
            {"name": "own", "type": "int", "default": 7},
        ],
    }  # fmt: skip
    uuids = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    reader = record(
        ("one", deep, {"at": 5, "raw": "\u00ff", "price": "\u0001"}),
        ("many", {"type": "array", "items": "bytes"}, ["\u00fe"]),
        ("map", {"type": "map", "values": ["bytes", "null"]}, {"k": "\u00fd", "n": None}),
        ("u", uuids, "\u00ff" * 16),
    )
    rows, causes = decoded(AvroDecoder(reader, writer=writer), *[encoded(writer, {"a": 1})] * 3)
    assert causes == [None] * 3
    assert rows == [
        {
            "one": {
                "at": datetime(1970, 1, 1, 0, 0, 0, 5000, ZONE),
                "raw": b"\xff", "price": Decimal("0.01"), "own": 7,
            },
            "many": [b"\xfe"], "map": [("k", b"\xfd"), ("n", None)],
            "u": "ffffffff-ffff-ffff-ffff-ffffffffffff",
        }
    ] * 3  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("null", "Field f of the Avro schema has the type null"),
        (["int", "string"], "a union may hold one type"),
        ({"type": "array", "items": ["null", "int", "string"]}, "Field f.items"),
        (logical("bytes", "decimal", precision=39, scale=0), "at most 38 digits"),
        ({"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}, "months"),
        (["null", "R"], "it contains itself"),
        ("Nobody", "UnknownType: Nobody"),
        ({"type": "record", "name": "E", "fields": []}, "it has no fields"),
    ],
)
def test_a_field_without_a_type_in_spark_is_rejected_by_name(kind: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        AvroDecoder(record(("f", kind)))


@pytest.mark.parametrize("schema", ["{", '"string"', '{"type": "array", "items": "int"}'])
def test_a_schema_that_is_not_a_record_is_rejected(schema: str) -> None:
    with pytest.raises(ConfigError):
        AvroDecoder(schema)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x02", b"\x02\x0aab", b"\xff" * 30, b"\x02\x04\xff\xfe", b"\x02\x02x\x00", b"\x02\x01"],
)
def test_bytes_that_are_no_avro_are_poison(data: bytes) -> None:
    schema = record(("a", "int"), ("b", "string"))
    good = encoded(schema, {"a": 1, "b": "x"})
    rows, causes = decoded(AvroDecoder(schema), good, data, good)
    assert rows == [{"a": 1, "b": "x"}, None, {"a": 1, "b": "x"}]
    assert causes[0] is causes[2] is None
    assert str(causes[1]).startswith("It is not Avro of this schema: ")
