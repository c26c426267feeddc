"""The readers of JSON: what they keep and reject, and that both speeds agree."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from dedup.sources.files.json_input import JsonFormat, JsonReader
from dedup.sources.files.json_text import NOT_STRICT
from dedup.sources.files.text_records import Rows
from dedup.sources.files.text_values import Spelling
from tests.support import pages
from tests.support.ddl import TYPES

SPELLING = Spelling()
INSTANT = pa.timestamp("us", "UTC")
ORDER = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("amount", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("items", pa.int64()),
        ("paid", pa.bool_()),
        ("day", pa.date32()),
        ("at", INSTANT),
        ("local", pa.timestamp("us")),
        ("photo", pa.binary()),
        ("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
        ("to", pa.struct([("city", pa.string()), pa.field("since", pa.date32(), nullable=False)])),
    ]
)
PLAIN = {
    "id": "o", "amount": 0.1, "price": 12.5, "items": 3, "paid": True, "day": "2024-05-01",
    "at": "2024-05-01T10:00:00Z", "local": "2024-05-01T10:00:00.5", "photo": "YWI=",
    "tags": ["a", "é"], "to": {"city": "Zürich", "since": "1999-01-01"},
}  # fmt: skip


def plain(number: int) -> bytes:
    record = {**PLAIN, "id": f"o-{number}", "items": number, "amount": number / 7}
    return json.dumps(record, ensure_ascii=False).encode()


class Both(JsonReader):
    """Reads in both ways, checks that they agree, and counts the lines that pyarrow read."""

    by_pyarrow = 0

    def read(self, data: bytes, is_last: bool = True) -> Rows:
        rows = super().read(data, is_last=is_last)
        exact = JsonReader(
            self.columns, self._spelling, line_end=self.line_end, is_whole=self._is_whole
        )
        exact._read_type = None
        expected = exact.read(data, is_last=is_last)
        assert repr(rows.good.to_pylist()) == repr(expected.good.to_pylist())
        assert rows.good.schema.equals(self.columns)
        assert list(rows.bad) == list(expected.bad)
        assert rows.spans() == expected.spans()
        assert rows.nbytes == expected.nbytes
        rows.good.validate(full=True)
        return rows

    def _run(self, lines: Any, own: Any) -> Any:
        run, odd = super()._run(lines, own)
        self.by_pyarrow += len(own) - len(odd)
        return run, odd


def column(kind: pa.DataType) -> pa.Schema:
    return pa.schema([("v", kind)])


def among(line: bytes, others: int = 40) -> bytes:
    """Put a line between lines that pyarrow can read."""
    return b"\n".join([*[b"{}"] * others, line, *[b"{}"] * others, b""])


def shown(value: Any) -> str:
    """Return a value as Spark casts it to STRING."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case bytes():
            return value.decode()
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".").rjust(19, "0")
        case [(key, item)]:
            return f"{{{key} -> {shown(item)}}}"
        case list():
            return f"[{', '.join(map(shown, value))}]"
        case dict():
            return f"{{{', '.join(map(shown, value.values()))}}}"
    return str(value)


EXAMPLES = pages.table("json")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [(row.kind, text, value) for row in EXAMPLES for text, value in row.kept],
)
def test_values_are_kept_as_the_page_says(kind: str, text: str, value: str) -> None:
    rows = Both(column(TYPES[kind]), SPELLING).read(among(b'{"v": %s}' % text.encode()))
    found = rows.good["v"][40].as_py()
    assert not rows.bad
    assert len(rows.good) == 81
    if isinstance(found, float):
        expected = pa.array([float(value)]).cast(TYPES[kind])
        assert repr([found]) == repr(expected.to_pylist())
    else:
        assert shown(found) == value


@pytest.mark.parametrize(
    ("kind", "text"), [(row.kind, text) for row in EXAMPLES for text in row.rejected]
)
def test_values_are_rejected_as_the_page_says(kind: str, text: str) -> None:
    line = b'{"v": %s}' % text.encode()
    rows = Both(column(TYPES[kind]), SPELLING).read(among(line))
    (bad,) = rows.bad
    assert (bad.offset, bad.text) == (40 * 3, line)
    assert bad.reason == f"Field v does not fit {kind.lower().replace(', ', ',')}.".replace(
        ": ", ":"
    )
    assert len(rows.good) == 80


@pytest.mark.parametrize(
    "line",
    [
        b"{}}",
        b"{}{}",
        b"{} {}",
        b"{}null",
        b"{},",
        b'{"a": 1',
        b'{"a": 1,}',
        b"{'a': 1}",
        b'{"a": 1} // x',
        b'{"a": /* x */ 1}',
        b'{"a": NaN}',
        b'{"other": NaN}',
        b'{"other": -Infinity}',
        b'{"other": Inf}',
        b'{"a": 01}',
        b'{"a": +1}',
        b'{"a": "\\ud800"}',
        b'{"other": "\\udc00 \\ud800"}',
        b'{"\\ud800": 1}',
        b'{"a": "x\ty"}',
        b'{"a": "x\x00y"}',
        b'{"a": 1}\x00',
        b'{"a": 1, "a": 1}',
        b'{"a": 1, "\\u0061": 1}',
        b'{"a": null, "a": 1}',
        b'{"other": 1, "other": 1}',
        b'{"other": {"x": 1, "x": 1}}',
        b'{"other": [{"x": 1}, {"x": 1, "x": null}]}',
        b"\xef\xbb\xbf{}",
        b"x",
        b"[{}",
        b"{",
        b"}",
    ],
)
def test_a_line_that_is_not_strict_json_is_a_bad_record(line: bytes) -> None:
    kind = pa.schema([("a", pa.int64()), ("s", pa.string())])
    rows = Both(kind, SPELLING).read(among(line) + b'{"other": 1}\n' + among(line))
    assert [(bad.text, bad.reason) for bad in rows.bad] == [(line, NOT_STRICT)] * 2
    assert len(rows.good) == 161


@pytest.mark.parametrize(
    "line",
    [
        b'{"v": "\xff"}',
        b'{"v": "a\xc3"}',
        b'{"other": "\xed\xa0\x80"}',
        b'{"other": "\xf4\x90\x80\x80"}',
        b'{"\xc0\xaf": 1}',
        b"\xff",
    ],
)
def test_bytes_that_are_not_utf8_are_a_bad_record(line: bytes) -> None:
    reader = Both(column(pa.string()), SPELLING)
    rows = reader.read(b'{"other": "x"}\n' * 40 + among(line))
    assert [(bad.text, bad.reason) for bad in rows.bad] == [(line, "It is not valid UTF-8.")]
    assert reader.by_pyarrow > 60


@pytest.mark.parametrize("line", [b"null", b"7", b'"x"', b"true", b"[null]", b"[1]", b"[[{}]]"])
def test_a_value_that_is_not_an_object_is_a_bad_record(line: bytes) -> None:
    for data in (among(line), among(line, 0)):
        rows = Both(column(pa.string()), SPELLING).read(data)
        assert [(bad.text, bad.reason) for bad in rows.bad] == [
            (line, "It is JSON, but not an object.")
        ]


@pytest.mark.parametrize("name", ["v", "other"])
@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"v":', b"}")])
@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.list_(pa.int64())])
def test_a_value_of_more_than_a_thousand_levels_is_a_bad_record(
    name: str, begin: bytes, end: bytes, kind: pa.DataType
) -> None:
    def line(levels: int) -> bytes:
        return b'{"%s": %s1%s}' % (name.encode(), begin * (levels - 1), end * (levels - 1))

    for levels in (1001, 20_000):
        rows = Both(column(kind), SPELLING).read(among(line(levels)))
        assert [bad.reason for bad in rows.bad] == ["It has more than 1,000 levels."]
    rows = Both(column(kind), SPELLING).read(among(line(1000)))
    if name == "other":
        assert not rows.bad
    elif kind == pa.string():
        assert rows.good["v"][40].as_py() == line(1000)[6:-1].decode()
    else:
        assert [bad.reason[:20] for bad in rows.bad] == ["Field v does not fit"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.decimal128(10, 2), "1e-300000000"),
        (pa.decimal128(10, 2), '"1e-300000000"'),
        (pa.decimal128(10, 2), "1e-400"),
        (pa.decimal128(10, 2), "1.0000000000000000000000000001"),
        (pa.decimal128(10, 2), "1" * 400),
        (pa.decimal128(38, 18), "1" * 21),
        (pa.float64(), "1" * 400),
        (pa.float32(), "1e39"),
        (pa.int64(), "1.00000000000000000000000001"),
        (pa.timestamp("us"), '"2024-05-01T10:00:00+02:00"'),
        (pa.timestamp("us"), '"2024-05-01 10"'),
        (INSTANT, '"0001-01-01T00:00:00+01:00"'),
        (pa.date32(), '"0000-01-01"'),
    ],
)
def test_a_value_that_pyarrow_would_change_is_a_bad_record(kind: pa.DataType, text: str) -> None:
    for name in ("v", "\\u0076"):
        line = f'{{"{name}": {text}}}'.encode()
        rows = Both(column(kind), SPELLING).read(among(line))
        assert [bad.text for bad in rows.bad] == [line]


@pytest.mark.parametrize(
    "text", ["999999999999999", "-123456789012.345", "1e-18", "0.000001", "12"]
)
def test_a_large_decimal_keeps_numbers_of_any_size(text: str) -> None:
    rows = Both(column(pa.decimal128(38, 18)), SPELLING).read(among(f'{{"v": {text}}}'.encode()))
    assert rows.good["v"][40].as_py() == Decimal(text)


def test_plain_lines_are_read_by_pyarrow() -> None:
    reader = Both(ORDER, SPELLING)
    rows = reader.read(b"\n".join(map(plain, range(1000))))
    assert reader.by_pyarrow == 1000
    assert not rows.bad
    assert rows.good.slice(7, 1).to_pylist() == [
        {
            "id": "o-7", "amount": 1.0, "price": Decimal("12.50"), "items": 7, "paid": True,
            "day": date(2024, 5, 1), "at": datetime.fromisoformat("2024-05-01T10:00:00Z"),
            "local": datetime(2024, 5, 1, 10, 0, 0, 500_000), "photo": b"ab", "tags": ["a", "é"],
            "to": {"city": "Zürich", "since": date(1999, 1, 1)},
        }
    ]  # fmt: skip


def test_only_lines_that_pyarrow_rejects_are_read_one_by_one() -> None:
    columns = pa.schema([("v", pa.int64()), ("s", pa.string())])
    big = b'{"v": 18446744073709551615}'
    for odd in (
        big,
        b'{"v": 1.0}',
        b'{"s": 7}',
        b'{"v": 1e2, "s": {}}',
        b'[{"v": 1}]',
        b' {"v": 1} ',
    ):
        reader = Both(columns, SPELLING)
        lines = [b'{"v": %d, "s": "x"}' % n for n in range(2000)]
        lines[700], lines[1400] = odd, odd
        rows = reader.read(b"\n".join(lines))
        assert len(rows.good) + len(rows.bad) == 2000
        assert reader.by_pyarrow == 1998


def test_fields_without_a_column_may_change_their_type() -> None:
    reader = Both(column(pa.int64()), SPELLING)
    first = [b'{"v": 1, "x": 1}'] * 20
    rows = reader.read(b"\n".join(first + [b'{"v": 2, "x": "a"}'] * 1000))
    assert len(rows.good) == 1020
    assert reader.by_pyarrow > 900
    both = [b'{"v": 1, "x": 1, "y": {"x": "a"}}', b'{"v": 1, "x": "a", "y": {"x": 1}}']
    mixed = [b'{"v": 1, "x": [1, "a", {}, []], "y": [{"z": 1}, {"z": "a"}]}', *both]
    assert len(reader.read(b"\n".join(mixed * 100)).good) == 300


def test_many_keys_that_no_column_has_cost_no_memory() -> None:
    reader = Both(column(pa.int64()), SPELLING)
    rows = reader.read(b"\n".join(b'{"v": %d, "key-%d": 1}' % (n, n) for n in range(3000)))
    assert len(rows.good) == 3000
    assert reader._read_type is not None
    assert reader._read_type.num_fields <= 101


def test_missing_fields_that_the_schema_needs_are_named() -> None:
    inner = pa.struct([pa.field("b", pa.int64(), nullable=False)])
    columns = pa.schema([pa.field("k", pa.string(), nullable=False), ("a", inner)])
    lines = {
        b'{"a": null}': "Field k is missing or null, and the schema needs it.",
        b'{"k": null}': "Field k is missing or null, and the schema needs it.",
        b'{"k": "x", "a": {}}': "Field a.b is missing or null, and the schema needs it.",
        b'{"k": "x", "a": {"b": null}}': "Field a.b is missing or null, and the schema needs it.",
        b'{"K": "x"}': "Field k is missing or null, and the schema needs it.",
    }
    good = [b'{"k": "x"}'] * 50
    rows = Both(columns, SPELLING).read(b"\n".join([*good, *lines, *good]))
    assert {bad.text: bad.reason for bad in rows.bad} == lines
    assert len(rows.good) == 100


def test_an_array_in_a_line_is_several_records() -> None:
    line = b'[{"v": 1}, {"v": "x"}, 3, {"v": 2}]'
    rows = Both(column(pa.int64()), SPELLING).read(b'{"v": 0}\n' + line + b'\n[]\n{"v": 3}')
    assert rows.good["v"].to_pylist() == [0, 1, 2, 3]
    assert [(bad.offset, bad.text, bad.reason) for bad in rows.bad] == [
        (9, line, "Field v does not fit bigint.")
    ]
    assert rows.spans()[1:3] == [(9, 9 + len(line))] * 2


def test_a_whole_file_is_one_value() -> None:
    reader = Both(column(pa.int64()), SPELLING, is_whole=True)
    assert reader.read(b'[\n{"v": 1},\r\n{"v":\n2}]\n').good["v"].to_pylist() == [1, 2]
    assert reader.read(b'{\n"v": 1\n}').good["v"].to_pylist() == [1]
    assert reader.read(b'{"v": 1}', is_last=False).nbytes == 0
    assert reader.first_end(b"{}\n", is_last=False) is None
    for nothing in (b"", b" \n"):
        rows = reader.read(nothing)
        assert (len(rows.good), rows.bad, rows.nbytes) == (0, [], len(nothing))
    (bad,) = reader.read(b'{"v": 1}\n{"v": 2}').bad
    assert bad.reason == NOT_STRICT


@pytest.mark.parametrize(
    ("line_end", "data", "values"),
    [
        (b"", b'{"v":1}\r\n{"v":2}\r{"v":3}\n\n\r{"v":4}', [1, 2, 3, 4]),
        (b"\n", b'{"v":1}\r\n{"v":\r2}\n \n{"v":3}\r', [1, 2, 3]),
        (b"|", b'{"v":1}|{"v":\n2}||\n|{"v":3}\n', [1, 2, 3]),
        (b"||", b'{"v":1}||{"v":2}||', [1, 2]),
    ],
)
def test_lines_are_split_at_the_given_line_end(
    line_end: bytes, data: bytes, values: list[int]
) -> None:
    reader = Both(column(pa.int64()), SPELLING, line_end=line_end)
    rows = reader.read(data)
    assert rows.good["v"].to_pylist() == values
    assert not rows.bad
    # In two parts, divided anywhere.
    for stop in range(len(data)):
        first = reader.read(data[:stop], is_last=False)
        assert first.nbytes == reader.skip(data[:stop], is_last=False).nbytes
        second = reader.read(data[first.nbytes :])
        assert first.good["v"].to_pylist() + second.good["v"].to_pylist() == values
        end = reader.first_end(data[:stop], is_last=False)
        assert (end is None) == (first.nbytes == 0)


def test_bytes_behind_the_last_line_complete_no_record() -> None:
    broken = b'{"v":{"a":1}\n'
    lines = b'{"v":{"a":1}}\n' * 40
    reader = Both(column(pa.struct([("a", pa.int64())])), SPELLING)
    rows = reader.read(lines + broken + b"}", is_last=False)
    assert [bad.text for bad in rows.bad] == [broken[:-1]]
    assert len(rows.good) == 40
    reader.by_pyarrow = 0
    assert len(reader.read(lines * 10 + broken[:9], is_last=False).good) == 400
    assert reader.by_pyarrow > 300


def test_a_text_column_keeps_the_spelling_of_numbers() -> None:
    line = b'{"v": {"b": [1.0, 1e5, "\\u00e9\\n", true, null], "a": {}}}'
    rows = Both(column(pa.string()), SPELLING).read(line)
    assert rows.good["v"].to_pylist() == ['{"b":[1.0,1e5,"é\\n",true,null],"a":{}}']


def test_times_without_a_zone_are_in_the_given_zone() -> None:
    reader = Both(column(INSTANT), Spelling(time_zone="Europe/Berlin"))
    rows = reader.read(b'{"v": "2024-05-01T10:00:00"}\n' * 20 + b'{"v": "2024-03-31T02:30:00"}')
    assert [str(value)[:16] for value in rows.good["v"].to_pylist()[19:]] == [
        "2024-05-01 08:00",
        "2024-03-31 01:30",
    ]


def test_the_format_creates_a_reader_with_its_line_end() -> None:
    made = JsonFormat(columns=column(pa.int64()), spelling=SPELLING, line_end=b"|")
    reader, nbytes = made.reader(b"", is_last=True)
    assert nbytes == 0
    assert reader.read(b'{"v": 1}|{"v": 2}').good["v"].to_pylist() == [1, 2]


VALUES = [
    "null", "1", "-0", "1.0", "1e3", "128", "2147483648", "9223372036854775808", "1.005", "15e-1",
    "1e39", "1e400", "1e-400", "1e-300000000", "99999999.99", "100000000", "1234567890123456",
    "123456789012345.6", "0.12345678901234567891", "16777217", '"1"', '"12.34"', '"NaN"', "NaN",
    "-Infinity", "true", '"2024-05-01"', '"2024-02-30"', '"2024-5-1"', '"2024-05-01T10:00:00Z"',
    '"2024-05-01T10:00:00"', '"2024-05-01 10:00:00.1234567Z"', '"9999-12-31T23:59:59-05:00"',
    "1714521600", '"YWJ="', '"YW I="', "[]", "[1, null]", '["a"]', "[[1]]", "{}", '{"city": "x"}',
    '{"since": "2024-05-01", "x": 1}', '{"since": "2024-05-01", "city": 7}', '"\\ud83d\\ude00"',
    '"\\ud800"', '"\\u0000"', '"a\\"b\\\\"', '"\\x"', '"é"', '"a\tb"', "01", ".5", "1.", "tru",
    "1 2", '"\\"price\\": 1234567890123456"',
]  # fmt: skip
NAMES = [*ORDER.names, "x", "y", "\\u0069d", "pr\\u0069ce", "price ", "é", ""]
PIECES = [
    b"\xff", b"\xed\xa0\x80", b"\x00", b"\n", b"\r", b"\xef\xbb\xbf", b"}{", b"}\n{", b",", b"//",
    b"'", b'"', b"\\", b" ", b"NaN", b"null", b"[", b"]", b"{}", b"\t",
]  # fmt: skip


def hostile(chance: random.Random) -> Iterator[bytes]:
    """Yield lines, of which few, some or many are odd."""
    often = chance.choice([0.002, 0.02, 0.3])
    for number in count():
        if chance.random() > often:
            yield plain(number)
            continue
        names = chance.sample(NAMES, chance.randint(0, len(NAMES)))
        values = [json.dumps(PLAIN.get(name, "x")) for name in names]
        for _ in range(chance.randint(0, 3)):
            if values:
                values[chance.randrange(len(values))] = chance.choice(VALUES)
        fields = (f'"{name}": {value}' for name, value in zip(names, values, strict=True))
        line = f"{{{', '.join(fields)}}}".encode()
        for _ in range(chance.choice([0, 0, 1, 2])):
            at = chance.randint(0, len(line))
            end = at + chance.choice([0, 0, 1, 5])
            line = line[:at] + chance.choice(PIECES) + line[end:]
        yield chance.choice([line, line, line, b"[%s, %s]" % (line, line), line + line])


@pytest.mark.parametrize("seed", range(30))
def test_both_speeds_agree_about_hostile_lines(seed: int) -> None:
    chance = random.Random(seed)
    names = chance.choice([ORDER.names, chance.sample(ORDER.names, 4)])
    reader = Both(pa.schema([ORDER.field(name) for name in names]), SPELLING)
    lines = hostile(chance)
    for _ in range(3):
        block = b"\n".join(next(lines) for _ in range(chance.choice([1, 20, 300])))
        reader.read(block, is_last=chance.random() < 0.5)
