from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup import kernel
from dedup.catalog.blocks import block_bounds, block_count, block_numbers, encode_blocks, joined
from dedup.core.keys import Keys
from tests.support.catalog import Content, content, fixed


def sorted_by_hash(made: Content) -> tuple[Keys, np.ndarray]:
    order = kernel.sort_keys(made.keys.data, made.keys.offsets, made.hashes)
    return made.keys.take(order), made.hashes[order]


@given(st.sets(st.binary(max_size=12), max_size=300), st.booleans())
@settings(max_examples=60, deadline=None)
def test_encoded_blocks_decode_to_the_same_entries(ids: set[bytes], wide: bool) -> None:
    keys, hashes = sorted_by_hash(content(Keys.from_list(sorted(ids))))
    offsets_ms = np.arange(len(keys), dtype=np.int64) * (1 << 40 if wide else 1)
    entries = list(encode_blocks(keys, hashes, offsets_ms, block_count(len(keys)), wide_times=wide))
    data, offsets, found_ms = kernel.blocks_decode(*joined([block for _, block in entries]))
    assert list(Keys(data, offsets)) == list(keys)
    assert found_ms.tolist() == offsets_ms.tolist()
    assert [key for key, _ in entries] == sorted({key for key, _ in entries})


@given(st.integers(1, 1 << 31), st.integers(1, 1 << 31))
@settings(max_examples=200, deadline=None)
def test_bounds_are_the_lowest_hashes_of_their_blocks(nblocks: int, step: int) -> None:
    step = max(step, nblocks // 1000)
    bounds = block_bounds(nblocks, step)
    assert block_numbers(bounds, nblocks).tolist() == list(range(step, nblocks, step))
    below = block_numbers(bounds - np.uint64(1), nblocks)
    assert below.tolist() == [number - 1 for number in range(step, nblocks, step)]


def test_values_that_are_not_hashes_of_the_ids_are_rejected() -> None:
    keys = fixed(70_000).keys
    zeros = np.zeros(70_000, np.uint64), np.zeros(70_000, np.int64)
    with pytest.raises(ValueError, match="not hashes of the IDs"):
        list(encode_blocks(keys, *zeros, 1, wide_times=False))
