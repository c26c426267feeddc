"""Input made to do harm: colliding, huge, hot and countless; bounds hold, answers stay right."""

from __future__ import annotations

import numpy as np
import pytest

from dedup import kernel
from dedup.core.clocks import MAX_SOURCES, NEVER_MS
from dedup.core.filter import SplitBlockFilter
from dedup.core.keys import Keys
from dedup.core.sharding import derive_keys, filter_key_id
from dedup.errors import ConfigError
from dedup.kernel.arrays import I64, U8, U64
from tests.support.shard_driver import SEALED_OR_NOT, Driver, Rec, drive

_ZERO_KEY = bytes(16)


def numbered(count: int, prefix: str) -> Keys:
    return Keys.from_list([f"{prefix}-{n}".encode() for n in range(count)])


def hashes_of(keys: Keys, key: bytes) -> np.ndarray:  # type: ignore[type-arg]
    return kernel.hash64(keys.data, keys.offsets, key)


def test_ids_that_collide_without_the_key_do_not_with_it() -> None:
    """Chosen to set the same few blocks of a filter; the query's own key spreads them again."""
    many = numbered(400_000, "chosen")
    unkeyed = hashes_of(many, _ZERO_KEY)
    # All of them in one of 64 blocks of the filter that they were chosen against.
    chosen = many.take(np.flatnonzero(unkeyed >> np.uint64(58) == 7))
    assert len(chosen) > 5000
    strange = numbered(100_000, "strange")
    rates = {}
    for name, key in (("unkeyed", _ZERO_KEY), ("keyed", derive_keys("a query")[1])):
        key_id = filter_key_id("a query")
        made = SplitBlockFilter.sized(len(chosen), 0.01, hash_key_id=key_id)
        made.add(np.sort(hashes_of(chosen, key)))
        asked = (
            strange
            if name == "keyed"
            else strange.take(np.flatnonzero(hashes_of(strange, key) >> np.uint64(58) == 7))
        )
        rates[name] = made.may_contain(np.sort(hashes_of(asked, key))).mean()
    assert rates["unkeyed"] > 0.5, "the attack works where the key is known"
    assert rates["keyed"] < 0.015


@SEALED_OR_NOT
def test_a_hot_id_and_ids_of_all_sizes_get_the_right_verdicts(budget: int) -> None:
    """Nine tenths are one ID; the others are empty, of a megabyte, and of every length between."""
    driver = drive(state_budget_bytes=budget, horizon_ms=1_000, bucket_ms=100)
    sizes = [b"", b"x" * (1 << 20), *(b"y" * n for n in range(1, 40))]
    for batch in range(3):
        recs = [Rec(b"hot", 10 * batch)] * 360 + [Rec(name, 10 * batch) for name in sizes]
        told = driver.named(recs)
        first = batch == 0
        assert told.count("UNIQUE") == (len(sizes) + 1 if first else 0)
        assert told.count("DUPLICATE") == len(recs) - told.count("UNIQUE")


def test_times_at_the_ends_of_the_range_get_the_right_verdicts() -> None:
    year_1, year_9999 = -62_135_596_800_000, 253_402_300_799_999
    driver = drive(state_budget_bytes=0, horizon_ms=1_000, bucket_ms=100)
    told = driver.named([Rec(b"a", year_1), Rec(b"a", year_1 + 1), Rec(b"b", year_1 - 1)])
    assert sorted(told) == ["DUPLICATE", "UNIQUE", "UNIQUE"]
    now_ms = year_9999
    assert driver.named([Rec(b"c", year_9999)], now_ms) == ["UNIQUE"]
    assert driver.named([Rec(b"c", year_9999), Rec(b"a", year_9999)], now_ms + 1) == [
        "DUPLICATE", "UNIQUE",
    ]  # fmt: skip


def sources(driver: Driver, count: int, at_ms: int) -> None:
    driver.feed([Rec(b"%d" % n, at_ms, f"producer-{n:06d}") for n in range(count)])


@pytest.mark.slow
def test_ten_thousand_source_partitions_fit_into_the_state_row() -> None:
    driver = drive(horizon_ms=100_000, bucket_ms=10_000, state_budget_bytes=1 << 20)
    for batch in range(2):
        sources(driver, 10_000, 100 + batch)
    assert len(driver.state.clocks.sources) == 10_000
    assert len(driver.state.to_bytes()) < 1 << 20
    assert driver.state.clocks.low_watermark_ms == 101


def test_countless_source_partitions_are_refused() -> None:
    driver = drive(horizon_ms=100_000, bucket_ms=10_000)
    with pytest.raises(ConfigError, match=r"more than 20,000 source partitions.*not a record"):
        sources(driver, MAX_SOURCES + 1, 100)
    assert driver.state.clocks.low_watermark_ms == NEVER_MS


@SEALED_OR_NOT
def test_ids_that_share_a_hash_are_distinguished(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hash collisions cost a lookup, never a record (invariant 8)."""
    real = kernel.hash64

    def two_values(data: U8, offsets: I64, key: bytes) -> U64:
        return real(data, offsets, key) & np.uint64(1 << 63)

    monkeypatch.setattr(kernel, "hash64", two_values)
    driver = drive(state_budget_bytes=budget)
    ids = [b"%d" % n for n in range(40)]
    for first in (0, 20):
        new = [Rec(record_id, 100) for record_id in ids[first : first + 20]]
        assert driver.named([*new, *new]) == ["UNIQUE"] * 20 + ["DUPLICATE"] * 20
    assert driver.named([Rec(record_id, 101) for record_id in ids]) == ["DUPLICATE"] * 40
