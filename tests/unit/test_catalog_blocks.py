from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup import kernel
from dedup.catalog.blocks import (
    block_bounds,
    block_count,
    block_numbers,
    decode_blocks,
    encode_blocks,
)
from dedup.core.keys import Keys
from tests.support.catalog import Content, content, fixed, varied


def sorted_by_hash(made: Content) -> tuple[Keys, np.ndarray]:
    order = kernel.sort_keys(made.keys.data, made.keys.offsets, made.hashes)
    return made.keys.take(order), made.hashes[order]


@given(st.sets(st.binary(max_size=12), max_size=300), st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_is_encoded_is_decoded(ids: set[bytes], wide: bool) -> None:
    keys, hashes = sorted_by_hash(content(Keys.from_list(sorted(ids))))
    offsets_ms = np.arange(len(keys), dtype=np.int64) * (1 << 40 if wide else 1)
    entries = list(encode_blocks(keys, hashes, offsets_ms, block_count(len(keys)), wide_times=wide))
    found, found_ms = decode_blocks([block for _, block in entries])
    assert list(found) == list(keys)
    assert found_ms.tolist() == offsets_ms.tolist()
    assert [key for key, _ in entries] == sorted({key for key, _ in entries})


@pytest.mark.parametrize(
    ("ids", "offsets_ms", "block"),
    [([b"ab", b"cd"], [5, 70_000], struct.pack("<BBHIII", 1, 1, 2, 2, 5, 70_000) + b"abcd"),
     ([b"", b"xyz"], [1, 1 << 33], struct.pack("<BBHIIQQ", 1, 2, 2, 0, 3, 1, 1 << 33) + b"xyz")],
    ids=["equal lengths", "mixed lengths and wide times"],
)  # fmt: skip
def test_layout_of_a_block_byte_by_byte(
    ids: list[bytes], offsets_ms: list[int], block: bytes
) -> None:
    hashes, wide = np.zeros(2, np.uint64), max(offsets_ms) >= 1 << 32
    entries = encode_blocks(Keys.from_list(ids), hashes, np.array(offsets_ms), 1, wide_times=wide)
    assert list(entries) == [(bytes(4), block)]


@pytest.mark.parametrize("made", [fixed(5000), varied(5000)], ids=["fixed", "varied"])
def test_the_kernel_finds_every_key_in_the_block_of_its_hash(made: Content) -> None:
    keys, hashes = sorted_by_hash(made)
    offsets_ms = np.arange(len(keys), dtype=np.int64)
    entries = dict(encode_blocks(keys, hashes, offsets_ms, block_count(5000), wide_times=False))
    blocks = [entries.get(i.to_bytes(4, "big"), b"") for i in range(block_count(len(keys)))]
    ends = np.cumsum([0, *map(len, blocks)], dtype=np.int64)
    data = np.frombuffer(b"".join(blocks), np.uint8)
    numbers = block_numbers(hashes, len(blocks))
    found = kernel.blocks_find(data, ends, numbers, keys.data, keys.offsets)
    assert found.tolist() == offsets_ms.tolist()


def test_block_numbers_cover_all_blocks_evenly() -> None:
    made = fixed(64_000)
    counts = np.bincount(block_numbers(made.hashes, 1000), minlength=1000)
    assert counts.min() > 20
    assert counts.max() < 130


@given(st.integers(1, 1 << 31), st.integers(1, 1 << 31))
@settings(max_examples=200, deadline=None)
def test_bounds_are_the_lowest_hashes_of_their_blocks(nblocks: int, step: int) -> None:
    step = max(step, nblocks // 1000)
    bounds = block_bounds(nblocks, step)
    assert block_numbers(bounds, nblocks).tolist() == list(range(step, nblocks, step))
    below = block_numbers(bounds - np.uint64(1), nblocks)
    assert below.tolist() == [number - 1 for number in range(step, nblocks, step)]


def test_damaged_blocks_are_refused_by_number() -> None:
    keys, hashes = sorted_by_hash(fixed(200))
    times_ms = np.zeros(200, np.int64)
    blocks = [b for _, b in encode_blocks(keys, hashes, times_ms, 4, wide_times=False)]
    for damaged in (
        blocks[1][:5], blocks[1][:-1], blocks[1] + b"x", b"\x02" + blocks[1][1:],
        blocks[1][:1] + b"\x81" + blocks[1][2:], blocks[1][:2] + bytes(2) + blocks[1][4:],
    ):  # fmt: skip
        with pytest.raises(ValueError, match="block 1 is damaged"):
            decode_blocks([blocks[0], damaged, *blocks[2:]])


def test_damaged_lengths_are_refused() -> None:
    keys, hashes = sorted_by_hash(varied(50))
    ((_, block),) = encode_blocks(keys, hashes, np.zeros(50, np.int64), 1, wide_times=False)
    with pytest.raises(ValueError, match="block 0 is damaged"):
        decode_blocks([block[:4] + b"\xff" + block[5:]])


def test_hashes_that_are_none_are_refused() -> None:
    keys = fixed(70_000).keys
    zeros = np.zeros(70_000, np.uint64), np.zeros(70_000, np.int64)
    with pytest.raises(ValueError, match="not hashes of the IDs"):
        list(encode_blocks(keys, *zeros, 1, wide_times=False))
