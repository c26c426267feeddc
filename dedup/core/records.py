"""The input of a shard in one micro-batch: its records, and which micro-batch it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dedup.core.arrays import I64, U8, U64
from dedup.core.clocks import Observed
from dedup.core.keys import Keys


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Records:
    """A shard's n records of one micro-batch, in any order.

    Parameters
    ----------
    keys
        Canonical IDs; empty bytes if the ID is null.
    times_ms
        Timestamps. The micro-batch's time already replaces future and null ones. Ignored in
        processing-time mode, and for untimed records.
    flags
        FLAG_NULL_ID, FLAG_FUTURE, FLAG_NULL_TIME, FLAG_UNTIMED of `dedup.core.admission`.
    sources
        Hash of each record's source partition, for counting.
    observed
        By source partition, from the whole micro-batch.
    source_hashes
        By source partition: the hashes used in `sources`.
    payload_hashes
        Keyed hash of each record's payload, if the policy compares payloads.
    numbers
        Epoch and sequence of each record, for `dedup.core.sequence_shard`; undefined if
        FLAG_NULL_ID is set.
    tie_rank
        Returns the ranks of records by order columns, then row hash.
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
    """Which micro-batch this is, and of which shard.

    Parameters
    ----------
    number
        Micro-batch ID.
    now_ms, worker_now_ms
        Time of the micro-batch, the same after a replay; time by the worker's own clock.
    hash_key
        16 bytes: the key of the filters' hash.
    """

    number: int
    run_id: str
    now_ms: int
    worker_now_ms: int
    shard: int
    hash_key: bytes
