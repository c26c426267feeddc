"""Foreign Avro that would end a worker, hold it, or be read as another value, is poison."""

from __future__ import annotations

import io
import json
import random
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from dedup.sources.kafka import avro_bounds
from dedup.sources.kafka.avro_bounds import MAX_DECIMAL_BYTES, MAX_DEPTH, MAX_EMPTY
from dedup.sources.kafka.avro_rows import AvroDecoder
from tests.support.avro import decoded, record
from tests.support.processes import python

A = b"\x02a"  # the text "a"


def schema(*kinds: Any) -> str:
    """A record whose last field is an ID, behind fields of these types."""
    return record(*((f"f{n}", kind) for n, kind in enumerate(kinds)), ("id", "string"))


def number(value: int) -> bytes:
    """An int or long, as Avro writes it."""
    rest, out = value * 2 if value >= 0 else -value * 2 - 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*out, rest))


def judged(writer: str, *values: bytes, reader: str | None = None) -> list[str | None]:
    """The causes for which values are set aside."""
    return decoded(AvroDecoder(reader or schema(), writer=writer), *values)[1]


NODE = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
TREE = {
    "type": "record", "name": "T",
    "fields": [{"name": "under", "type": {"type": "array", "items": "T"}}],
}  # fmt: skip


def test_nested_records_are_bounded_in_depth() -> None:
    deepest = MAX_DEPTH - 2  # below the record itself, and the last node ends it
    chains = [b"\x02" * depth + b"\x00" + A for depth in (0, deepest, deepest + 1, 1_000_000)]
    causes = judged(schema(NODE), *chains)
    assert causes[:2] == [None, None]
    assert all(f"more than {MAX_DEPTH} records" in str(cause) for cause in causes[2:])
    tree = [b"\x02" * depth + b"\x00" * (depth + 1) + A for depth in (3, 100_000)]
    assert [cause is None for cause in judged(schema(TREE), *tree)] == [True, False]


def test_a_worker_outlives_deep_records_that_the_reader_leaves_out() -> None:
    code = """
import sys
from tests.unit.test_kafka_source_avro_bounds import NODE, A, judged, schema
print(judged(schema(NODE), b"\\x02" * 900_000 + b"\\x00" + A))
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "It is not Avro of this schema: more than" in done.stdout


def empty(depth: int) -> Any:
    """A type of 2 ** depth nulls, which take no bytes."""
    kind: Any = "null"
    for level in range(depth):
        fields = [
            {"name": "x", "type": kind},
            {"name": "y", "type": f"E{level}" if level else kind},
        ]
        if level:
            fields[1]["type"] = fields[0]["type"]["name"]
        kind = {"type": "record", "name": f"E{level + 1}", "fields": fields}
    return kind


NOTHING = {"type": "record", "name": "Nothing", "fields": []}


@pytest.mark.parametrize("items", ["null", NOTHING, {"type": "fixed", "name": "F", "size": 0}])
def test_items_that_take_no_bytes_are_bounded_in_number(items: Any) -> None:
    writer = schema({"type": "array", "items": items})
    counts = (0, 5, MAX_EMPTY, 2**40, 2**62)
    values = [(number(count) if count else b"") + b"\x00" + A for count in counts]
    blocks = number(900) + number(900) + b"\x00" + A
    causes = judged(writer, *values, blocks)
    assert [cause is None for cause in causes] == [True, True, True, False, False, False]
    assert "take no bytes" in str(causes[-1])


def test_records_that_take_no_bytes_are_bounded_in_number() -> None:
    assert judged(schema(empty(5)), A) == [None]
    assert "take no bytes" in str(judged(schema(empty(50)), A)[0])
    # One byte identifies each of these.
    kinds = {"type": "array", "items": [NOTHING, "int"]}
    assert judged(schema(kinds), number(5000) + b"\x00" * 5000 + b"\x00" + A) == [None]


ENUM = {"type": "enum", "name": "E", "symbols": ["a", "b", "c"]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 0}
WIDER = {**DECIMAL, "precision": 20, "scale": 2}
NUMBERS = {"type": "array", "items": "int"}
TEXTS = {"type": "map", "values": "int"}
WRONG = {
    "negative-enum": (ENUM, number(-1), "no symbol or branch -1"),
    "unknown-enum": (ENUM, number(3), "no symbol or branch 3"),
    "negative-branch": (["int", "null"], number(-1), "no symbol or branch -1"),
    "unknown-branch": (["int", "null"], number(2**40), "no symbol or branch"),
    "boolean": ("boolean", b"\x02", "a boolean is 2"),
    "negative-text": ("string", number(-1), "the length -1"),
    "negative-bytes": ("bytes", number(-(2**63)), "the length -9223372036854775808"),
    "long-text": ("string", number(2**62), "the bytes end too early"),
    "long-bytes": ("bytes", number(100) + b"abc", "the bytes end too early"),
    "long-fixed": ({"type": "fixed", "name": "F", "size": 2**40}, b"abc", "end too early"),
    "65-bits": ("long", b"\xff" * 9 + b"\x02", "more than 64 bits"),
    "11-bytes": ("long", b"\x80" * 10 + b"\x00", "more than 64 bits"),
    "many-items": (NUMBERS, number(2**62) + b"\x02", "the bytes end too early"),
    "long-block": (NUMBERS, number(-1) + number(9) + b"\x02\x00", "a block has another length"),
    "least-count": (NUMBERS, number(-(2**63)) + number(1) + b"\x02", "the bytes end too early"),
    "twice-a-key": (TEXTS, number(2) + A + b"\x02" + A + b"\x04\x00", "a key occurs twice"),
    "huge-decimal": (DECIMAL, number(200_000) + b"\x7f" * 200_000, "a decimal has 200000 bytes"),
    "long-decimal": (DECIMAL, number(8) + (10_000).to_bytes(8, "big"), "more than 4 digits"),
    "least-decimal": (DECIMAL, number(8) + b"\xff" * 6 + b"\xd8\xf0", "more than 4 digits"),
    "fixed-decimal": (
        {**DECIMAL, "type": "fixed", "name": "F", "size": 3},
        b"\x00\x27\x10",
        "more than 4 digits",
    ),
    "short-double": ("double", b"abc", "the bytes end too early"),
}


@pytest.mark.parametrize("skipped", [True, False], ids=["skipped", "read"])
@pytest.mark.parametrize("name", WRONG)
def test_bytes_that_no_writer_produces_are_poison(name: str, skipped: bool) -> None:
    kind, data, said = WRONG[name]
    reader = schema() if skipped else schema("int" if isinstance(kind, list) else kind)
    [cause] = judged(schema(kind), data + (b"" if "end too early" in said else A), reader=reader)
    assert str(cause).startswith("It is not Avro of this schema: ")
    assert said in str(cause)


def test_a_decimal_that_does_not_fit_the_reader_is_poison() -> None:
    huge = number(200_000) + b"\x7f" * 200_000 + A
    [cause] = judged(schema("bytes"), huge, reader=schema(DECIMAL))
    assert "a decimal has 200000 bytes" in str(cause)
    for digits, good in (("9999", True), ("-9999", True), ("10000", False)):
        data = number(3) + int(digits).to_bytes(3, "big", signed=True) + A
        assert (judged(schema(DECIMAL), data, reader=schema(WIDER)) == [None]) == good
    # Zero padding adds no digits.
    padded = number(MAX_DECIMAL_BYTES) + (7).to_bytes(MAX_DECIMAL_BYTES, "big") + A
    assert judged(schema(DECIMAL), padded, reader=schema(DECIMAL)) == [None]


def test_arrays_and_maps_in_any_blocks_are_read() -> None:
    two = number(-2) + number(2) + b"\x02\x04"
    writer = schema(NUMBERS)
    for data in (b"\x00", two + b"\x00", two + number(1) + b"\x06" + two + b"\x00"):
        assert judged(writer, data + A, reader=writer) == [None]
    keyed = number(-1) + number(3) + A + b"\x02" + number(1) + b"\x02b\x04\x00"
    assert judged(schema(TEXTS), keyed + A, reader=schema(TEXTS)) == [None]


def test_everything_that_a_writer_writes_passes() -> None:
    point = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "double"}]}
    kinds = [
        "null", "boolean", "int", "long", "float", "double", "bytes", "string", ENUM, DECIMAL,
        {"type": "fixed", "name": "F", "size": 3}, NUMBERS, {"type": "map", "values": point},
        ["null", "P", "long"], {"type": "array", "items": ["null", "string", NUMBERS]}, NODE, TREE,
    ]  # fmt: skip
    text = record(*((f"f{n}", kind) for n, kind in enumerate(kinds)))
    named: dict[str, Any] = {}
    writer = fastavro.parse_schema(json.loads(text), named_schemas=named)
    bounds = avro_bounds.AvroBounds(writer, named)
    rng = random.Random(1)
    wholes = [0, -1, 63, 64, -64, -65, 2**31 - 1, -(2**31)]

    def node(depth: int) -> Any:
        return {"next": node(depth - 1) if depth else None}

    def tree(depth: int) -> Any:
        return {"under": [tree(depth - 1) for _ in range(rng.randrange(3))] if depth else []}

    for size in range(60):
        whole, long_ = rng.choice(wholes), rng.choice([*wholes, 2**63 - 1, -(2**63)])
        values = [
            None, rng.random() < 0.5, whole, long_, 1.5, float("nan"), rng.randbytes(size * 5),
            "ü" * size, rng.choice("abc"), Decimal(1234), b"abc", [whole] * size,
            {f"k{n}": {"x": 1.0} for n in range(size)}, rng.choice([None, {"x": 1.0}, long_]),
            [rng.choice([None, "s", [whole]]) for _ in range(size)], node(size), tree(size % 4),
        ]  # fmt: skip
        out = io.BytesIO()
        fastavro.schemaless_writer(out, writer, {f"f{n}": v for n, v in enumerate(values)})
        data = out.getvalue()
        bounds.check(data, 0)
        for wrong in (data[:-1], data + b"\0"):
            with pytest.raises(ValueError, match=r"too early|left over|another length"):
                bounds.check(wrong, 0)


@pytest.mark.parametrize("size", [-1, "5", 1.5, None])
def test_a_fixed_type_with_an_invalid_size_is_rejected(size: Any) -> None:
    """Items of a negative size would be counted to the end of a 64-bit number."""
    fixed = {"type": "fixed", "name": "F", "size": size}
    for kind in (fixed, {"type": "array", "items": fixed}):
        with pytest.raises(ValueError, match="a fixed type has the size"):
            judged(record(("a", kind)), b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\0")


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("R", b"", "more than 200 records are nested"),
        ("R", bytes(100_000), "more than 200 records are nested"),
        (["R"], b"", "the bytes end too early"),
        (["R"], bytes(100_000), "more than 200 records are nested"),
    ],
)
def test_a_value_of_an_endlessly_recursive_schema_is_poison(
    kind: Any, data: bytes, said: str
) -> None:
    assert judged(record(("a", kind)), data) == [f"It is not Avro of this schema: {said}."]
