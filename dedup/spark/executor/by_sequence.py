"""Judges a shard's records for `dedup_by_sequence`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dedup import kernel
from dedup.core.clocks import known_ms
from dedup.core.records import Outcome, Records
from dedup.core.sequence import SequenceVerdict
from dedup.core.sequence_metrics import SEQUENCE_NAMES
from dedup.core.sequence_shard import process_sequences
from dedup.core.sequence_state import SequenceState
from dedup.core.sharding import shards_of
from dedup.errors import ConfigError, DataError
from dedup.kernel.arrays import I64
from dedup.spark.executor.bad_records import first_of
from dedup.spark.executor.call import Call
from dedup.spark.executor.task import misplaced
from dedup.spark.plan import Numbering

#: For each verdict, the option that refuses it with "error", and a description of the records.
_REFUSED = {
    SequenceVerdict.GAP: (
        "gaps",
        "out of order: earlier ones of their producer are missing, or they come late",
    ),
    SequenceVerdict.UNKNOWN: ("unknown", "of unknown producers, or older than their memory"),
    SequenceVerdict.FENCED: ("fenced", "of an epoch that a newer one of their producer has ended"),
}


@dataclass(frozen=True, slots=True)
class BySequence(Call):
    """One call of the group function for `dedup_by_sequence`."""

    NAMES = SEQUENCE_NAMES

    @property
    def _numbering(self) -> Numbering:
        assert self.plan.numbering is not None
        return self.plan.numbering

    def base(self, row: bytes | None) -> tuple[SequenceState, dict[str, int]]:
        base = SequenceState() if row is None else SequenceState.from_bytes(row)
        if not self.plan.streaming:
            return base, {}
        self.task.check_follows(base.epoch)
        return self._bound_to_query(base), {}

    def judge(self, base: SequenceState) -> Outcome[SequenceState]:
        rule, records = self._numbering.rule, self.input.records()
        if not self.plan.streaming:  # nothing is kept
            rule = replace(rule, max_producers=1 << 62)
        outcome = process_sequences(base, records, rule, self.plan.policy, self.epoch)
        for verdict, (option, what) in _REFUSED.items():
            bad = np.flatnonzero(outcome.verdicts == verdict)
            if len(bad) and getattr(rule, option) == "error":
                raise self._refusal(records, bad, option, what)
        self.watch.lap("judge")
        return outcome

    def _refusal(self, records: Records, bad: I64, option: str, what: str) -> DataError:
        assert records.numbers is not None
        epochs, sequences = (numbers[bad] for numbers in records.numbers)
        first = np.lexsort((sequences, epochs))[:1]
        (row,) = self.input.rows(bad[first]).to_batches()
        return DataError(
            f'{len(bad)} records are {what}, and {option}="error" is set. '
            f"{first_of(self.plan, row, np.ones(1, np.bool_))} It is sequence "
            f"{sequences[first[0]]} of epoch {epochs[first[0]]}. Nothing of this micro-batch was "
            "emitted. Check what happened to the producer, then restart with "
            f'{option}="emit" or "drop".',
            remedy="bad-records",
        )

    def _bound_to_query(self, base: SequenceState) -> SequenceState:
        """Return the state, bound to this query's columns and shard."""
        made_of, shard = self._numbering.made_of, self.shard
        shards = len(self.layout.slot_keys)
        if base.epoch < 0:
            return replace(base, shard=(shard, shards), made_of=made_of)
        if base.shard[1] != shards:
            raise ConfigError(
                f"This query has {base.shard[1]} shards, and is started with {shards}. Give "
                f"shards={base.shard[1]}. This micro-batch was not committed, and its verdicts are "
                "wrong.",
                remedy="changed-settings",
            )
        if base.shard[0] != shard:
            other = "shard {} of {}".format(*base.shard)
            raise SequenceState.damaged(f"it belongs to {other}, and this is {shard} of {shards}")
        if base.made_of != made_of:
            was = [text for text in base.made_of if text not in made_of] or base.made_of
            now = [text for text in made_of if text not in base.made_of] or made_of
            raise ConfigError(
                f"This query was begun with {', '.join(was)}, and is started with "
                f"{', '.join(now)}: its memory would be compared with other numbers. Give the "
                "options that it was begun with (before the operator, rename a column back by "
                "withColumnRenamed, or cast it back by withColumn), or start over with another "
                "checkpoint.",
                remedy="changed-settings",
            )
        keys = base.producers.keys
        hashes = kernel.hash64(keys.data, keys.offsets, self.layout.shard_key)
        if (shards_of(hashes, shards) != shard).any():
            raise misplaced("names another query than the one whose state it got")
        return base

    def levels(self, outcome: Outcome[SequenceState]) -> dict[str, int | None]:
        clocks, producers = outcome.state.clocks, len(outcome.state.producers)
        policy = self.plan.policy
        return {
            "producers": producers,
            "fullest_shard_producers": producers,
            "now_ms": known_ms(clocks.now_ms),
            "newest_ms": known_ms(clocks.newest_ms),
            "low_watermark_ms": known_ms(clocks.low_watermark_ms),
            "expired_before_ms": known_ms(clocks.gc_watermark_ms) if policy.event_time else None,
            "expire_after_ms": policy.horizon_ms,
            "max_producers": self._numbering.rule.max_producers,
        }
