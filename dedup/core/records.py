"""The input of a shard in one micro-batch: its records, and facts about the micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

import numpy as np

from dedup.core.admission import FLAG_FUTURE, FLAG_NULL_ID, FLAG_NULL_TIME, FLAG_UNTIMED
from dedup.core.clocks import Observed
from dedup.core.keys import Keys
from dedup.kernel.arrays import I64, U8, U64

#: The state of a shard of either operator.
S = TypeVar("S", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Records:
    """The n records of a shard in one micro-batch, in any order."""

    #: Canonical IDs, or empty bytes if the ID is null.
    keys: Keys
    #: Timestamps, in which the micro-batch's time replaces future and null timestamps. Ignored in
    #: processing-time mode, and for untimed records.
    times_ms: I64
    #: Flags of each record: the constants FLAG_... of `dedup.core.admission`.
    flags: U8
    #: What the whole micro-batch observed of each source partition.
    observed: Mapping[str, Observed]
    #: Number of heartbeats of the whole micro-batch, in one shard. The other shards have 0.
    heartbeats: int = 0
    #: Function that returns ranks of records by the user's order columns, then by the row's hash.
    tie_rank: Callable[[I64], I64]
    #: Hash of each record's source partition, to count records by partition.
    sources: U64 | None = None
    #: Hash by name of source partition, as in `sources`.
    source_hashes: Mapping[str, int] | None = None
    #: Keyed hash of each record's payload, if the policy compares payloads.
    payload_hashes: U64 | None = None
    #: Epoch and sequence of each record, for `dedup_by_sequence`. Undefined for a record with
    #: FLAG_NULL_ID.
    numbers: tuple[I64, I64] | None = None

    @property
    def judgeable(self) -> I64:
        """Positions of the records that have an ID and a time."""
        return np.flatnonzero((self.flags & (FLAG_NULL_ID | FLAG_UNTIMED)) == 0)

    def counts(self, verdicts: U8, kinds: type[IntEnum]) -> dict[str, int]:
        """Return the metrics that count records by verdict or by flag."""
        per_verdict = np.bincount(verdicts, minlength=len(kinds)).tolist()
        return {
            "records_in": len(verdicts),
            **{kind.name.lower(): per_verdict[kind] for kind in kinds},
            "future": int(np.count_nonzero(self.flags & FLAG_FUTURE)),
            "null_timestamp": int(np.count_nonzero(self.flags & FLAG_NULL_TIME)),
            "heartbeats": self.heartbeats,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Outcome(Generic[S]):
    """The verdict of each record, the next state, and counts for the metrics."""

    verdicts: U8
    state: S
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Which micro-batch and which shard is being processed."""

    #: Micro-batch ID.
    number: int
    run_id: str
    #: Time of the micro-batch, which a replay repeats. `worker_now_ms` is by the worker's clock.
    now_ms: int
    worker_now_ms: int
    shard: int
    #: Secret key of the hashes for filters and segments, 16 bytes.
    hash_key: bytes
