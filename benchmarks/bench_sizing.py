"""`make bench-sizing`: filters alone, over false-positive rate x buckets x IDs.

A contender has one filter per bucket, and every bucket holds an equal share of the IDs. A probe
asks all filters about a new ID. So each filter gets the rate with which the union of all has the
requested one. Times include the hash, as in `bench_kernel`.

pybloom-live works ID by ID in Python. So it gets fewer rounds and new IDs than our filter, and its
scalable filter, which searches a chain of filters for every ID, holds `LEAST_IDS` at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pybloom_live import BloomFilter, ScalableBloomFilter
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.bench_kernel import KEY_ID, hashes
from benchmarks.events import uuid_text
from benchmarks.results import keep
from dedup import kernel
from dedup.core.filter import SplitBlockFilter
from dedup.core.keys import Keys
from dedup.core.sizing import interval, predicted_spread
from dedup.spark.id_encoding import encode_ids

RATES = (1e-2, 1e-3, 1e-4)
BUCKETS = (1, 8, 24)
LEAST_IDS, MOST_IDS = 100_000, 1_000_000
#: New IDs of one round. All contenders have the same, so pytest-benchmark compares like with like.
BATCH = 20_000
#: Known IDs that pybloom-live must find. Ours must find all.
KNOWN = 10_000
#: Standard deviations by which our measured rate may exceed the requested one.
DEVIATIONS = 4

Answers = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Ids:
    """The same IDs as each contender takes them: text, and keys as pack encodes them."""

    text: list[str]
    keys: Keys

    def part(self, start: int, stop: int) -> Ids:
        keys = Keys(self.keys.data, self.keys.offsets[start : stop + 1])
        return Ids(self.text[start:stop], keys)

    def parts(self, number: int) -> list[Ids]:
        """Cut into parts of equal size."""
        edges = [len(self.text) * i // number for i in range(number + 1)]
        return [self.part(*edge) for edge in pairwise(edges)]


@dataclass(frozen=True)
class Contender:
    name: str
    #: Build one filter per part, for a rate of each.
    build: Callable[[list[Ids], float], list[Any]]
    #: Which IDs at least one of the filters may hold.
    probe: Callable[[list[Any], Ids], Answers]
    bits: Callable[[Any], int]
    add_rounds: int
    probe_rounds: int
    #: Known IDs that the filters are asked about.
    known: int
    most_ids: int = MOST_IDS


def build_ours(parts: list[Ids], fpr: float) -> list[SplitBlockFilter]:
    return [SplitBlockFilter.build(hashes(p.keys), fpr, hash_key_id=KEY_ID) for p in parts]


def probe_ours(filters: list[SplitBlockFilter], ids: Ids) -> Answers:
    return kernel.filter_probe([each.bits for each in filters], hashes(ids.keys)) != 0


def build_plain(parts: list[Ids], fpr: float) -> list[BloomFilter]:
    filters = [BloomFilter(len(part.text), fpr) for part in parts]
    for bloom, part in zip(filters, parts, strict=True):
        for item in part.text:
            bloom.add(item, skip_check=True)
    return filters


def build_scalable(parts: list[Ids], fpr: float) -> list[ScalableBloomFilter]:
    filters = [ScalableBloomFilter(error_rate=fpr) for _ in parts]
    for bloom, part in zip(filters, parts, strict=True):
        for item in part.text:
            bloom.add(item)
    return filters


def probe_pybloom(filters: list[Any], ids: Ids) -> Answers:
    found = np.zeros(len(ids.text), np.bool_)
    for place, item in enumerate(ids.text):
        for bloom in filters:
            if item in bloom:
                found[place] = True
                break
    return found


CONTENDERS = (
    Contender(
        "SplitBlockFilter", build_ours, probe_ours, lambda each: 8 * len(each.to_bytes()),
        add_rounds=5, probe_rounds=50, known=MOST_IDS,
    ),
    Contender(
        "BloomFilter", build_plain, probe_pybloom, lambda each: int(each.num_bits),
        add_rounds=1, probe_rounds=5, known=KNOWN,
    ),
    Contender(
        "ScalableBloomFilter", build_scalable, probe_pybloom,
        lambda each: sum(piece.num_bits for piece in each.filters),
        add_rounds=1, probe_rounds=5, known=KNOWN, most_ids=LEAST_IDS,
    ),
)  # fmt: skip
#: Contenders of the same setting follow one another.
GRID = [
    (fpr, buckets, count, contender)
    for count, fpr, buckets in product((LEAST_IDS, MOST_IDS), RATES, BUCKETS)
    for contender in CONTENDERS
    if count <= contender.most_ids
]


@dataclass
class Cell:
    """One contender in one setting, and what was found."""

    contender: Contender
    ids: Ids
    fpr: float
    buckets: int
    found: dict[str, Any]

    @cached_property
    def filters(self) -> list[Any]:
        return self.contender.build(self.parts, self.fpr_of_each)

    @cached_property
    def parts(self) -> list[Ids]:
        return self.ids.parts(self.buckets)

    @property
    def fpr_of_each(self) -> float:
        return -math.expm1(math.log1p(-self.fpr) / self.buckets)

    def note(self, benchmark: BenchmarkFixture, name: str, count: int, **others: float) -> None:
        """Keep the time per ID and other figures, here and in pytest-benchmark's own output."""
        if benchmark.stats is not None:
            benchmark.extra_info[name] = benchmark.stats.stats.median / count * 1e9
        benchmark.extra_info.update(others)
        self.found |= benchmark.extra_info


@pytest.fixture(scope="module")
def new_and_known() -> tuple[Ids, Ids]:
    """A million IDs that no filter holds, and a million that filters hold."""
    rng = np.random.default_rng(4)
    high, low = (rng.integers(0, 2**64, 2 * MOST_IDS, np.uint64) for _ in range(2))
    text = uuid_text(high, low)
    new, known = Ids(text.to_pylist(), encode_ids([text]).keys).parts(2)
    return new, known


@pytest.fixture(scope="module")
def results() -> Iterator[list[dict[str, Any]]]:
    """Keeps the figures of all cells, unless some were not measured."""
    cells: list[dict[str, Any]] = []
    yield cells
    if len(cells) == len(GRID) and all("add_ns" in c and "probe_ns" in c for c in cells):
        keep("sizing", {"cells": cells})


@pytest.fixture(
    scope="module", params=GRID, ids=lambda g: f"{g[3].name}-{g[0]:g}-{g[1]}-{g[2] // 1000}k"
)
def cell(
    request: pytest.FixtureRequest, new_and_known: tuple[Ids, Ids], results: list[dict[str, Any]]
) -> Cell:
    fpr, buckets, count, contender = request.param
    results.append({"filter": contender.name, "ids": count, "fpr": fpr, "buckets": buckets})
    return Cell(contender, new_and_known[1].part(0, count), fpr, buckets, results[-1])


def test_add(benchmark: BenchmarkFixture, cell: Cell) -> None:
    contender, count = cell.contender, len(cell.ids.text)
    benchmark.group = f"add {count:,} IDs, {cell.buckets} buckets, {cell.fpr:.2%}"
    given = (cell.parts, cell.fpr_of_each)
    cell.filters = benchmark.pedantic(contender.build, given, rounds=contender.add_rounds)
    bits = sum(map(contender.bits, cell.filters)) / count
    cell.note(benchmark, "add_ns", count, bits_per_id=bits)
    step = max(1, count // contender.known)
    known = Ids(cell.ids.text[::step], cell.ids.keys.take(np.arange(0, count, step)))
    assert contender.probe(cell.filters, known).all(), "a false negative"


def test_probe(benchmark: BenchmarkFixture, cell: Cell, new_and_known: tuple[Ids, Ids]) -> None:
    contender, count = cell.contender, len(cell.ids.text)
    benchmark.group = f"probe {count:,} IDs, {cell.buckets} buckets, {cell.fpr:.2%}"
    rounds = contender.probe_rounds
    batches = iter(new_and_known[0].part(0, rounds * BATCH).parts(rounds))
    answers: list[Answers] = []
    benchmark.pedantic(
        lambda batch: answers.append(contender.probe(cell.filters, batch)),
        setup=lambda: ((next(batches),), {}),
        rounds=rounds,
    )
    asked, wrong = sum(map(len, answers)), int(sum(each.sum() for each in answers))
    cell.note(benchmark, "probe_ns", BATCH, asked=asked, wrong=wrong)
    if contender is CONTENDERS[0]:
        spread = math.hypot(*(predicted_spread(each.count, each.blocks) for each in cell.filters))
        assert interval(wrong, asked, DEVIATIONS, spread=spread)[0] <= cell.fpr
