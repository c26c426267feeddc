"""The filter loops against the Parquet specification, and a file that pyarrow wrote."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.kernel._kernel import Kernel
from tests.support.kernel_models import (
    PATHS,
    array,
    kernel_settings,
    load,
    rotate,
    sbbf_add,
    sbbf_check,
    u64s,
)

MASK = 2**64 - 1
PRIMES = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9,
    0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
)  # fmt: skip


def xxh64_of_int64(value: int) -> int:
    """XXH64, seed 0, of one 8-byte input: the hash that Parquet filters use."""
    p1, p2, p3, p4, p5 = PRIMES
    (word,) = struct.unpack("<Q", struct.pack("<q", value))
    h = (p5 + 8) & MASK
    h ^= rotate(word * p2 & MASK, 31) * p1 & MASK
    h = (rotate(h, 27) * p1 + p4) & MASK
    h = (h ^ h >> 33) * p2 & MASK
    h = (h ^ h >> 29) * p3 & MASK
    return h ^ h >> 32


def test_bitset_equals_the_one_in_a_parquet_file(tested: Kernel, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    values = np.unique(rng.integers(-(2**63), 2**63, 2000, np.int64))
    file = tmp_path / "filter.parquet"
    pq.write_table(
        pa.table({"id": values}),
        file,
        bloom_filter_options={"id": {"ndv": len(values), "fpp": 0.01}},
    )
    chunk = pq.read_metadata(file).row_group(0).column(0)
    start, length = chunk.bloom_filter_offset, chunk.bloom_filter_length
    stored = file.read_bytes()[start : start + length]
    # The bitset, a power of two long here, follows a Thrift header of a few bytes.
    size = 1 << (length.bit_length() - 1)
    assert 0 < length - size < 32

    bits = np.zeros(size // 4, np.uint32)
    tested.filter_add(bits, array([xxh64_of_int64(v) for v in values.tolist()], "u8"))
    assert bits.astype("<u4").tobytes() == stored[-size:]


@given(
    blocks=st.integers(1, 40),
    added=st.lists(u64s, max_size=120),
    asked=st.lists(u64s, max_size=120),
)
@kernel_settings
def test_the_filter_follows_the_parquet_specification(
    tested: Kernel, blocks: int, added: list[int], asked: list[int]
) -> None:
    bits = np.zeros(8 * blocks, np.uint32)
    expected = [0] * (8 * blocks)
    for h in added:
        sbbf_add(expected, h)
    assert tested.filter_add(bits, array(added, "u8")) is None
    assert bits.tolist() == expected
    found = tested.filter_probe([bits], array(added + asked, "u8"))
    assert found.dtype == np.uint64
    assert found.tolist() == [int(sbbf_check(expected, h)) for h in added + asked]
    assert found[: len(added)].all()


def test_filters_of_many_sizes_are_probed_at_once(tested: Kernel) -> None:
    rng = np.random.default_rng(5)
    filters, members = [], []
    # 4096 blocks are past the size from which keys are prefetched.
    for i in range(64):
        held = rng.integers(0, 2**64, 50, np.uint64)
        bits = np.zeros(8 * (1 + i % 7 if i % 9 else 9000), np.uint32)
        tested.filter_add(bits, held)
        filters.append(bits)
        members.append(held)
    hashes = np.concatenate([*members, rng.integers(0, 2**64, 300, np.uint64)])
    got = tested.filter_probe(filters, hashes)
    for i, bits in enumerate(filters):
        alone = tested.filter_probe([bits], hashes)
        assert ((got >> np.uint64(i)) & np.uint64(1) == alone).all()
        assert alone[50 * i : 50 * i + 50].all()


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 1000])
def test_prefetching_changes_nothing(n: int) -> None:
    hashes = np.random.default_rng(n).integers(0, 2**64, n, np.uint64)
    made = []
    for tested in map(load, PATHS):
        bits = np.zeros(8 * 20_000, np.uint32)
        tested.filter_add(bits, hashes)
        assert tested.filter_probe([bits], hashes).all()
        made.append(bits)
    assert (made[0] == made[1]).all()
    assert (made[0] == made[2]).all()
