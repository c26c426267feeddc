"""Tests that defects put into the source on purpose showed to be missing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from dedup import kernel
from dedup.catalog.certificate import Certificate
from dedup.core.keys import Keys
from dedup.errors import CatalogError
from tests.support.shard_driver import SEALED_OR_NOT, Rec, drive

U64s = npt.NDArray[np.uint64]


@SEALED_OR_NOT
def test_ids_that_share_a_hash_are_told_apart(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash collisions cost a lookup, never a record (invariant 8)."""
    real = kernel.hash64

    def two_values(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], key: bytes) -> U64s:
        return real(data, offsets, key) & np.uint64(1 << 63)

    monkeypatch.setattr(kernel, "hash64", two_values)
    driver = drive(state_budget_bytes=budget)
    ids = [b"%d" % n for n in range(40)]
    for first in (0, 20):
        new = [Rec(record_id, 100) for record_id in ids[first : first + 20]]
        assert driver.named([*new, *new]) == ["UNIQUE"] * 20 + ["DUPLICATE"] * 20
    assert driver.named([Rec(record_id, 101) for record_id in ids]) == ["DUPLICATE"] * 40


def test_the_first_of_keys_that_share_a_hash() -> None:
    keys = Keys.from_list([b"a", b"b", b"a", b"c", b"b"])
    first = kernel.first_occurrence(keys.data, keys.offsets, np.zeros(5, np.uint64))
    assert first.tolist() == [0, 1, 0, 3, 1]


@SEALED_OR_NOT
def test_a_copy_whose_time_lies_in_the_future_now_is_found_under_it(budget: int) -> None:
    """It was the record's own before the driver's clock was set back."""
    driver = drive(state_budget_bytes=budget, stable_timestamps=True)
    assert driver.named([Rec(b"x", 1040)], 1000) == ["UNIQUE"]
    assert driver.named([Rec(b"x", 1040)], 400) == ["DUPLICATE"]


def test_every_flipped_bit_of_a_certificate_is_damage() -> None:
    """Another ID column of the same type would silently drop unique rows (invariant 14)."""
    whole = Certificate(
        query_id="query", id_columns=(("order", "string"),), encoding="text",
        timestamp_source="column ts", stable_timestamps=False, shards=1, slot_keys=(0,),
        hash_key_id=1, birth_batch=0,
    ).to_bytes()  # fmt: skip
    assert Certificate.from_bytes(whole, "here").query_id == "query"
    for at in range(len(whole.rstrip())):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            with pytest.raises(CatalogError):
                Certificate.from_bytes(bytes(damaged), "here")
