"""Columns of CSV get types that give every text back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T  # noqa: N812

from dedup.cli.run.input.inference import types_of
from dedup.sinks.files.text_lines import texts_of
from dedup.sources.files.bypass import text_schema
from dedup.sources.files.json_types import column_type, merged
from dedup.sources.files.text_columns import converted
from dedup.sources.files.text_values import Spelling, from_text


def inferred(*files: Sequence[str | None], is_id: bool = False, **spelling: Any) -> str:
    return found(*files, is_id=is_id, **spelling).simpleString()


def found(*files: Sequence[str | None], is_id: bool = False, **spelling: Any) -> T.DataType:
    """The type after all files, each in two blocks."""
    shape = None
    for texts in files:
        one, array = None, pa.array(texts, pa.string())
        for block in (array[:1], array[1:]):
            one = types_of(block, Spelling(**spelling), one)
        shape = merged(shape, one)
    return column_type(shape, is_id=is_id)


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        ("7 0 -7 2147483647 -2147483648", "int"),
        ("7 2147483648", "bigint"),
        ("-9223372036854775808 9223372036854775807", "bigint"),
        ("9223372036854775808 7", "decimal(38,0)"),
        ("-99999999999999999999999999999999999999", "decimal(38,0)"),
        ("100000000000000000000000000000000000000", "string"),
        ("007", "string"), ("+7", "string"), ("-0", "string"), ("7 1.5", "string"),
        ("0x10", "string"), ("1,5", "string"), ("\u0661", "string"),
        ("1.5 0.0 -0.0 1.0 0.001 NaN Infinity -Infinity", "double"),
        ("0.30000000000000004", "double"), ("1.50", "string"), ("1e3", "string"),
        (".5", "string"), ("0.1000000000000000055", "string"), ("9007199254740993.5", "string"),
        ("Inf", "string"), ("1.5D", "string"), ("1e-300000000", "string"),
        ("true false", "boolean"), ("TRUE", "string"), ("true 1", "string"),
        ("2024-05-01 0001-01-01 9999-12-31", "date"),
        ("2024-5-1", "string"), ("2024-02-30", "string"), ("0000-01-01", "string"),
        ("10000-01-01", "string"), ("2024-05", "string"), ("\u0662024-05-01", "string"),
        ("2024-05-01T10:00:00Z 0001-01-01T00:00:00Z 9999-12-31T23:59:59Z", "timestamp"),
        ("2024-05-01T10:00:00.120", "timestamp"), ("2024-05-01T10:00:00.123456Z", "timestamp"),
        ("2024-05-01T10:00:00.12", "string"), ("2024-05-01T10:00:00.1234567", "string"),
        ("2024-05-01T10:00:00 2024-05-01T10:00:00.123", "string"),
        ("2024-05-01T10:00:00 2024-05-01T10:00:00Z", "string"),
        ("2024-05-01T10:00:00 2024-05-01", "string"), ("2024-05-01T10:00", "string"),
        ("2024-05-01T24:00:00", "string"), ("2024-02-30T10:00:00", "string"),
        ("2024-05-01T10:00:00+02:00", "string"), ("10:00", "string"),
        ("x", "string"), ("7 x", "string"), ("x 7", "string"),
    ],
)  # fmt: skip
def test_a_column_gets_the_type_that_gives_every_text_back(texts: str, kind: str) -> None:
    values = texts.split()
    assert inferred(values) == inferred([None, *values, None]) == inferred(values * 99) == kind
    # The texts may be in several files, in any order.
    assert inferred(*([value] for value in reversed(values)), [None]) == kind


def test_texts_with_blanks_are_text() -> None:
    for text in ("", " ", " 7", "7\n", "true\n", "1.5\n", "2024-05-01\n", "7\0"):
        assert inferred([text]) == inferred([text] * 99) == "string"
    assert inferred(["2024-05-01 10:00:00"]) == "timestamp"
    assert inferred(["2024-05-01 10:00:00\n"]) == "string"
    assert inferred([]) == inferred([None]) == inferred([], [None]) == "string"


def test_a_fraction_is_no_id() -> None:
    assert inferred(["1.5"], is_id=True) == "string"
    assert inferred(["7"], is_id=True) == "int"


def test_times_are_in_utc() -> None:
    for zone in ("Europe/Berlin", "+02:00"):
        assert inferred(["2024-05-01T08:00:00Z"], time_zone=zone) == "timestamp"
        assert inferred(["2024-03-31T02:30:00"], time_zone=zone) == "string"


@pytest.mark.parametrize(
    ("texts", "pattern", "kind"),
    [
        (["01/05/2024", "02/12/2024"], "dd/MM/yyyy", "timestamp"),
        (["1/5/2024", "2/8/2024"], "d/M/yyyy", "timestamp"),
        (["1/5/2024", "01/5/2024"], "d/M/yyyy", "string"),
        (["1 May 24, 3 PM", "2 Jun 24, 4 AM"], "d MMM yy, h a", "timestamp"),
        (["1 May 24, 3 PM", "1 may 24, 3 PM"], "d MMM yy, h a", "string"),
        (["2024-05-01T10:00:00", "2024-05-01T10:00:00.0"], "yyyy-MM-dd'T'HH:mm:ss[.S]", "string"),
        (["2024-05-01 10:00Z"], "yyyy-MM-dd HH:mmXXX", "timestamp"),
        (["2024-05-01 10:00+02:00", "2024-05-01 09:00+01:00"], "yyyy-MM-dd HH:mmXXX", "string"),
        (["2024-05-01T10:00:00"], "yyyy/MM/dd", "string"),
    ],
)
def test_a_column_is_a_timestamp_only_if_the_pattern_gives_its_texts_back(
    texts: list[str], pattern: str, kind: str
) -> None:
    assert inferred(texts, timestamp=pattern) == kind


def test_a_column_is_a_date_only_if_the_pattern_gives_its_texts_back() -> None:
    assert inferred(["01.05.2024"], date="dd.MM.yyyy") == "date"
    assert inferred(["2024-05-01"], date="dd.MM.yyyy") == "string"
    # A whole number remains a number, and a leading zero shows that it is none.
    assert inferred(["20240501"], date="yyyyMMdd") == "int"
    assert inferred(["11052024"], ["01052024"], date="ddMMyyyy") == "date"


WHOLE = st.integers(-(10**40), 10**40) | st.integers(-(2**33), 2**33) | st.integers(-9, 9)
TEXTS = [
    WHOLE.map(str),
    st.floats().map(str),
    st.decimals(-1000, 1000, places=3).map(str),
    st.booleans().map(lambda value: str(value).lower()),
    st.dates().map(str),
    st.datetimes().map(str),
    st.datetimes().map(lambda at: at.isoformat(timespec="milliseconds") + "Z"),
    st.sampled_from(["", "x", "NaN", "-0", "007", "1.50", "1e5", "TRUE", "2024-02-30", "1e400"]),
]


@given(st.one_of([st.lists(one | st.none(), max_size=8) for one in (*TEXTS, st.one_of(TEXTS))]),
       st.integers(0, 8))  # fmt: skip
@settings(max_examples=100)
@example(["1.5", None, "1e5"], 1)
@example(["9223372036854775807", "-9223372036854775809"], 1)
def test_every_text_can_be_restored_from_its_column(texts: list[str | None], cut: int) -> None:
    kind = found(texts)
    assert found(texts[:cut], texts[cut:]) == found(texts[cut:], texts[:cut]) == kind
    there = pa.array([text for text in texts if text is not None], pa.string())
    (column,) = text_schema(T.StructType().add("x", kind))
    values, unfit = converted(there, column.type, from_text(column.type, Spelling()), Spelling())
    assert not unfit
    assert len(values.unique()) == len(there.unique()) or "NaN" in there.to_pylist()
    if not pa.types.is_temporal(column.type):
        assert texts_of(values, "x").equals(there)


@given(st.lists(st.datetimes(timezones=st.just(UTC)), min_size=1))
def test_times_in_one_form_are_timestamps(times: list[datetime]) -> None:
    for form in ("seconds", "milliseconds", "microseconds"):
        texts = [at.replace(tzinfo=None).isoformat(timespec=form) for at in times]
        assert inferred(texts) == inferred([f"{text}Z" for text in texts]) == "timestamp"
