"""The kernel against pybloom-live, on 36-character UUID text; hashing included on our side."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from pybloom_live import BloomFilter
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.events import uuid_text
from dedup import kernel
from dedup.core.filter import SplitBlockFilter, hash_key_id
from dedup.core.keys import Keys
from dedup.spark.identity import encode_ids

COUNT = 200_000
FPR = 0.01
KEY = bytes(range(16))
KEY_ID = hash_key_id(KEY)


@pytest.fixture(scope="module")
def text() -> list[str]:
    rng = np.random.default_rng(1)
    high, low = (rng.integers(0, 2**64, COUNT, np.uint64) for _ in range(2))
    ids: list[str] = uuid_text(high, low).to_pylist()
    return ids


@pytest.fixture(scope="module")
def keys(text: list[str]) -> Keys:
    import pyarrow as pa

    return encode_ids([pa.array(text)]).keys


def hashes(keys: Keys) -> npt.NDArray[np.uint64]:
    return kernel.hash64(keys.data, keys.offsets, KEY)


def per_id(benchmark: BenchmarkFixture, work: Callable[[], object]) -> None:
    benchmark(work)
    benchmark.extra_info["ns_per_id"] = benchmark.stats.stats.median / COUNT * 1e9


@pytest.mark.benchmark(group="add")
def test_add_ours(benchmark: BenchmarkFixture, keys: Keys) -> None:
    per_id(benchmark, lambda: SplitBlockFilter.build(hashes(keys), FPR, hash_key_id=KEY_ID))


@pytest.mark.benchmark(group="add")
def test_add_pybloom_live(benchmark: BenchmarkFixture, text: list[str]) -> None:
    def build() -> BloomFilter:
        made = BloomFilter(COUNT, FPR)
        for item in text:
            made.add(item, skip_check=True)
        return made

    per_id(benchmark, build)


@pytest.mark.benchmark(group="probe")
def test_probe_ours(benchmark: BenchmarkFixture, keys: Keys) -> None:
    made = SplitBlockFilter.build(hashes(keys), FPR, hash_key_id=KEY_ID)
    per_id(benchmark, lambda: made.may_contain(hashes(keys)))


@pytest.mark.benchmark(group="probe")
def test_probe_pybloom_live(benchmark: BenchmarkFixture, text: list[str]) -> None:
    made = BloomFilter(COUNT, FPR)
    for item in text:
        made.add(item, skip_check=True)
    per_id(benchmark, lambda: [item in made for item in text])


@pytest.mark.benchmark(group="probe of 8 slices")
def test_probe_eight_ours(benchmark: BenchmarkFixture, keys: Keys) -> None:
    slices = [SplitBlockFilter.build(hashes(keys), FPR / 8, hash_key_id=KEY_ID) for _ in range(8)]
    bits = [piece.bits for piece in slices]
    per_id(benchmark, lambda: kernel.filter_probe(bits, hashes(keys)))
