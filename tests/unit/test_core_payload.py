"""Copies of a record that say something else than the record which passed."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest

from dedup.core.payload import MAX_COLUMN_SETS, digests_of, numbered
from dedup.core.state import ShardState
from dedup.errors import ConfigError, StateError
from tests.support.memory_store import KEY_ID
from tests.support.shard_driver import EVENT, SEALED_OR_NOT, Driver, Rec, X, Y, drive


def comparing(budget: int = 1 << 20, payload: str = "all") -> Driver:
    return drive(replace(EVENT, payload=payload), state_budget_bytes=budget, lateness_ms=600)


@SEALED_OR_NOT
def test_a_copy_that_differs_is_a_conflict(budget: int) -> None:
    driver = comparing(budget)
    driver.feed([Rec(X, 0, payload=1), Rec(Y, 0, payload=1)])
    copies = [Rec(X, 10, payload=1), Rec(X, 11, payload=2), Rec(Y, 12, payload=3)]
    assert driver.named(copies) == ["DUPLICATE", "CONFLICT", "CONFLICT"]
    assert (driver.count("duplicate"), driver.count("conflict")) == (1, 2)
    assert driver.count("payload_unknown") == 0
    # It is compared with what passed, not with other copies.
    assert driver.named([Rec(X, 20, payload=2)]) == ["CONFLICT"]


@SEALED_OR_NOT
def test_a_copy_is_compared_with_each_emitted_record_within_the_horizon(budget: int) -> None:
    driver = comparing(budget)
    driver.feed([Rec(X, 0, payload=1), Rec(X, 100, payload=2)])
    assert driver.named([Rec(X, 50, payload=3)]) == ["CONFLICT"]
    # Further than the horizon from the one, within it of the other.
    assert driver.named([Rec(X, 130, payload=1)]) == ["CONFLICT"]
    assert driver.named([Rec(X, 131, payload=2)]) == ["DUPLICATE"]


@SEALED_OR_NOT
def test_records_digested_by_no_or_other_columns_cannot_be_compared(budget: int) -> None:
    driver = drive(EVENT, state_budget_bytes=budget, lateness_ms=600)
    driver.feed([Rec(X, 0, payload=1)])
    driver.retune(payload="all")
    driver.feed([Rec(Y, 0, payload=1)])
    copies = [Rec(X, 10, payload=2), Rec(Y, 10, payload=2)]
    assert driver.named(copies) == ["DUPLICATE", "CONFLICT"]
    assert driver.count("payload_unknown") == 1
    driver.retune(payload="some")
    assert driver.named(copies) == ["DUPLICATE", "DUPLICATE"]
    assert driver.count("payload_unknown") == 2
    driver.retune(payload="all")
    assert driver.named(copies) == ["DUPLICATE", "CONFLICT"]


def test_without_a_payload_no_digests_are_kept() -> None:
    plain, driver = drive(state_budget_bytes=0), comparing(0)
    for each in (plain, driver):
        each.feed([Rec(X, 0, payload=1), Rec(Y, 1, payload=1)])
    assert not plain.store.digests
    digested = set(driver.store.digests)
    assert digested
    driver.retune(payload=None)
    assert driver.named([Rec(X, 2, payload=9)]) == ["DUPLICATE"]
    driver.feed([Rec(b"new", 3)])
    assert driver.store.written > len(digested)
    assert set(driver.store.digests) == digested


def test_the_state_row_holds_digests_from_the_first_payload_on() -> None:
    driver = comparing()
    assert ShardState.from_bytes(driver.state.to_bytes(), hash_key_id=0).tail.digests is None
    driver.feed([Rec(X, 0, payload=1)])
    row = driver.state.to_bytes()
    back = ShardState.from_bytes(row, hash_key_id=KEY_ID)
    assert back.payloads == ("all",)
    assert back.tail.digests is not None
    assert back.tail.digests is not None
    assert back.tail.digests.tolist() == digests_of(np.array([256], np.uint64), 1).tolist()
    assert back.to_bytes() == row
    for version in (3, 4):
        other = row[:4] + bytes([version]) + row[5:20]
        with pytest.raises(StateError):
            ShardState.from_bytes(
                other + struct.pack("<I", zlib.crc32(other)) + row[24:], hash_key_id=KEY_ID
            )


def test_a_query_has_a_bounded_number_of_column_sets() -> None:
    names = tuple(f"set{n}" for n in range(MAX_COLUMN_SETS))
    assert numbered(names[:-1], names[-1]) == (names, MAX_COLUMN_SETS)
    assert numbered(names, "set7") == (names, 8)
    with pytest.raises(ConfigError, match="more than 255 different sets of columns"):
        numbered(names, "one more")


def test_digests_of_two_column_sets_differ() -> None:
    hashes = np.array([0, 1, 2**64 - 1], np.uint64)
    one, other = digests_of(hashes, 1), digests_of(hashes, 2)
    assert not set(one.tolist()) & set(other.tolist())
    assert 0 not in one.tolist()
