"""Filters: sizing against published tables, measured rates, and bytes that fail closed."""

from __future__ import annotations

import math
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pybloom_live import BloomFilter

from dedup import kernel
from dedup.core.filter import HEADER_BYTES, SplitBlockFilter, hash_key_id
from dedup.core.keys import Keys
from dedup.core.sizing import blocks_for, predicted_fpr
from dedup.errors import CatalogError, ConfigError, FilterDamaged

KEY_ID = 0x0123456789ABCDEF


def random_hashes(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, n, np.uint64)


def build(n: int, fpr: float = 0.01, seed: int = 1) -> SplitBlockFilter:
    return SplitBlockFilter.build(random_hashes(n, seed), fpr, hash_key_id=KEY_ID)


# ---- sizing ----


@pytest.mark.parametrize(
    ("fpr", "bits_per_key"), [(0.1, 6.0), (0.01, 10.5), (0.001, 16.9), (0.0001, 26.4), (1e-5, 41)]
)
def test_bits_per_key_match_the_parquet_specification(fpr: float, bits_per_key: float) -> None:
    n = 10**6
    assert 256 * blocks_for(n, fpr) / n == pytest.approx(bits_per_key, abs=0.06)


@given(n=st.integers(1, 10**7), fpr=st.floats(1e-7, 0.99))
def test_blocks_are_enough_and_no_more(n: int, fpr: float) -> None:
    z = blocks_for(n, fpr)
    assert predicted_fpr(n, z) <= fpr * (1 + 1e-9)
    assert z == 1 or predicted_fpr(n, z - 1) > fpr


@pytest.mark.parametrize("load", [0.5, 8, 24.4, 200])
def test_prediction_is_the_poisson_sum(load: float) -> None:
    terms = []
    for j in range(2000):
        log_pmf = -load + j * math.log(load) - math.lgamma(j + 1)
        terms.append(math.exp(log_pmf) * (1 - (31 / 32) ** j) ** 8)
    assert predicted_fpr(int(load * 1000), 1000) == pytest.approx(math.fsum(terms), rel=1e-9)


def test_the_prediction_is_right_at_the_ends_of_the_range() -> None:
    assert predicted_fpr(0, 1) == 0
    assert predicted_fpr(10**12, 1) == 1
    assert predicted_fpr(4095, 1) == pytest.approx(1)
    assert blocks_for(0, 0.01) == 1
    assert blocks_for(1, 0.5) == 1


def test_a_filter_that_would_be_too_large_is_rejected() -> None:
    for n, fpr in ((10**12, 0.0001), (10, 1e-300)):
        with pytest.raises(ConfigError, match="more shards or buckets"):
            blocks_for(n, fpr)


# ---- membership ----


def test_the_filter_agrees_with_pybloom_live() -> None:
    """pybloom-live: the same answers for members, a comparable rate for others."""
    n, fpr = 20_000, 0.01
    members = [b"member-%d" % i for i in range(n)]
    others = [b"other-%d" % i for i in range(n)]
    reference = BloomFilter(n, fpr)
    for key in members:
        reference.add(key)
    hashes, other_hashes = (
        kernel.hash64(keys.data, keys.offsets, bytes(16))
        for keys in (Keys.from_list(members), Keys.from_list(others))
    )
    ours = SplitBlockFilter.build(hashes, fpr, hash_key_id=KEY_ID)
    assert ours.may_contain(hashes).tolist() == [key in reference for key in members] == [True] * n
    wrong = int(ours.may_contain(other_hashes).sum())
    reference_wrong = sum(key in reference for key in others)
    assert wrong <= 1.5 * n * fpr
    assert 0.5 * reference_wrong <= wrong <= 2 * reference_wrong


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=30), max_size=5))
def test_no_false_negatives_however_it_is_filled(batches: list[list[int]]) -> None:
    made = SplitBlockFilter.sized(10, 0.01, hash_key_id=KEY_ID)
    for batch in batches:
        made.add(np.array(batch, np.uint64))
    every = np.array([h for batch in batches for h in batch], np.uint64)
    assert made.count == len(every)
    assert made.may_contain(every).all()
    again = SplitBlockFilter.from_bytes(made.to_bytes(), hash_key_id=KEY_ID)
    assert again.may_contain(every).all()


def test_an_empty_filter_contains_nothing() -> None:
    empty = build(0)
    assert (empty.blocks, empty.count) == (1, 0)
    assert not empty.may_contain(random_hashes(1000)).any()
    assert empty.may_contain(np.empty(0, np.uint64)).tolist() == []


def test_hash_key_id_names_the_key() -> None:
    assert hash_key_id(bytes(16)) == hash_key_id(bytes(16))
    assert len({hash_key_id(bytes([i] * 16)) for i in range(50)}) == 50
    # Catalogs hold this number: it must never change.
    assert hash_key_id(bytes(range(16))) == 0xDA1817750A362828


# ---- bytes ----


def test_the_bytes_of_a_filter_are_as_documented() -> None:
    made = build(100)
    raw = made.to_bytes()
    assert len(raw) == made.nbytes == 64 + 8 + 32 * made.blocks
    assert raw[:8] == b"DSBF\x01\x00\x00\x00"
    assert struct.unpack_from("<QQQd", raw, 8) == (made.blocks, 100, KEY_ID, 0.01)
    assert struct.unpack_from("<I", raw, 40) == (zlib.crc32(raw[64:72]),)
    assert raw[44:60] == bytes(16)
    assert struct.unpack_from("<I", raw, 60) == (zlib.crc32(raw[:60]),)
    bitset = made.bits.astype("<u4").tobytes()
    sums = kernel.page_sums(np.frombuffer(bitset, np.uint8), 4096)
    assert raw[64:72] == sums.astype("<u8").tobytes()
    assert raw[72:] == bitset


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_a_filter_is_read_back_as_written(n: int) -> None:
    made = build(n)
    again = SplitBlockFilter.from_bytes(made.to_bytes(), hash_key_id=KEY_ID)
    assert (again.bits == made.bits).all()
    assert (again.count, again.fpr, again.hash_key_id) == (n, 0.01, KEY_ID)
    again.add(random_hashes(3, seed=8))
    assert again.count == n + 3
    assert again.to_bytes()[:8] == made.to_bytes()[:8]


def resealed(raw: bytes, at: int, field: bytes) -> bytes:
    """Change a header field and make its checksum right again."""
    head = bytearray(raw[:60])
    head[at : at + len(field)] = field
    return bytes(head) + struct.pack("<I", zlib.crc32(head)) + raw[HEADER_BYTES:]


@pytest.mark.parametrize(
    ("at", "field", "text"),
    [(0, b"DSBG", "does not begin as a filter"), (4, struct.pack("<H", 2), "has format 2"),
     (6, struct.pack("<H", 1), "leaves empty"), (8, struct.pack("<Q", 0), "do not fit 0 blocks"),
     (8, struct.pack("<Q", 2**40), "do not fit"),
     (24, struct.pack("<Q", 7), "hash key 0000000000000007"),
     (40, struct.pack("<I", 7), "checksum of its page checksums"), (59, b"\1", "leaves empty")],
)  # fmt: skip
def test_fields_that_this_release_cannot_trust_are_rejected(
    at: int, field: bytes, text: str
) -> None:
    with pytest.raises(FilterDamaged, match=text) as caught:
        SplitBlockFilter.from_bytes(resealed(build(30).to_bytes(), at, field), hash_key_id=KEY_ID)
    assert isinstance(caught.value, CatalogError)
    assert "Read the exact catalog" in str(caught.value)
