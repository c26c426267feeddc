"""JSON of Kafka's records: a value is exactly one object, or it is poison with its reason."""

from __future__ import annotations

import json
import pickle
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dedup.sources.files.json_text import NOT_STRICT
from dedup.sources.files.text_values import Spelling
from dedup.sources.kafka import decoder as decoders
from dedup.sources.kafka.decoder import CAUSE, FIELDS
from dedup.sources.kafka.json_decoder import JsonDecoder
from tests.support.avro import decoded

INSIDE = pa.struct([pa.field("city", pa.string(), nullable=False), ("zip", pa.int32())])
ORDER = pa.struct(
    [
        pa.field("id", pa.string(), nullable=False),
        ("amount", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
        ("at", INSIDE),
    ]
)
NO_OBJECT = "It is JSON, but not an object."
#: Values that are not orders, each with its cause.
POISON = {
    b"": "It is empty.",
    b" \r\n\t": "It is empty.",
    b"5": NO_OBJECT,
    b'"text"': NO_OBJECT,
    b"null": NO_OBJECT,
    b'[{"id": "a"}]': NO_OBJECT,
    b'[{"id": "a"}, {"id": "b"}]': NO_OBJECT,
    b"[]": NO_OBJECT,
    b'[{"id": "a"}, ]': NOT_STRICT,
    b'{"id": "a"': NOT_STRICT,
    b'{"id": "a"} trailing': NOT_STRICT,
    b'{"id": "a"}{"id": "b"}': NOT_STRICT,
    b'{"id": "a"}\n{"id": "b"}': NOT_STRICT,
    b'{"id": "a"}\r\n{"id": "b"}\n': NOT_STRICT,
    b'{"id": "a"}},{"id": "b"}': NOT_STRICT,
    b'{"id": "a\nb"}': NOT_STRICT,
    b'{"id": "a\rb"}': NOT_STRICT,
    b'{"id": "a"}\x0b': NOT_STRICT,
    b'\x0c{"id": "a"}': NOT_STRICT,
    b"\x00\x01\x02": NOT_STRICT,
    b'\xef\xbb\xbf{"id": "a"}': NOT_STRICT,
    b'{"id": "a", "at": {"city": "x", "zip": 1, "zip": 2}}': NOT_STRICT,
    b'{"id": "x\\ud800"}': NOT_STRICT,
    b'{"id": "\xff\xfe"}': "It is not valid UTF-8.",
    b"\xff\xfe{\0}\0": "It is not valid UTF-8.",
    b'{"id": "a", "x": ' + b"[" * 2000 + b"]" * 2000 + b"}": "It has more than 1,000 levels.",
    b'{"id": "a", "amount": 1.001}': "Field amount does not fit decimal(10,2).",
    b'{"id": "a", "at": 5}': "Field at does not fit struct<city:string,zip:int>.",
    b'{"amount": 1}': "Field id is missing or null, and the schema needs it.",
    b'{"id": "a", "at": {"zip": 1}}': "Field at.city is missing or null, and the schema needs it.",
}


def order(number: int, **more: Any) -> dict[str, Any]:
    inside = {"city": f"x{number}", "zip": number}
    return {"id": f"o{number}", "amount": number / 4, "tags": ["a", None], "at": inside, **more}


def row(number: int) -> dict[str, Any]:
    return order(number, amount=Decimal(number * 25).scaleb(-2))


def layout(number: int) -> bytes:
    """An order as different writers lay it out."""
    lines = json.dumps(order(number), indent=2)
    return [
        json.dumps(order(number)), f" {lines}\n", lines.replace("\n", "\r\n"),
        lines.replace("\n", "\r"), json.dumps(order(number, other=[1, {"x": None}])),
    ][number % 5].encode()  # fmt: skip


def test_an_object_may_have_blanks_and_line_ends_around_and_inside() -> None:
    rows, causes = decoded(JsonDecoder(ORDER, Spelling()), *map(layout, range(500)))
    assert rows == list(map(row, range(500)))
    assert not any(causes)


@pytest.mark.parametrize("others", [0, 3, 100])
def test_a_value_that_is_not_exactly_one_object_is_poison_with_a_cause(others: int) -> None:
    decoder = JsonDecoder(ORDER, Spelling())
    values: list[bytes | None] = []
    for value in POISON:
        values += [*map(layout, range(others)), value, None]
    rows, causes = decoded(decoder, *values)
    for at, cause in enumerate(POISON.values()):
        begin, end = at * (others + 2), at * (others + 2) + others
        assert rows[begin:end] == list(map(row, range(others)))
        assert causes[begin : end + 2] == [None] * others + [cause, None]


def test_a_value_is_decoded_alike_alone_and_among_others() -> None:
    chance = random.Random(5)
    pieces = [b"{", b"}", b"[", b"]", b",", b":", b'"', b"\n", b"\r", b" ", b"\\", b"1.0", b"null",
              b'"id"', b'"amount"', b'"o"', b"\xff", b'{"id":"a"}', b'{"id":"a","x":']  # fmt: skip
    for _ in range(8):
        values: list[bytes | None] = list(map(layout, range(60)))
        for _ in range(60):
            text = b"".join(chance.choices(pieces, k=chance.randrange(1, 8)))
            if chance.random() < 0.5:
                whole = layout(chance.randrange(100))
                cut = chance.randrange(len(whole))
                text = whole[:cut] + text + whole[cut:]
            values.insert(chance.randrange(len(values)), chance.choice([text, text, None]))
        decoder = JsonDecoder(ORDER, Spelling())
        alone = [decoded(JsonDecoder(ORDER, Spelling()), value) for value in values]
        rows, causes = decoded(pickle.loads(pickle.dumps(decoder)), *values)
        assert (rows, causes) == ([r for [r], _ in alone], [c for _, [c] in alone])


def test_a_key_of_json_keeps_its_bytes() -> None:
    given = pa.record_batch({"key": pa.array([b'{"id": "a"}', None, b"5"], pa.binary())})
    [found] = JsonDecoder(ORDER, Spelling()).batches([given], "key")
    assert found.column("key") == given.column("key")
    assert [r and r["id"] for r in found.column(FIELDS).to_pylist()] == ["a", None, None]
    assert found.column(CAUSE).to_pylist() == [None, None, NO_OBJECT]


def test_a_value_of_more_than_64_mib_is_poison() -> None:
    long = b'{"id": "' + b"x" * (64 << 20) + b'"}'
    rows, causes = decoded(JsonDecoder(ORDER, Spelling()), layout(1), long, layout(2))
    assert rows == [row(1), None, row(2)]
    assert causes == [None, "It is longer than 64 MiB.", None]


def test_large_values_are_decoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "_PIECE_BYTES", 1000)
    values = [layout(n) for n in range(100)] + [None] * 10 + [json.dumps(order(1)).encode() * 50]
    batch = pa.record_batch({"value": pa.array(values, pa.binary()), "offset": range(111)})
    found = list(JsonDecoder(ORDER, Spelling()).batches([batch.slice(50)]))
    assert len(found) > 5
    assert max(map(len, found)) < 20
    whole = pa.Table.from_batches(found)
    assert whole["offset"].to_pylist() == list(range(50, 111))
    assert whole[FIELDS].to_pylist() == [*map(row, range(50, 100)), *[None] * 11]


def test_columns_may_have_any_name() -> None:
    names = ["_corrupt_record", "_metadata", "value", "none", "a.b", "|a", "x y", "é"]
    text = json.dumps({name: name for name in names}).encode()
    kind = pa.struct([(name, pa.string()) for name in names])
    rows, _ = decoded(JsonDecoder(kind, Spelling()), *[text] * 20)
    assert rows == [{name: name for name in names}] * 20
