"""Look-ups in segment blocks, sound and damaged."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_models import PATHS, array, column, encode_block, kernel_settings, load, some_key

short_key = st.text("ab", max_size=3).map(str.encode)


@st.composite
def a_block(draw: st.DrawFn) -> tuple[bytes, list[tuple[bytes, int]]]:
    wide, one_length = draw(st.booleans()), draw(st.booleans())
    limit = 2**63 - 1 if wide else 2**32 - 1
    if one_length:
        size = draw(st.sampled_from([0, 1, 3, 7, 8, 9, 17, 40]))
        key = st.binary(min_size=size, max_size=size) | st.just(b"k" * size)
    else:
        key = some_key | short_key
    entry = st.tuples(key, st.integers(0, limit))
    entries = draw(st.lists(entry, min_size=1, max_size=12, unique_by=lambda e: e[0]))
    return encode_block(entries, wide=wide, one_length=one_length), entries


@pytest.mark.parametrize("path", PATHS)
@given(
    blocks=st.lists(a_block(), min_size=1, max_size=6),
    others=st.lists(some_key | short_key, max_size=10),
)
@kernel_settings
def test_finds_what_its_block_holds(
    path: str, blocks: list[tuple[bytes, list[tuple[bytes, int]]]], others: list[bytes]
) -> None:
    asked = others + [key for _, entries in blocks for key, _ in entries]
    queries = [(b, key) for b in range(len(blocks)) for key in asked]
    got = load(path).blocks_find(
        *column([block for block, _ in blocks]),
        array([b for b, _ in queries], "i8"),
        *column([key for _, key in queries]),
    )
    assert got.dtype == np.int64
    assert got.tolist() == [dict(blocks[b][1]).get(key, -1) for b, key in queries]


def find(path: str, blocks: list[bytes], query: tuple[int, bytes] = (0, b"key")) -> list[int]:
    return (
        load(path)
        .blocks_find(*column(blocks), array([query[0]], "i8"), *column([query[1]]))
        .tolist()
    )


GOOD = encode_block([(b"key", 7), (b"kez", 9)], wide=False, one_length=True)
MIXED = encode_block([(b"key", 7), (b"longer", 9)], wide=True, one_length=False)


@pytest.mark.parametrize("path", PATHS)
def test_first_of_equal_entries_counts(path: str) -> None:
    block = encode_block([(b"key", 5), (b"key", 6)], wide=False, one_length=True)
    assert find(path, [block]) == [5]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("whole", [GOOD, MIXED], ids=["one length", "lengths"])
def test_every_truncation_and_any_byte_too_many_is_damage(path: str, whole: bytes) -> None:
    assert find(path, [whole]) == [7]
    for size in range(len(whole)):
        with pytest.raises(ValueError, match="block 0 is damaged"):
            find(path, [whole[:size]])
    with pytest.raises(ValueError, match="block 0 is damaged"):
        find(path, [whole + b"\0"])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\x02" + GOOD[1:],
        b"\x00" + GOOD[1:],
        GOOD[:1] + b"\x05" + GOOD[2:],
        GOOD[:2] + b"\xff\xff" + GOOD[4:],
        GOOD[:2] + b"\x00\x00" + GOOD[4:],
        struct.pack("<BBHI", 1, 1, 0, 0),
        GOOD[:4] + b"\xff\xff\xff\xff" + GOOD[8:],
        MIXED[:4] + b"\xff\xff\xff\xff" + MIXED[8:],
        encode_block([(b"key", 2**63)], wide=True, one_length=True),
        struct.pack("<BBHI", 1, 3, 65535, 2**32 - 1),
        struct.pack("<BBHI", 1, 2, 65535, 2**32 - 1) * 100,
    ],
)
def test_damage_is_named(path: str, block: bytes) -> None:
    with pytest.raises(ValueError, match="block 1 is damaged"):
        find(path, [GOOD, block, b""])


@given(
    base=st.sampled_from([GOOD, MIXED]),
    edits=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 40),
)
@kernel_settings
def test_paths_agree_on_any_bytes(base: bytes, edits: list[tuple[int, int]], cut: int) -> None:
    raw = bytearray(base)
    for at, value in edits:
        raw[at % len(raw)] = value
    blocks = [GOOD, bytes(raw[: max(cut, 8)])]
    answers = []
    for path in PATHS:
        try:
            answers.append(find(path, blocks, (1, b"key")))
        except ValueError as error:
            answers.append([str(error)])
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("block", [-1, 1, 2**62, -(2**63)])
def test_query_outside_the_blocks(path: str, block: int) -> None:
    with pytest.raises(ValueError, match="query_block"):
        find(path, [GOOD], (block, b"key"))


@pytest.mark.parametrize("path", PATHS)
def test_no_queries_and_no_blocks(path: str) -> None:
    none = column([])
    assert load(path).blocks_find(*none, array([], "i8"), *none).tolist() == []
    assert load(path).blocks_find(*column([GOOD]), array([], "i8"), *none).tolist() == []
    with pytest.raises(ValueError, match="block 0 is damaged"):
        load(path).blocks_find(*column([b""]), array([], "i8"), *none)
