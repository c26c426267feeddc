"""The distinct IDs of a micro-batch: each is looked up once, however many records carry it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dedup import kernel
from dedup.core.arrays import I64, U64
from dedup.core.keys import Keys


@dataclass(frozen=True, slots=True, eq=False)
class DistinctIds:
    """The distinct IDs of a micro-batch, and the times at which they occur."""

    keys: Keys
    hashes: U64
    #: Range of the effective timestamps of the ID's records.
    first_ms: I64
    last_ms: I64
    #: Range of the timestamps that the records carried themselves, as far as known.
    own_first_ms: I64
    own_last_ms: I64

    def __len__(self) -> int:
        return len(self.keys)


def distinct_ids(
    keys: Keys, times_ms: I64, own_first_ms: I64, own_last_ms: I64, *, hash_key: bytes
) -> tuple[DistinctIds, I64]:
    """Return the distinct IDs of n records, and for each record the first with the same ID.

    Parameters
    ----------
    times_ms
        Effective timestamps, shape (n,).
    own_first_ms, own_last_ms
        Range of the timestamp that the record carried itself, shape (n,).
    hash_key
        16 bytes: the key of the filters' hash.
    """
    hashes = kernel.hash64(keys.data, keys.offsets, hash_key)
    first = kernel.first_occurrence(keys.data, keys.offsets, hashes)
    is_first = first == np.arange(len(first))
    if is_first.all():
        return DistinctIds(keys, hashes, times_ms, times_ms, own_first_ms, own_last_ms), first
    distinct, repeats = np.flatnonzero(is_first), np.flatnonzero(~is_first)
    repeated = (np.cumsum(is_first) - 1)[first[repeats]]

    def over_copies(choose: np.ufunc, values: I64) -> I64:
        chosen = values[distinct]
        choose.at(chosen, repeated, values[repeats])
        return chosen

    ids = DistinctIds(
        keys.take(distinct),
        hashes[distinct],
        over_copies(np.minimum, times_ms),
        over_copies(np.maximum, times_ms),
        over_copies(np.minimum, own_first_ms),
        over_copies(np.maximum, own_last_ms),
    )
    return ids, first
