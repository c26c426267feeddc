"""The tail: entries in order of arrival, and their bytes."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.keys import Keys
from dedup.core.tail import Tail

Entry = tuple[bytes, int, bool]
entries = st.lists(
    st.tuples(st.binary(max_size=9), st.integers(-(1 << 62), 1 << 62), st.booleans()), max_size=8
)


def tail_of(content: list[Entry]) -> Tail:
    return Tail(
        Keys.from_list([key for key, _, _ in content]),
        np.array([time_ms for _, time_ms, _ in content], np.int64),
        np.array([clamped for _, _, clamped in content], np.bool_),
    )


def content_of(tail: Tail) -> list[Entry]:
    return list(zip(tail.keys, tail.times_ms.tolist(), tail.clamped.tolist(), strict=True))


@given(entries)
def test_a_tail_is_read_back_as_written(content: list[Entry]) -> None:
    tail = tail_of(content)
    data = tail.to_bytes()
    assert len(data) == tail.nbytes
    assert content_of(Tail.from_bytes(memoryview(data))) == content


def test_a_tail_has_the_documented_layout() -> None:
    tail = tail_of([(b"ab", 5, False), (b"", -1, True)])
    assert tail.to_bytes() == struct.pack("<QQIIqqBB", 2, 2, 2, 0, 5, -1, 0, 1) + b"ab"


@given(entries, entries)
def test_digests_travel_with_their_entries(one: list[Entry], two: list[Entry]) -> None:
    digests = np.arange(len(one)).astype(np.uint64) + np.uint64(2**63)
    digested = replace(tail_of(one), digests=digests)
    data = digested.to_bytes()
    assert len(data) == digested.nbytes
    back = Tail.from_bytes(memoryview(data), digested=True)
    assert content_of(back) == one
    assert back.digests is not None
    assert back.digests.tolist() == digests.tolist()
    if one:
        with pytest.raises(ValueError, match="does not match its header"):
            Tail.from_bytes(memoryview(data))
    joined = digested.append(tail_of(two))
    if one and two:
        assert joined.digests is not None
        assert joined.digests.tolist() == [*digests.tolist(), *[0] * len(two)]
        some = joined.take(np.array([len(one), 0]))
        assert some.digests is not None
        assert some.digests.tolist() == [0, 2**63]


@given(entries, entries)
def test_appended_entries_follow_the_existing_ones(one: list[Entry], two: list[Entry]) -> None:
    assert content_of(tail_of(one).append(tail_of(two))) == one + two


@given(entries, st.data())
def test_where_and_take_select_entries(content: list[Entry], data: st.DataObject) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=len(content), max_size=len(content)))
    kept = [entry for entry, keep in zip(content, mask, strict=True) if keep]
    assert content_of(tail_of(content).where(np.array(mask, np.bool_))) == kept
    index = np.flatnonzero(mask)[::-1].astype(np.int64)
    assert content_of(tail_of(content).take(index)) == kept[::-1]


def test_buckets_are_floored_before_1970_too() -> None:
    tail = tail_of([(b"a", time_ms, False) for time_ms in (-11, -10, -1, 0, 9, 10)])
    assert tail.bucket_starts(10).tolist() == [-20, -10, -10, 0, 0, 10]


def test_bytes_with_inconsistent_lengths_are_rejected() -> None:
    data = tail_of([(b"ab", 5, False), (b"c", 7, True)]).to_bytes()
    for wrong in (data[:-1], data + b"\0", b"\x03" + data[1:]):
        with pytest.raises(ValueError, match="does not match"):
            Tail.from_bytes(memoryview(wrong))
    with pytest.raises(ValueError, match="add up"):
        Tail.from_bytes(memoryview(data[:16] + b"\x03" + data[17:]))
