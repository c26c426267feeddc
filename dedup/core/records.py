"""The input of a shard in one micro-batch: its records, and which micro-batch it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from dedup.core.admission import FLAG_FUTURE, FLAG_NULL_ID, FLAG_NULL_TIME, FLAG_UNTIMED
from dedup.core.arrays import I64, U8, U64
from dedup.core.clocks import Observed
from dedup.core.keys import Keys


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Records:
    """A shard's n records of one micro-batch, in any order."""

    #: Canonical IDs, or empty bytes if the ID is null.
    keys: Keys
    #: Timestamps. The micro-batch's time already replaces future and null ones. Ignored in
    #: processing-time mode, and for untimed records.
    times_ms: I64
    #: FLAG_NULL_ID, FLAG_FUTURE, FLAG_NULL_TIME, FLAG_UNTIMED of `dedup.core.admission`.
    flags: U8
    #: What the whole micro-batch observed of each source partition.
    observed: Mapping[str, Observed]
    #: Returns the ranks of records by order columns, then row hash.
    tie_rank: Callable[[I64], I64]
    #: Hash of each record's source partition, for counting.
    sources: U64 | None = None
    #: The hash that stands for each source partition in `sources`.
    source_hashes: Mapping[str, int] | None = None
    #: Keyed hash of each record's payload, if the policy compares payloads.
    payload_hashes: U64 | None = None
    #: Epoch and sequence of each record, for `dedup.core.sequence_shard`. Undefined if FLAG_NULL_ID
    #: is set.
    numbers: tuple[I64, I64] | None = None

    @property
    def judgeable(self) -> I64:
        """Positions of the records that have an ID and a time."""
        return np.flatnonzero((self.flags & (FLAG_NULL_ID | FLAG_UNTIMED)) == 0)

    def counts(self, verdicts: U8, kinds: type[IntEnum]) -> dict[str, int]:
        """Return the number of records by verdict and by flag, for the metrics."""
        per_verdict = np.bincount(verdicts, minlength=len(kinds)).tolist()
        return {
            "records_in": len(verdicts),
            **{kind.name.lower(): per_verdict[kind] for kind in kinds},
            "future": int(np.count_nonzero(self.flags & FLAG_FUTURE)),
            "null_timestamp": int(np.count_nonzero(self.flags & FLAG_NULL_TIME)),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The micro-batch and the shard that are processed."""

    #: Micro-batch ID.
    number: int
    run_id: str
    #: Time of the micro-batch, the same after a replay, and time by the worker's own clock.
    now_ms: int
    worker_now_ms: int
    shard: int
    #: Key of the filters' hash, 16 bytes.
    hash_key: bytes
