"""Digests of payloads, which show whether copies of a record differ beside their ID.

The payload of a record is a set of columns that the user chose. A digest has 8 bytes. The highest
byte is the number of the set of columns. The query numbers these sets from 1 on, in the order of
first use. The other bytes are from a keyed hash of the values. 0 means no digest. Digests of
different sets cannot be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dedup.core.horizon import within_horizon
from dedup.errors import ConfigError
from dedup.kernel.arrays import BOOL, I64, U64

#: Largest number of sets of columns that a query can use in its life.
MAX_COLUMN_SETS = 255
_SHIFT = np.uint64(56)


def numbered(column_sets: Sequence[str], wanted: str) -> tuple[tuple[str, ...], int]:
    """Return the sets of columns, with ``wanted`` added if it is new, and ``wanted``'s number."""
    known = tuple(column_sets)
    if wanted not in known:
        known = (*known, wanted)
    if len(known) > MAX_COLUMN_SETS:
        raise ConfigError(
            f"check_payload has named more than {MAX_COLUMN_SETS} different sets of columns in the "
            "life of this query. Use an earlier set, leave check_payload out, or start over with "
            "a new checkpoint."
        )
    return known, known.index(wanted) + 1


def digests_of(hashes: U64, column_set: int) -> U64:
    """Return the digests of payloads, from their keyed hashes and their set's number."""
    digests: U64 = (hashes >> np.uint64(8)) | (np.uint64(column_set) << _SHIFT)
    return digests


def comparable(digests: U64, others: U64) -> BOOL:
    """Return for each pair of digests whether both are of the same set of columns."""
    same: BOOL = ((digests >> _SHIFT) == (others >> _SHIFT)) & (digests != 0)
    return same


def renumbered(digests: U64, column_sets: Sequence[str], known: Sequence[str]) -> U64:
    """Return the digests with the numbers that their sets of columns have in ``known``."""
    numbers = np.array([0, *(known.index(one) + 1 for one in column_sets)], np.uint64)
    kept: U64 = digests & ((np.uint64(1) << _SHIFT) - np.uint64(1))
    return kept | (numbers[(digests >> _SHIFT).astype(np.int64)] << _SHIFT)


def joined_digests(parts: Sequence[tuple[int, U64 | None]]) -> U64 | None:
    """Concatenate the digests of parts, or return None if no part has digests.

    A part is its length and its digests. If other parts have digests, a part without them gets 0.
    """
    if all(digests is None for _, digests in parts):
        return None
    return np.concatenate(
        [np.zeros(n, np.uint64) if digests is None else digests for n, digests in parts]
    )


@dataclass(frozen=True, slots=True, eq=False)
class Digested:
    """Records or remembered entries: for each the number of its ID, its time and its digest."""

    groups: I64
    times_ms: I64
    digests: U64

    def take(self, index: I64) -> Digested:
        return Digested(self.groups[index], self.times_ms[index], self.digests[index])


def pairs_in_groups(groups: I64, others: I64) -> tuple[I64, I64]:
    """Return the positions of all pairs of equal numbers in ``groups`` and sorted ``others``."""
    start = np.searchsorted(others, groups, "left")
    count = np.searchsorted(others, groups, "right") - start
    index = np.repeat(np.arange(len(groups)), count)
    return index, np.arange(len(index)) + np.repeat(start - (np.cumsum(count) - count), count)


def compare(duplicates: Digested, taken: Digested, horizon_ms: int) -> tuple[BOOL, BOOL]:
    """Return a mask of the duplicates that conflict, and a mask of those that cannot be compared.

    ``taken`` are the remembered records with the same IDs. The payload of a duplicate is compared
    with the payloads of all taken records of its ID within the horizon. The duplicate conflicts if
    at least one of these payloads can be compared and no payload is equal.
    """
    order = np.argsort(duplicates.groups, kind="stable")
    groups = duplicates.groups[order]
    entry, place = pairs_in_groups(taken.groups, groups)
    record = order[place]
    taken_ms = taken.times_ms[entry]
    near = within_horizon(duplicates.times_ms[record], taken_ms, taken_ms, horizon_ms)
    record, entry = record[near], entry[near]
    mine, theirs = duplicates.digests[record], taken.digests[entry]
    same = np.zeros(len(groups), np.bool_)
    known = np.zeros(len(groups), np.bool_)
    same[record[(mine == theirs) & (mine != 0)]] = True
    known[record[comparable(mine, theirs)]] = True
    return known & ~same, ~known
