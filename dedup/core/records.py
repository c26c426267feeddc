"""What a shard is given of one micro-batch: its records, and which micro-batch it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dedup.core.arrays import I64, U8, U64
from dedup.core.clocks import Observed
from dedup.core.keys import Keys


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Records:
    """A shard's records of one micro-batch, in any order.

    Parameters
    ----------
    keys : Keys, length n
        Canonical IDs; empty bytes where the ID is null.
    times_ms : int64 array, shape (n,)
        Timestamps, future and null ones already substituted by the micro-batch's time; ignored in
        processing-time mode, and of untimed records.
    flags : uint8 array, shape (n,)
        FLAG_NULL_ID, FLAG_FUTURE, FLAG_NULL_TIME, FLAG_UNTIMED of `dedup.core.admission`.
    sources : uint64 array, shape (n,), or None
        Hash of each record's source partition, for counting.
    observed : mapping of source partition to Observed
        From the whole micro-batch.
    source_hashes : mapping of source partition to int
        The hashes used in `sources`.
    payload_hashes : uint64 array, shape (n,), or None
        Keyed hash of each record's payload, where the policy names one.
    numbers : tuple of two int64 arrays, shape (n,), or None
        Epoch and sequence of each record, for `dedup.core.sequence_shard`; anything where
        FLAG_NULL_ID is set.
    tie_rank : callable
        Ranks of the given records by order columns, then row hash.
    """

    keys: Keys
    times_ms: I64
    flags: U8
    observed: Mapping[str, Observed]
    tie_rank: Callable[[I64], I64]
    sources: U64 | None = None
    source_hashes: Mapping[str, int] | None = None
    payload_hashes: U64 | None = None
    numbers: tuple[I64, I64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Which micro-batch this is, and for whom.

    Parameters
    ----------
    number : int
        Micro-batch ID.
    run_id : str
        The query's run.
    now_ms, worker_now_ms : int
        Time of the micro-batch, stable under replay; the worker's own clock.
    shard : int
    hash_key : bytes
        16 bytes: the key of the filters' hash.
    """

    number: int
    run_id: str
    now_ms: int
    worker_now_ms: int
    shard: int
    hash_key: bytes
