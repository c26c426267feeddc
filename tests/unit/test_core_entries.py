from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup import kernel
from dedup.core.entries import Entries, merged
from dedup.core.keys import Keys
from tests.support.memory_store import HASH_KEY


def entries(ids: list[bytes]) -> Entries:
    keys = Keys.from_list(ids)
    times_ms = np.array([sum(key) for key in ids], np.int64)
    return Entries.in_order(keys, kernel.hash64(keys.data, keys.offsets, HASH_KEY), times_ms)


def rows(some: Entries) -> list[tuple[bytes, int, int]]:
    return list(zip(some.keys, some.hashes.tolist(), some.times_ms.tolist(), strict=True))


@given(
    st.sets(st.binary(max_size=6), max_size=60),
    st.integers(1, 5),
    st.lists(st.integers(0, 2**64 - 1), max_size=5),
)
@settings(max_examples=100, deadline=None)
def test_merged_pieces_come_out_in_order_and_cut_at_the_bounds(
    ids: set[bytes], n: int, bounds: list[int]
) -> None:
    whole = entries(sorted(ids))
    pieces = [entries(sorted(ids)[nth::n]) for nth in range(n)]
    bounds = sorted(bounds)
    chunks = list(merged(pieces, np.array(bounds, np.uint64)))
    assert [row for chunk in chunks for row in rows(chunk)] == rows(whole)
    for chunk in chunks:
        first, last = int(chunk.hashes[0]), int(chunk.hashes[-1])
        assert not any(first < bound <= last for bound in bounds)


def test_a_slice_holds_the_entries_between() -> None:
    whole = entries([b"a", b"bb", b"", b"dddd"])
    assert rows(whole[1:3]) == rows(whole)[1:3]
    assert rows(whole[2:2]) == []
