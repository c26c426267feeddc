"""Names of source partitions."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dedup.spark.executor.pack import name_sources

#: The first microsecond of the year 10000, and the last before the year 1.
AFTER_US, BEFORE_US = 253_402_300_800_000_000, -62_135_596_800_000_001
DAY_US = 86_400_000_000


def names(*columns: pa.Array) -> list[Any]:
    """Names of the given rows, in their order."""
    distinct, _, index = name_sources(columns, bytes(16))
    return [json.loads(distinct[i]) for i in index]


def times(zone: str | None, *times_us: int) -> pa.Array:
    return pa.array(times_us, pa.int64()).cast(pa.timestamp("us", zone))


def days(*numbers: int) -> pa.Array:
    return pa.array(numbers, pa.int32()).cast(pa.date32())


def test_text_that_is_no_utf8_has_a_name() -> None:
    """Spark does not check such strings; they must not stop the query."""
    raw = pa.array([b"ok", b"bad\xff", None, b"ok"], pa.binary())
    text = pa.StringArray.from_buffers(4, raw.buffers()[1], raw.buffers()[2], raw.buffers()[0])
    distinct, _, index = name_sources([text], bytes(16))
    assert sorted(distinct) == ['"bad\\\\xff"', '"ok"', "null"]
    assert index[0] == index[3]
    assert len(set(index.tolist())) == 3


def test_names_match_those_in_the_state_of_running_queries() -> None:
    """The state row finds clocks by these names; another text would be another clock."""
    told = [
        (pa.array(["clicks", None]), "clicks"), (pa.array([3, None]), 3),
        (pa.array([True, None]), True), (pa.array([b"k\x01", None]), "b'k\\x01'"),
        (pa.array([Decimal("1.50"), None]), "1.50"), (days(19844), "2024-05-01"),
        (times("UTC", 1_714_521_600_000_000), "2024-05-01 00:00:00+00:00"),
        (times("UTC", 1), "1970-01-01 00:00:00.000001+00:00"),
        (times("Asia/Kolkata", 1_714_521_600_000_000), "2024-05-01 05:30:00+05:30"),
        (times("+08:00", 0), "1970-01-01 08:00:00+08:00"),
        (times(None, 1_714_521_600_000_000), "2024-05-01 00:00:00"),
        (times("UTC", AFTER_US - 1), "9999-12-31 23:59:59.999999+00:00"),
        (pa.array([timedelta(days=1, seconds=1)], pa.duration("us")), "1 day, 0:00:01"),
        (pa.array([43_200_000_001_000, None]).cast(pa.time64("ns")), "12:00:00.000001"),
    ]  # fmt: skip
    for column, name in told:
        assert names(column)[0] == name
        assert names(column)[1:] == [None] * (len(column) - 1)
    assert names(pa.array(["clicks"]), days(19844)) == [["clicks", "2024-05-01"]]


@pytest.mark.parametrize("zone", ["GMT+8", "UTC+8", "+08", "+8", "Z", "UT", "PST", "+05:30:20"])
def test_zones_that_only_spark_knows_are_named_in_utc(zone: str) -> None:
    """One instant is one clock in all of them."""
    instants = times(zone, 0, 1_500_000, AFTER_US, BEFORE_US)
    assert names(instants) == [
        "1970-01-01 00:00:00+00:00", "1970-01-01 00:00:01.500000+00:00",
        "10000-01-01 00:00:00+00:00", "0000-12-31 23:59:59.999999+00:00",
    ]  # fmt: skip


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York", "-18:00", None])
def test_years_beyond_those_of_python_have_distinct_names(zone: str | None) -> None:
    given = [AFTER_US, BEFORE_US, AFTER_US - 1, BEFORE_US + 1, 2**63 - 1, -(2**63), 0, 1]
    given += [us + offset for us in (AFTER_US, BEFORE_US) for offset in (-DAY_US, DAY_US)]
    told = names(times(zone, *given))
    assert len(set(told)) == len(given)
    # A name does not depend on which others came along.
    assert told == [names(times(zone, us))[0] for us in given]
    assert told[0] == "10000-01-01 00:00:00" + ("" if zone is None else "+00:00")


def test_dates_beyond_the_years_of_python_have_names() -> None:
    last = (date.max - datetime(1970, 1, 1).date()).days
    assert names(days(last, last + 1, 2**31 - 1, -800_000)) == [
        "9999-12-31", "10000-01-01", "5881580-07-11", "-221-09-04",
    ]  # fmt: skip


def test_times_of_day_are_named_to_the_nanosecond() -> None:
    """Two source partitions must not share a clock."""
    column = pa.array([1, 2, 86_399_999_999_999]).cast(pa.time64("ns"))
    assert names(column) == ["00:00:00.000000001", "00:00:00.000000002", "23:59:59.999999999"]
