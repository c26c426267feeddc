"""Record IDs of values: their bytes never change, and different values have different texts."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup import record_id
from dedup.errors import ConfigError
from dedup.sources.record_id.canonical import text_of
from tests.support.processes import python
from tests.support.record_id_values import GOLDEN, GOLDEN_ID, random_rows


@pytest.mark.parametrize(("kind", "value", "text"), GOLDEN)
def test_the_texts_are_those_of_the_page(kind: str, value: Any, text: str) -> None:
    assert text_of(value) == text


def test_the_id_never_changes() -> None:
    whole = record_id.of_values(*(value for _, value, _ in GOLDEN))
    assert whole is not None
    assert whole.hex() == GOLDEN_ID


def test_numbers_count_by_value_and_zero_has_no_sign() -> None:
    same = [(1, Decimal("1.00"), Decimal(1)), (0.0, -0.0), (math.nan, -math.nan), (True, True)]
    for values in same:
        assert len({record_id.of_values(value) for value in values}) == 1
    other = [1, 1.0, True, "1", b"1", date(1, 1, 1), [1], (1,), [[1]], ((1,),)]
    assert len({record_id.of_values(value) for value in other}) == len(other)


def test_one_moment_in_two_zones_is_one_value() -> None:
    moment = datetime(2024, 5, 1, 14, tzinfo=UTC)
    there = datetime.fromisoformat("2024-05-01T10:00:00-04:00")
    assert record_id.of_values(moment) == record_id.of_values(there)
    assert record_id.of_values(moment) != record_id.of_values(moment.replace(tzinfo=None))


def test_a_record_of_nulls_alone_has_no_id() -> None:
    assert record_id.of_values(None, None) is None
    assert record_id.of_values(None, "") is not None


@pytest.mark.parametrize("values", [(), (object(),), ({"a": 1},), (Decimal("NaN"),)])
def test_values_without_a_canonical_form_are_rejected(values: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError):
        record_id.of_values(*values)


def test_producers_need_no_spark() -> None:
    code = "import sys; sys.modules['pyspark'] = None\nfrom dedup import record_id"
    done = python("-c", f"{code}\nprint(record_id.of_values('a').hex())")
    assert done.stdout == f"{(record_id.of_values('a') or b'').hex()}\n", done.stderr


# --- that no two rows have one text: it can be read back


def read(text: str) -> tuple[Any, str]:
    """What the value that a text begins with `means`, and the rest of the text."""
    tag, rest = text[0], text[1:]
    if tag in "NTF":
        return (tag,), rest
    if tag == "(":
        fields = []
        while rest[0] != ")":
            value, rest = read(rest)
            fields.append(value)
        return (tag, *fields), rest[1:]
    if tag == "s":
        count, _, rest = rest.partition(":")
        data = rest.encode()
        return (tag, data[: int(count)].decode()), data[int(count) :].decode()
    if tag == "a":
        count, _, rest = rest.partition(":")
        elements = []
        for _ in range(int(count)):
            value, rest = read(rest)
            elements.append(value)
        return (tag, *elements), rest
    body, _, rest = rest.partition(";")
    readers: dict[str, Any] = {
        "n": Decimal, "b": bytes.fromhex, "d": date.fromisoformat, "t": int,
        "l": datetime.fromisoformat, "f": lambda body: repr(float.fromhex(body.lower())),
    }  # fmt: skip
    return (tag, readers[tag](body)), rest


def means(value: Any) -> tuple[Any, ...]:
    """The kind and the value of what the user gives; equal where they are to be one ID."""
    if value is None or isinstance(value, bool):
        return ({None: "N", True: "T", False: "F"}[value],)
    if isinstance(value, (list, tuple)):
        return ("a" if isinstance(value, list) else "(", *map(means, value))
    if isinstance(value, float):
        return "f", repr(value + 0.0)
    if isinstance(value, datetime):
        return ("l", value) if value.tzinfo is None else ("t", round(value.timestamp() * 1e6))
    tags = {str: "s", bytes: "b", date: "d", int: "n", Decimal: "n"}
    return tags[type(value)], value


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.dates(),
    st.decimals(allow_nan=False, allow_infinity=False, places=5), st.datetimes(),
    st.datetimes(datetime(1950, 1, 1), datetime(2050, 1, 1), timezones=st.just(UTC)),
)  # fmt: skip
VALUES = st.recursive(LEAVES, lambda v: st.lists(v) | st.lists(v).map(tuple), max_leaves=8)


@given(st.lists(VALUES, min_size=1, max_size=5))
def test_a_text_can_be_read_back(values: list[Any]) -> None:
    found, rest = [], text_of(*values)
    while rest:
        value, rest = read(rest)
        found.append(value)
    assert found == [means(value) for value in values]


def test_random_rows_include_every_kind() -> None:
    """The tests with Spark compare these rows."""
    text = "".join(text_of(*row) for row in random_rows(300, seed=1))
    assert {"T", "F", "N", "n", "f", "s", "b", "d", "t", "l", "a", "("} <= set(text)
    assert all(part in text for part in ("fNaN;", "f-Infinity;", "f0x0.0p0;", "n0;", "s0:", "a0:"))
