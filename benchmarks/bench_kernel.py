"""`make bench`: the kernel, ns per ID, against pybloom-live and, where it is installed, rbloom.

What is compared includes the hash, as users of either pay for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pybloom_live import BloomFilter
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.events import uuid_text
from dedup import kernel
from dedup.catalog.segment_file import write_segment_file
from dedup.core.entries import Entries
from dedup.core.filter import PAGE_BLOCKS, PAGE_BYTES, SplitBlockFilter, hash_key_id
from dedup.core.keys import Keys
from dedup.core.segment import SegmentPlan
from dedup.spark.id_encoding import encode_ids

COUNT = 200_000
FPR = 0.01
KEY = bytes(range(16))
KEY_ID = hash_key_id(KEY)
#: Hashes of as many IDs as make eight filters of about 170 MB in all: far more than any cache.
MANY = 8_000_000


@pytest.fixture(scope="module")
def text() -> list[str]:
    rng = np.random.default_rng(1)
    high, low = (rng.integers(0, 2**64, COUNT, np.uint64) for _ in range(2))
    ids: list[str] = uuid_text(high, low).to_pylist()
    return ids


@pytest.fixture(scope="module")
def keys(text: list[str]) -> Keys:
    return encode_ids([pa.array(text)]).keys


@pytest.fixture(scope="module")
def million() -> Keys:
    rng = np.random.default_rng(2)
    data = rng.integers(0, 256, 17_000_000, np.uint8)
    return Keys(data, np.arange(1_000_001, dtype=np.int64) * 17)


@pytest.fixture(scope="module")
def large() -> list[SplitBlockFilter]:
    """Eight filters out of cache."""
    rng = np.random.default_rng(3)
    return [
        SplitBlockFilter.build(rng.integers(0, 2**64, MANY, np.uint64), FPR / 8, hash_key_id=KEY_ID)
        for _ in range(8)
    ]


def hashes(keys: Keys) -> npt.NDArray[np.uint64]:
    return kernel.hash64(keys.data, keys.offsets, KEY)


def per_id(benchmark: BenchmarkFixture, work: Callable[[], object], count: int = COUNT) -> None:
    benchmark(work)
    if benchmark.stats is not None:
        benchmark.extra_info["ns_per_id"] = benchmark.stats.stats.median / count * 1e9


@pytest.mark.benchmark(group="hash")
def test_hash_ours(benchmark: BenchmarkFixture, million: Keys) -> None:
    per_id(benchmark, lambda: hashes(million), 1_000_000)


def ours(text: list[str], keys: Keys) -> SplitBlockFilter:
    return SplitBlockFilter.build(hashes(keys), FPR, hash_key_id=KEY_ID)


def pybloom_live(text: list[str], keys: Keys) -> BloomFilter:
    bloom = BloomFilter(COUNT, FPR)
    for item in text:
        bloom.add(item, skip_check=True)
    return bloom


def rbloom(text: list[str], keys: Keys) -> Any:
    """Its fastest: a whole list at a time, with Python's own hash."""
    bloom = pytest.importorskip("rbloom", reason="pip install rbloom to compare").Bloom(COUNT, FPR)
    bloom.update(text)
    return bloom


@pytest.mark.benchmark(group="add")
@pytest.mark.parametrize("build", [ours, pybloom_live, rbloom])
def test_add(
    benchmark: BenchmarkFixture, build: Callable[..., object], text: list[str], keys: Keys
) -> None:
    per_id(benchmark, lambda: build(text, keys))


@pytest.mark.benchmark(group="probe")
def test_probe_ours(benchmark: BenchmarkFixture, text: list[str], keys: Keys) -> None:
    bloom = ours(text, keys)
    per_id(benchmark, lambda: bloom.may_contain(hashes(keys)))


@pytest.mark.benchmark(group="probe")
@pytest.mark.parametrize("build", [pybloom_live, rbloom])
def test_probe(
    benchmark: BenchmarkFixture, build: Callable[..., Any], text: list[str], keys: Keys
) -> None:
    bloom = build(text, keys)
    per_id(benchmark, lambda: [item in bloom for item in text])


@pytest.mark.benchmark(group="probe of 8 slices")
def test_probe_eight_in_cache(benchmark: BenchmarkFixture, keys: Keys) -> None:
    slices = [SplitBlockFilter.build(hashes(keys), FPR / 8, hash_key_id=KEY_ID) for _ in range(8)]
    bits = [piece.bits for piece in slices]
    asked = hashes(keys)
    per_id(benchmark, lambda: kernel.filter_probe(bits, asked))


@pytest.mark.benchmark(group="probe of 8 slices")
def test_probe_eight_out_of_cache(
    benchmark: BenchmarkFixture, large: list[SplitBlockFilter], million: Keys
) -> None:
    """At random: one line of memory per slice and ID."""
    asked, bits = hashes(million), [piece.bits for piece in large]
    per_id(benchmark, lambda: kernel.filter_probe(bits, asked), 1_000_000)


@pytest.mark.benchmark(group="probe of 8 slices")
def test_probe_eight_out_of_cache_in_hash_order(
    benchmark: BenchmarkFixture, large: list[SplitBlockFilter], million: Keys
) -> None:
    """As sidecars are probed, from memory: sorted, every page checked before it is used."""
    raw = [piece.bits.view(np.uint8) for piece in large]
    sums = [kernel.page_sums(each, PAGE_BYTES) for each in raw]

    def probe() -> None:
        asked = hashes(million)
        asked = asked[kernel.sort_keys(million.data, million.offsets, asked)]
        for piece, each, wanted in zip(large, raw, sums, strict=True):
            pages, starts = kernel.filter_pages(asked, piece.blocks, PAGE_BLOCKS)
            for first in range(0, len(pages), 256):
                some = slice(first, min(first + 256, len(pages)))
                whole = each[
                    int(pages[some][0]) * PAGE_BYTES : int(pages[some][-1] + 1) * PAGE_BYTES
                ]
                found = kernel.page_sums(whole, PAGE_BYTES)
                assert np.array_equal(found, wanted[int(pages[some][0]) : int(pages[some][-1]) + 1])
                edges = starts[some.start : some.stop + 1]
                kernel.filter_probe_pages(
                    whole.view(np.uint32), pages[some], edges,
                    asked[int(edges[0]) : int(edges[-1])], piece.blocks, PAGE_BLOCKS,
                )  # fmt: skip

    per_id(benchmark, probe, 1_000_000)


@pytest.mark.benchmark(group="memory")
def test_memory_latency(
    benchmark: BenchmarkFixture, large: list[SplitBlockFilter], million: Keys
) -> None:
    """The limit of random probing: numpy fetches one word of each block that is asked for."""
    asked = hashes(million)
    places = [
        ((asked >> np.uint64(32)) * np.uint64(piece.blocks) >> np.uint64(32)).astype(np.int64) * 8
        for piece in large
    ]
    out = np.empty(len(asked), np.uint32)

    def fetch() -> None:
        for piece, place in zip(large, places, strict=True):
            np.take(piece.bits, place, out=out, mode="clip")

    per_id(benchmark, fetch, 1_000_000)


@pytest.mark.benchmark(group="memory")
def test_memory_bandwidth(benchmark: BenchmarkFixture, large: list[SplitBlockFilter]) -> None:
    """The limit: all bytes of the eight slices read once, in order; ns per ID of a million."""
    per_id(benchmark, lambda: [int(piece.bits.view(np.uint64).sum()) for piece in large], 1_000_000)


@pytest.mark.benchmark(group="segment")
def test_sort_and_write_a_segment(
    benchmark: BenchmarkFixture, million: Keys, tmp_path: Path
) -> None:
    asked, times_ms = hashes(million), np.arange(1_000_000, dtype=np.int64)
    made = iter(range(1_000_000))
    per_id(
        benchmark,
        lambda: write_segment_file(
            tmp_path / str(next(made)), name="s", shard=0, plan=SegmentPlan(0, 1 << 30, 0.01),
            pieces=[Entries.in_order(million, asked, times_ms)], hash_key_id=KEY_ID,
        ),
        1_000_000,
    )  # fmt: skip
