"""Segment blocks: look-ups and decoding, sound and damaged, and encoding."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.kernel._kernel import Kernel
from tests.support.kernel_models import (
    array,
    as_list,
    column,
    encode_block,
    kernel_settings,
    misaligned,
    some_key,
)

Entries = list[tuple[bytes, int]]
short_key = st.text("ab", max_size=3).map(str.encode)


@st.composite
def a_block(draw: st.DrawFn) -> tuple[bytes, Entries]:
    wide, one_length = draw(st.booleans()), draw(st.booleans())
    limit = 2**63 - 1 if wide else 2**32 - 1
    if one_length:
        size = draw(st.sampled_from([0, 1, 3, 7, 8, 9, 17, 40]))
        key = st.binary(min_size=size, max_size=size) | st.just(b"k" * size)
    else:
        key = some_key | short_key
    entry = st.tuples(key, st.integers(0, limit))
    entries = draw(st.lists(entry, min_size=1, max_size=12, unique_by=lambda e: e[0]))
    digests = [digest_of(key) for key, _ in entries] if draw(st.booleans()) else None
    block = encode_block(entries, wide=wide, one_length=one_length, digests=digests)
    return block, entries


def digest_of(key: bytes) -> int:
    return 2**63 + int.from_bytes(key[:7].ljust(7, b"\1"), "little")


def is_digested(block: bytes) -> bool:
    return bool(block[1] & 4)


@given(
    blocks=st.lists(a_block(), min_size=1, max_size=6),
    others=st.lists(some_key | short_key, max_size=10),
)
@kernel_settings
def test_a_lookup_finds_what_its_block_holds(
    tested: Kernel, blocks: list[tuple[bytes, Entries]], others: list[bytes]
) -> None:
    asked = others + [key for _, entries in blocks for key, _ in entries]
    queries = [(b, key) for b in range(len(blocks)) for key in asked]
    arguments = (
        *column([block for block, _ in blocks]),
        array([b for b, _ in queries], "i8"),
        *column([key for _, key in queries]),
    )
    got = tested.blocks_find(*arguments)
    assert got.dtype == np.int64
    assert got.tolist() == [dict(blocks[b][1]).get(key, -1) for b, key in queries]
    digests = np.full(len(queries), 5, np.uint64)
    assert tested.blocks_find(*arguments, digests).tolist() == got.tolist()
    assert digests.tolist() == [
        digest_of(key) if is_digested(blocks[b][0]) and key in dict(blocks[b][1]) else 0
        for b, key in queries
    ]


def find(tested: Kernel, blocks: list[bytes], query: tuple[int, bytes] = (0, b"key")) -> list[int]:
    number, key = array([query[0]], "i8"), column([query[1]])
    return tested.blocks_find(*column(blocks), number, *key).tolist()


def decode(tested: Kernel, blocks: list[bytes]) -> Entries:
    data, offsets, times_ms = tested.blocks_decode(*column(blocks))
    assert data.dtype == np.uint8
    assert offsets.dtype == times_ms.dtype == np.int64
    return list(zip(as_list(data, offsets), times_ms.tolist(), strict=True))


def digests_in(tested: Kernel, blocks: list[bytes]) -> list[int]:
    digests = tested.blocks_digests(*column(blocks))
    assert digests.dtype == np.uint64
    return digests.tolist()


GOOD = encode_block([(b"key", 7), (b"kez", 9)], wide=False, one_length=True)
DIGESTED = encode_block(
    [(b"key", 7), (b"kez", 9)], wide=False, one_length=True, digests=[5, 2**64 - 1]
)
MIXED = encode_block([(b"key", 7), (b"longer", 9)], wide=True, one_length=False)


@pytest.mark.parametrize("whole", [GOOD, MIXED, DIGESTED], ids=["one length", "lengths", "digests"])
def test_every_truncation_and_any_byte_too_many_is_damage(tested: Kernel, whole: bytes) -> None:
    assert find(tested, [whole]) == [7]
    for damaged in [*(whole[:size] for size in range(len(whole))), whole + b"\0"]:
        for read in (find, decode, digests_in):
            with pytest.raises(ValueError, match="block 0 is damaged"):
                read(tested, [damaged])


@pytest.mark.parametrize(
    "block",
    [b"", b"\x02" + GOOD[1:], b"\x00" + GOOD[1:], GOOD[:1] + b"\x05" + GOOD[2:],
     GOOD[:1] + b"\x09" + GOOD[2:], DIGESTED[:1] + b"\x01" + DIGESTED[2:],
     GOOD[:2] + b"\xff\xff" + GOOD[4:], GOOD[:2] + b"\x00\x00" + GOOD[4:],
     struct.pack("<BBHI", 1, 1, 0, 0), GOOD[:4] + b"\xff\xff\xff\xff" + GOOD[8:],
     MIXED[:4] + b"\xff\xff\xff\xff" + MIXED[8:],
     encode_block([(b"key", 2**63)], wide=True, one_length=True),
     struct.pack("<BBHI", 1, 3, 65535, 2**32 - 1),
     struct.pack("<BBHI", 1, 2, 65535, 2**32 - 1) * 100],
)  # fmt: skip
def test_a_damaged_block_is_named(tested: Kernel, block: bytes) -> None:
    for read in (find, decode):
        with pytest.raises(ValueError, match="block 1 is damaged"):
            read(tested, [GOOD, block, b""])


@pytest.mark.parametrize("block", [-1, 1, 2**62, -(2**63)])
def test_a_query_outside_the_blocks_is_rejected(compiled: Kernel, block: int) -> None:
    with pytest.raises(ValueError, match="query_block"):
        find(compiled, [GOOD], (block, b"key"))


def test_no_queries_and_no_blocks_give_an_empty_result(tested: Kernel) -> None:
    none = column([])
    assert tested.blocks_find(*none, array([], "i8"), *none).tolist() == []
    assert tested.blocks_find(*column([GOOD]), array([], "i8"), *none).tolist() == []
    with pytest.raises(ValueError, match="block 0 is damaged"):
        tested.blocks_find(*column([b""]), array([], "i8"), *none)


# ---- decoding and encoding ----


@given(blocks=st.lists(a_block(), max_size=6))
@kernel_settings
def test_all_blocks_are_decoded(tested: Kernel, blocks: list[tuple[bytes, Entries]]) -> None:
    # Both widths of times, and equal lengths also without the flag.
    got = decode(tested, [block for block, _ in blocks])
    assert got == [entry for _, entries in blocks for entry in entries]
    assert digests_in(tested, [block for block, _ in blocks]) == [
        digest_of(key) if is_digested(block) else 0
        for block, entries in blocks
        for key, _ in entries
    ]


def encode(
    tested: Kernel, parts: list[Entries], *, wide: bool, odd: bool = False, digested: bool = False
) -> list[bytes]:
    entries = [entry for part in parts for entry in part]
    data, offsets = column([key for key, _ in entries])
    times_ms = array([time for _, time in entries], "i8")
    starts = np.cumsum([0, *map(len, parts)])
    arrays = [misaligned(a) if odd else a for a in (data, offsets, times_ms, starts)]
    digests = array([digest_of(key) for key, _ in entries], "u8") if digested else None
    blocks, block_offsets = tested.blocks_encode(*arrays, wide, digests)
    assert blocks.dtype == np.uint8
    assert block_offsets.dtype == np.int64
    return as_list(blocks, block_offsets)


def expected_blocks(parts: list[Entries], *, wide: bool, digested: bool = False) -> list[bytes]:
    return [
        encode_block(
            part,
            wide=wide,
            one_length=len({len(key) for key, _ in part}) == 1,
            digests=[digest_of(key) for key, _ in part] if digested else None,
        )
        for part in parts
    ]


@given(data=st.data(), wide=st.booleans(), odd=st.booleans(), digested=st.booleans())
@kernel_settings
def test_encoding_follows_the_format(
    tested: Kernel, data: st.DataObject, wide: bool, odd: bool, digested: bool
) -> None:
    times = st.integers(0, 2**63 - 1 if wide else 2**32 - 1)
    keys = st.one_of(some_key | short_key, st.binary(min_size=17, max_size=17))
    part = st.lists(st.tuples(keys, times), min_size=1, max_size=10)
    uuids = st.lists(st.tuples(st.binary(min_size=17, max_size=17), times), min_size=1, max_size=9)
    parts = data.draw(st.lists(part | uuids, max_size=6))
    blocks = encode(tested, parts, wide=wide, odd=odd, digested=digested)
    assert blocks == expected_blocks(parts, wide=wide, digested=digested)
    assert decode(tested, blocks) == [entry for part in parts for entry in part]


@pytest.mark.parametrize("wide", [False, True])
def test_the_largest_block_and_times_are_encoded_and_decoded(tested: Kernel, wide: bool) -> None:
    limit = 2**63 - 1 if wide else 2**32 - 1
    full = [(b"", limit)] * 65_535
    for parts in ([full], [[(b"key", limit)], full, [(b"k", 0), (b"", 1)]]):
        blocks = encode(tested, parts, wide=wide)
        assert blocks == expected_blocks(parts, wide=wide)
        assert decode(tested, blocks) == [entry for part in parts for entry in part]


def test_a_column_that_starts_inside_its_data_is_encoded(tested: Kernel) -> None:
    data, offsets = column([b"skipped", b"one", b"", b"three"])
    blocks, _ = tested.blocks_encode(
        data, offsets[1:].copy(), array([1, 2, 3], "i8"), array([0, 3], "i8"), False
    )
    entries = [(b"one", 1), (b"", 2), (b"three", 3)]
    assert blocks.tobytes() == encode_block(entries, wide=False, one_length=False)


def encode_times_and_starts(
    tested: Kernel, times_ms: list[int], starts: list[int], wide: bool
) -> None:
    keys = column([b"k"] * len(times_ms))
    tested.blocks_encode(*keys, array(times_ms, "i8"), array(starts, "i8"), wide)


@pytest.mark.parametrize(
    "starts",
    [[0], [0, 1], [0, 3], [0, 1, 3], [1, 2], [-1, 2], [0, 0, 2], [0, 2, 2], [0, 2, 1, 2],
     [0, -1, 2], [0, 2**63 - 1, 2], [0, -(2**63), 2], [2, 0]],
)  # fmt: skip
def test_starts_must_cover_all_keys(compiled: Kernel, starts: list[int]) -> None:
    with pytest.raises(ValueError, match="starts must rise from 0 to the number of keys, by 65535"):
        encode_times_and_starts(compiled, [1, 2], starts, False)


def test_a_block_holds_65535_keys_at_most(compiled: Kernel) -> None:
    with pytest.raises(ValueError, match="starts must rise"):
        encode_times_and_starts(compiled, [0] * 65_536, [0, 65_536], False)


def test_at_least_one_start_is_required(compiled: Kernel) -> None:
    for times_ms in ([], [1, 2]):
        with pytest.raises(ValueError, match="starts must have b \\+ 1 items"):
            encode_times_and_starts(compiled, times_ms, [], False)


def test_times_that_do_not_fit_are_refused(compiled: Kernel) -> None:
    for time_ms in (-1, -(2**63)):
        with pytest.raises(ValueError, match="times_ms must not be negative"):
            encode_times_and_starts(compiled, [0, time_ms], [0, 2], True)
    for time_ms in (-1, -(2**63), 2**32, 2**63 - 1):
        with pytest.raises(ValueError, match=r"times_ms must be 0 to 2\*\*32 - 1"):
            encode_times_and_starts(compiled, [0, time_ms], [0, 2], False)


def test_the_width_of_times_must_be_a_bool(compiled: Kernel) -> None:
    for wide in (None, 1, 0, "yes", np.True_):
        with pytest.raises(TypeError, match="wide_times must be a bool"):
            encode_times_and_starts(compiled, [0, 1], [0, 2], wide)  # type: ignore[arg-type]
