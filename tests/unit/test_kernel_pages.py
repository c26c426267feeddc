"""Checksums of pages, and filters read page by page, against independent models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.kernel._kernel import Kernel
from tests.support.kernel_models import (
    MASK,
    array,
    kernel_settings,
    page_sum,
    pages_of,
    sbbf_add,
    sbbf_check,
    splitmix,
    u64s,
)

# ---- checksums ----


def test_model_gives_the_published_numbers() -> None:
    # The first outputs for this seed, as published with many implementations of SplitMix64.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert splitmix(1234567, 3) == published


def sums(tested: Kernel, raw: bytes, page_bytes: int) -> list[int]:
    got = tested.page_sums(array(raw, "u1"), page_bytes)
    assert got.dtype == np.uint64
    return got.tolist()


@given(raw=st.binary(max_size=300), words=st.integers(1, 12))
@kernel_settings
def test_page_sums_match_the_model(tested: Kernel, raw: bytes, words: int) -> None:
    page = 8 * words
    pages = [raw[i : i + page] for i in range(0, len(raw), page)]
    assert sums(tested, raw, page) == [page_sum(each) for each in pages]


@pytest.mark.parametrize("size", [65528, 65536, 65537, 2 * 65536 + 20])
def test_sums_of_the_largest_pages_match_the_model(tested: Kernel, size: int) -> None:
    raw = np.random.default_rng(size).bytes(size)
    expected = [page_sum(raw[i : i + 65536]) for i in range(0, size, 65536)]
    assert sums(tested, raw, 65536) == expected


def test_persisted_sums_stay_what_they_are(tested: Kernel) -> None:
    assert sums(tested, bytes(range(100)), 64) == [7154113601883609897, 10336816443117081105]


# ---- filters by pages ----


def by_pages(
    tested: Kernel, hashes: list[int], blocks: int, page_blocks: int
) -> dict[int, list[int]]:
    pages, starts = tested.filter_pages(array(hashes, "u8"), blocks, page_blocks)
    assert pages.dtype == starts.dtype == np.int64
    assert len(starts) == len(pages) + 1
    ends = starts.tolist()
    assert ends[0] == 0
    assert ends[-1] == len(hashes)
    return {page: hashes[ends[j] : ends[j + 1]] for j, page in enumerate(pages.tolist())}


sizes = st.one_of(st.integers(1, 40), st.sampled_from([2**16 + 1, 2**31, 2**32 - 1]))


@given(hashes=st.lists(u64s, max_size=120).map(sorted), blocks=sizes, page_blocks=sizes)
@kernel_settings
def test_filter_pages_match_the_model(
    tested: Kernel, hashes: list[int], blocks: int, page_blocks: int
) -> None:
    got = by_pages(tested, hashes, blocks, page_blocks)
    expected = pages_of(hashes, blocks, page_blocks)
    assert list(got.items()) == list(expected.items())


def test_hashes_at_the_edges_of_blocks_go_to_the_right_page(tested: Kernel) -> None:
    # The first and the last hash of each of 6 blocks, 4 blocks to a page.
    first = [-(-(b << 64) // 6) for b in range(6)]
    edges = sorted({h >> 32 << 32 for h in first} | {(h >> 32) - 1 << 32 for h in first[1:]})
    hashes = [0, *edges, MASK]
    assert by_pages(tested, sorted(hashes), 6, 4) == pages_of(sorted(hashes), 6, 4)


@pytest.mark.parametrize("hashes", [[1, 0], [0, 5, 5, 4], [MASK, 0], [2**63, 2**63 - 1]])
def test_falling_hashes_are_refused(compiled: Kernel, hashes: list[int]) -> None:
    with pytest.raises(ValueError, match="hashes must never fall"):
        by_pages(compiled, hashes, 4, 2)


def only(bits: np.ndarray, pages: np.ndarray, page_blocks: int) -> np.ndarray:
    """Just those pages of a filter, in memory of exactly their size."""
    words = 8 * page_blocks
    held = [bits[p * words : (p + 1) * words] for p in pages.tolist()]
    return np.concatenate([*held, np.zeros(0, np.uint32)])


@given(
    blocks=st.integers(1, 40),
    page_blocks=st.integers(1, 50),
    added=st.lists(u64s, max_size=150),
    others=st.lists(u64s, max_size=50),
    data=st.data(),
)
@kernel_settings
def test_probing_pages_matches_the_model(
    tested: Kernel,
    blocks: int,
    page_blocks: int,
    added: list[int],
    others: list[int],
    data: st.DataObject,
) -> None:
    held = [0] * (8 * blocks)
    for h in added:
        sbbf_add(held, h)
    asked = sorted([*data.draw(st.lists(st.sampled_from(added))), *others] if added else others)
    hashes = array(asked, "u8")
    pages, starts = tested.filter_pages(hashes, blocks, page_blocks)
    low = data.draw(st.integers(0, len(pages)))
    high = data.draw(st.integers(low, len(pages)))
    stretch = slice(int(starts[low]), int(starts[high]))
    got = tested.filter_probe_pages(
        only(array(held, "u4"), pages[low:high], page_blocks),
        pages[low:high],
        starts[low : high + 1],
        hashes[stretch],
        blocks,
        page_blocks,
    )
    assert got.dtype == np.uint8
    assert got.tolist() == [int(sbbf_check(held, h)) for h in asked[stretch]]


def test_order_within_a_page_is_free_and_pages_may_hold_none(tested: Kernel) -> None:
    bits = np.zeros(8 * 6, np.uint32)
    hashes = array([MASK, 1, 0, 2**63], "u8")  # blocks 5, 0, 0, 3
    tested.filter_add(bits, hashes[1:3])
    pages, starts = array([0, 1, 2], "i8"), array([7, 9, 10, 11], "i8")
    asked = array([1, 0, 2**63, MASK], "u8")
    assert tested.filter_probe_pages(bits, pages, starts, asked, 6, 2).tolist() == [1, 1, 0, 0]
    starts = array([0, 0, 1, 1], "i8")
    got = tested.filter_probe_pages(bits, pages, starts, array([2**63], "u8"), 6, 2)
    assert got.tolist() == [0]


def probe(
    tested: Kernel,
    words: int = 8 * 5,
    pages: tuple[int, ...] = (0, 1, 2),
    starts: tuple[int, ...] = (0, 1, 2, 3),
    hashes: tuple[int, ...] = (0, 2**63, MASK),
) -> list[int]:
    """Ask 5 blocks, 2 to a page: two pages of 16 words and a short one."""
    bits = np.zeros(words, np.uint32)
    args = (array(pages, "i8"), array(starts, "i8"), array(hashes, "u8"))
    return tested.filter_probe_pages(bits, *args, 5, 2).tolist()


def test_size_of_the_bits_is_that_of_their_pages(tested: Kernel) -> None:
    assert probe(tested) == [0, 0, 0]
    assert probe(tested, 24, (1, 2), (0, 1, 2), (2**63, MASK)) == [0, 0]
    assert probe(tested, 32, (0, 1), (0, 1, 2), (0, 2**63)) == [0, 0]
    assert probe(tested, 0, (), (5,), ()) == []


def test_bits_of_other_sizes_are_refused(compiled: Kernel) -> None:
    for words in (0, 32, 39, 41, 48):
        with pytest.raises(ValueError, match="bits must have 40 items"):
            probe(compiled, words)
    with pytest.raises(ValueError, match="bits must have 0 items"):
        probe(compiled, 8, (), (5,), ())


@pytest.mark.parametrize(
    ("hashes", "bad"),
    [((2**63, 2**63, MASK), 0), ((0, 0, MASK), 1), ((0, MASK, MASK), 1), ((0, 2**63, 2**63), 2),
     ((0, 2**63, 0), 2)],
)  # fmt: skip
def test_hash_outside_its_page_is_named(
    compiled: Kernel, hashes: tuple[int, ...], bad: int
) -> None:
    with pytest.raises(ValueError, match=rf"hashes\[{bad}\] does not lie in its page"):
        probe(compiled, hashes=hashes)


@pytest.mark.parametrize(
    "pages", [(0, 1, 3), (-1, 0, 1), (0, 2, 1), (0, 1, 1), (0, 1, 2**62), (-(2**63), 1, 2)]
)
def test_pages_outside_the_filter_are_refused(compiled: Kernel, pages: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="pages must rise, from 0 or more to 2 or less"):
        probe(compiled, pages=pages)


@pytest.mark.parametrize(
    "starts",
    [(-1, 1, 2, 2), (0, 2, 1, 3), (3, 2, 1, 0), (-(2**63), 0, 0, 2**63 - 1), (0, 1, 2, -1)],
)
def test_falling_starts_are_refused(compiled: Kernel, starts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="starts must never fall and not be negative"):
        probe(compiled, starts=starts)


def test_the_number_of_hashes_must_match_the_starts(compiled: Kernel) -> None:
    for last in (2, 4, 2**62, 2**63 - 1):
        with pytest.raises(ValueError, match="hashes must have"):
            probe(compiled, starts=(0, 1, 2, last))
    for starts in ((), (0,), (0, 1, 3), (0, 1, 2, 3, 3)):
        with pytest.raises(ValueError, match="starts must have 4 items"):
            probe(compiled, starts=starts)


# ---- numbers ----


def test_numbers_out_of_range_are_refused(compiled: Kernel) -> None:
    data, hashes, numbers = array([1], "u1"), array([1], "u8"), array([0, 1], "i8")
    probed = (np.zeros(8, "u4"), numbers[:1], numbers, hashes)
    calls: list[tuple[str, str, Callable[[Any], object]]] = [
        ("page_bytes", "8 to 65536", lambda n: compiled.page_sums(data, n)),
        ("blocks", "1 to 4294967295", lambda n: compiled.filter_pages(hashes, n, 1)),
        ("page_blocks", "1 to 4294967295", lambda n: compiled.filter_pages(hashes, 1, n)),
        ("blocks", "1 to 4294967295", lambda n: compiled.filter_probe_pages(*probed, n, 1)),
        ("page_blocks", "1 to 4294967295", lambda n: compiled.filter_probe_pages(*probed, 1, n)),
    ]
    for name, bounds, call in calls:
        for wrong in (0, -8, 2**64, -(2**64), 2**63):
            with pytest.raises(ValueError, match=f"{name} must be {bounds}"):
                call(wrong)
        for wrong in (None, 8.0, "8", np.int64(8)):
            with pytest.raises(TypeError, match=f"{name} must be an int"):
                call(wrong)
    for wrong, message in ((4, "8 to 65536"), (65544, "8 to 65536"), (9, "multiple of 8")):
        with pytest.raises(ValueError, match=message):
            compiled.page_sums(data, wrong)
