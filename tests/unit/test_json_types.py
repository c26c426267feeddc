"""Columns of JSON get types that hold every value exactly, at both speeds of reading."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T  # noqa: N812

from dedup.kernel.arrays import I64
from dedup.sources.files import json_types
from dedup.sources.files.bypass import text_schema
from dedup.sources.files.json_input import JsonFormat
from dedup.sources.files.json_lines import Lines
from dedup.sources.files.json_text import NOT_STRICT, parsed
from dedup.sources.files.json_types import JsonTypes, Shape, column_type, merged
from dedup.sources.files.text_values import Number, Spelling, Unfit, structs

NOT_OBJECT = "It is JSON, but not an object."


def shape_of(data: bytes, few: int, **options: Any) -> tuple[Shape, list[str]]:
    """The shape of all records, and the reasons of bad ones.

    Less than `few` lines are read one by one.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_types, "_FEW", few)
        types = JsonTypes(JsonFormat(columns=pa.schema([]), spelling=Spelling(), **options))
        rows = types.read(data)
        assert (rows.nbytes, rows.good.num_rows) == (len(data), 0)
        return types.records.shape or {}, [bad.reason for bad in rows.bad]


def fast(data: bytes) -> tuple[Shape, list[str]]:
    return shape_of(data, 1)


def exact(data: bytes) -> tuple[Shape, list[str]]:
    return shape_of(data, 1 << 30)


def inferred(*lines: str, ids: Sequence[str] = ()) -> str:
    """The columns of lines, each read by pyarrow and by Python, together and apart."""
    data = "".join(f"{line}\n" for line in lines).encode()
    shape, _ = exact(data)
    assert fast(data * 20) == (shape, [])
    apart: Shape = {}
    for line in reversed(lines):
        apart = merged(apart, exact(line.encode())[0])
    assert apart == shape
    assert isinstance(shape, dict)
    kinds = [f"{name}:{column_type(shape[name], is_id=name in ids).simpleString()}"
             for name in sorted(shape)]  # fmt: skip
    return ",".join(kinds)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-0", "9223372036854775807", "-9223372036854775808"], "bigint"),
        (["9223372036854775808"], "decimal(38,0)"),
        (["1", "-99999999999999999999"], "decimal(38,0)"),
        (["100000000000000000000000000000000000001"], "string"),
        (["1.5", "1", "0.1", "1e3", "-0.0", "1.50"], "double"),
        (["1.0"], "double"), (["1e22"], "double"), (["0.30000000000000004"], "double"),
        (["1.7976931348623157E308", "5e-324"], "double"),
        (["9007199254740993", "1.5"], "decimal(38,18)"),
        (["9007199254740992", "1.5"], "double"),
        (["0.12345678901234567891"], "string"),
        (["0.10000000000000000"], "double"), (["0.100000000000000055"], "decimal(38,18)"),
        (["123456789012345678901.5"], "string"), (["12345678901234567890.5"], "decimal(38,18)"),
        (["1e400"], "string"), (["0.1", "1e-400"], "string"), (["1e300000000"], "string"),
        (["1e-300000000"], "string"), (["1e99999999999999999999"], "string"),
        (["1" * 600], "string"),
        (["true", "false"], "boolean"), (['"a"'], "string"), (['""', "1"], "string"),
        (['"1"'], "string"), (['"NaN"'], "string"), (['"2024-05-01T10:00:00Z"'], "string"),
        (["null"], "string"), (["null", "1"], "bigint"), (["null", "{}"], "string"),
        (["1", '"a"'], "string"), (["true", "1"], "string"), (["[1]", "1"], "string"),
        (['{"b":1}', "[1]"], "string"), (['{"b":1}', '"a"'], "string"), (["[]", "{}"], "string"),
        (["[1, null]"], "array<bigint>"), (["[1, 1.5]"], "array<double>"),
        (["[9007199254740993, 1.5]"], "array<decimal(38,18)>"),
        (["[[1], null]"], "array<array<bigint>>"), (['[1, "a"]'], "array<string>"),
        (["[]"], "array<string>"), (["[[]]"], "array<array<string>>"),
        (["[]", "[1]"], "array<bigint>"),
        (['[{"b":1},{"c":2}]'], "array<struct<b:bigint,c:bigint>>"),
        (["[{}]"], "array<string>"), (["{}"], "string"), (['{"b":{}}'], "struct<b:string>"),
        (["{}", '{"b":1}'], "struct<b:bigint>"), (['{"b":null}'], "struct<b:string>"),
        (['{"c":1, "a":{}, "B":[]}'], "struct<B:array<string>,a:string,c:bigint>"),
    ],
)  # fmt: skip
def test_a_field_gets_the_type_that_holds_every_value(values: list[str], kind: str) -> None:
    assert inferred(*(f'{{"a":{value}}}' for value in values)) == f"a:{kind}"
    inner = inferred(*(f'{{"s":[{{"a":{value},"b":0}}]}}' for value in values))
    assert inner == f"s:array<struct<a:{kind},b:bigint>>"


def test_a_fraction_is_no_id() -> None:
    assert inferred('{"id":1.5,"s":{"id":1.5}}', ids=["id"]) == "id:string,s:struct<id:double>"
    lines = '{"id":9007199254740993}', '{"id":0.5}'
    assert inferred(*lines, ids=["id"]) == "id:string"
    assert inferred(lines[0], ids=["id"]) == "id:bigint"
    assert inferred('{"id":99999999999999999999}', ids=["id"]) == "id:decimal(38,0)"


def test_objects_with_very_many_fields_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """This bounds memory if the keys are data."""
    monkeypatch.setattr(json_types, "_MAX_FIELDS", 10)
    lines = [f'{{"m":{{"k{n}":1,"x":1}}}}' for n in range(20)]
    assert inferred(*lines[:9]).startswith("m:struct<k0:bigint,")
    assert inferred(*lines) == inferred(*lines, '{"m":null}') == "m:string"
    fields = ",".join(f'"k{n}":1' for n in range(10))
    assert inferred(f'{{"m":{{{fields},"boolean":1}}}}') == "m:string"
    wide: Shape = {f"k{n}": None for n in range(11)}
    assert column_type(wide).simpleString() == "string"


def test_values_with_very_many_levels_are_text() -> None:
    for begin, end in (('{"a":', "}"), ("[", "]")):
        for levels in (45, 100, 990):
            line = f'{{"x":{begin * levels}1{end * levels}}}'
            assert ("bigint" in inferred(line)) == (levels == 45)
    deep = b'{"x":' + b"[" * 50_000
    shape, bad = fast(b'{"x":[1]}\n' * 9 + deep + b"}\n" + b'{"y":' + deep[5:] + b"}\n")
    assert shape == exact(b'{"x":[1]}')[0]
    assert len(bad) == 2


def test_bad_records_do_not_affect_the_types() -> None:
    lines = [b'{"a":1}', b'{"b":1}}', b'{"b":1,"b":2}', b"null", b"7", b'[{"a":1.5},null]', b"",
             b" \t", b'{"b":NaN}', b"{'b':1}", b'{"b":"\xff"}', b'{"b":"\\ud800"}', b"[]",
             b'{"b":1}{"b":2}', b'{"a":Infinity}', b' {"c":1} ']  # fmt: skip
    reasons = [NOT_STRICT, NOT_STRICT, NOT_OBJECT, NOT_OBJECT, NOT_OBJECT, NOT_STRICT, NOT_STRICT,
               "It is not valid UTF-8.", NOT_STRICT, NOT_STRICT, NOT_STRICT]  # fmt: skip
    shape, _ = exact(b'{"a":1.5}\n{"a":1,"c":2}')
    for end in (b"\n", b"\r\n", b"\r"):
        data = end.join(lines)
        assert exact(data) == fast(data) == (shape, reasons)
    data = b"\n".join(lines[3:4] + lines[:1] * 9)
    assert fast(data)[1] == [NOT_OBJECT], "a null before the first object"


def test_types_are_found_in_files_of_one_value() -> None:
    shape, _ = exact(b'{"a":1,"b":"x"}')
    for data in (b'[{"a":\n1},\n{"b":"x"}]\n', b'{"a":1,\n"b":"x"}'):
        assert shape_of(data, 16, is_whole=True) == (shape, [])
    assert shape_of(b'{"a":1}\n{"a":1}', 16, is_whole=True) == ({}, [NOT_STRICT])
    assert shape_of(b'{"a":\n1};;{"b":"x"}', 16, line_end=b";;") == (shape, [])


@pytest.mark.parametrize(
    "odd",
    ['{"id":9007199254740993}', '{"n":1.5}', '{"n":"x"}', '{"new":{"x":[1.5]}}', '{"d":1e400}',
     '{"d":0.10000000000000001}', '{"\\u0064":0.10000000000000001}', '{"d":NaN}', '{"d":1e-400}',
     '{"l":[0.5,null,0.12345678901234567891]}', '{"s":{"x":0.12345678901234567891}}', "null",
     '{"t":"\\u0064\\":0.12345678901234567891"}', '{"d":12345678901234567}', '{"e":{"x":1}}',
     '{"d":1.5}{"d":2}', '{"d":1.2.3456789012345678}', '{"e":[]}', '{"a":[[1]]}', '{"a":[2.5]}'],
)  # fmt: skip
@pytest.mark.parametrize("at", [3, 250])
def test_one_odd_line_among_many_gets_the_same_types_at_both_speeds(odd: str, at: int) -> None:
    line = '{"id":%d,"n":7,"d":0.1234567890123456,"t":"x","e":{},"a":[[]],"l":[1.5],"s":{"x":2.25}}'
    lines = [line % n for n in range(300)]
    lines[at] = odd
    data = "\n".join(lines).encode()
    assert fast(data) == exact(data) == shape_of(data, 16)


def test_long_fractions_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one, read = list[int](), JsonTypes._bad

    def noted(self: JsonTypes, lines: Lines, own: I64) -> I64:
        one_by_one.extend(own.tolist())
        return read(self, lines, own)

    monkeypatch.setattr(JsonTypes, "_bad", noted)
    draw = random.Random(7)
    lines = [f'{{"x":{draw.random()!r},"s":{{"y":{-draw.random()!r}}}}}' for _ in range(1_000)]
    lines[700:] = [f'{{"x":{n}e-3}}' for n in range(300)]
    data = "\n".join(lines).encode()
    found = shape_of(data, 16)
    monkeypatch.undo()
    assert found == exact(data)
    assert set(one_by_one) >= set(range(700, 1_000))
    assert len(one_by_one) < 400
    wide = [json.dumps({f"f{n}": draw.random() for n in range(40)}) for _ in range(50)]
    data = "\n".join(wide).encode()
    assert shape_of(data, 16) == exact(data)


NUMBERS = st.one_of(
    st.integers(-(10**21), 10**21).map(str),
    st.integers(-9, 9).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(-1000, 1000, places=3).map(str),
    st.sampled_from(["-0", "1e5", "1E-7", "9007199254740993", "0.1000000000000000055", "1e400",
                     "9223372036854775808", "1e-400", "0e100", "NaN", "01", "1.", "0.0",
                     "123456789012345.6", "12345678901234567890.5"]),
)  # fmt: skip
TEXTS = st.sampled_from(['""', '"a"', '"2024-05-01"', '"\\u0064\\":1.5"', '"\u00e9"', '"\\ud800"'])
KEYS = st.sampled_from(['"a"', '"b"', '"\\u0061"', '"d\u00e9"', '"q\\""'])


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.lists(st.tuples(KEYS, values), max_size=3)
    return pairs.map(lambda found: f"{{{','.join(f'{name}: {one}' for name, one in found)}}}")


VALUES = st.recursive(
    NUMBERS | TEXTS | st.sampled_from(["null", "true", "false"]),
    lambda inner: (
        objects(inner) | st.lists(inner, max_size=3).map(lambda found: f"[{','.join(found)}]")
    ),
    max_leaves=6,
)
LINES = st.one_of(
    [st.lists(objects(one), min_size=1, max_size=12) for one in (NUMBERS, VALUES)]
) | st.lists(objects(VALUES) | VALUES, max_size=8)  # fmt: skip


def assert_same(value: Any, read: Any, kind: T.DataType) -> None:
    """Assert that a value of JSON comes back."""
    if value is None or isinstance(kind, T.StringType):
        return
    if isinstance(kind, T.StructType):
        assert set(value) <= {field.name for field in kind}
        for field in kind:
            assert_same(value.get(field.name), read[field.name], field.dataType)
    elif isinstance(kind, T.ArrayType):
        for one, other in zip(value, read, strict=True):
            assert_same(one, other, kind.elementType)
    elif type(value) is Number:
        assert Decimal(value) == Decimal(repr(read) if isinstance(read, float) else read)
    else:
        assert value == read


@given(LINES)
@settings(max_examples=300)
@example(['{"a":9007199254740993}', '{"a":1.5}'])
@example(['{"a":0.1000000000000000055}', '{"a":"x"}', '{"a":{}}'])
def test_both_speeds_find_types_that_give_every_value_back(lines: list[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    shape, reasons = exact(data)
    assert fast(data) == (shape, reasons)
    columns = column_type(shape)
    if not isinstance(columns, T.StructType):
        return
    read = structs(pa.struct(list(text_schema(columns))), Spelling())
    for line in lines:
        try:
            record = parsed(line.encode())
        except Unfit:
            continue
        for one in record if type(record) is list else [record]:
            if type(one) is dict:
                assert_same(one, read(one), columns)
