"""A shard of `dedup_by_sequence` without Spark: lists of records in, lists of verdicts out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dedup.core.admission import FLAG_NULL_ID
from dedup.core.clocks import Observed
from dedup.core.keys import Keys
from dedup.core.policy import Policy
from dedup.core.records import Epoch, Outcome, Records
from dedup.core.sequence import SEQUENCE_VERDICTS, SequenceRule
from dedup.core.sequence_shard import process_sequences
from dedup.core.sequence_state import SequenceState
from dedup.kernel.arrays import I64

#: Producer, epoch and sequence, each or None.
Numbered = tuple[str, int, int] | None


@dataclass
class SequenceShard:
    """Micro-batches one after another; the state goes through its bytes each time."""

    rule: SequenceRule = field(default_factory=SequenceRule)
    policy: Policy = field(default_factory=lambda: Policy(horizon_ms=1000, bucket_ms=1000))
    row: bytes | None = None
    number: int = 0
    run_id: str = "run"
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def state(self) -> SequenceState:
        return SequenceState() if self.row is None else SequenceState.from_bytes(self.row)

    def judge(
        self, records: Sequence[Numbered], *, now_ms: int = 0, times_ms: Sequence[int] | None = None
    ) -> Outcome[SequenceState]:
        """Judge without going on."""
        given = [record or ("", 0, 0) for record in records]
        flags = np.array([FLAG_NULL_ID * (record is None) for record in records], np.uint8)
        times = np.array(times_ms if times_ms is not None else [0] * len(records), np.int64)
        observed = {"": Observed(int(times.max()), len(times))} if times_ms else {}
        made = Records(
            keys=Keys.from_list([producer.encode() for producer, _, _ in given]),
            times_ms=times,
            flags=flags,
            observed=observed,
            tie_rank=_by_place,
            numbers=(
                np.array([epoch for _, epoch, _ in given], np.int64),
                np.array([sequence for _, _, sequence in given], np.int64),
            ),
        )
        epoch = Epoch(
            number=self.number, run_id=self.run_id, now_ms=now_ms, worker_now_ms=now_ms, shard=0,
            hash_key=b"0123456789abcdef",
        )  # fmt: skip
        return process_sequences(self.state, made, self.rule, self.policy, epoch)

    def batch(
        self, records: Sequence[Numbered], *, now_ms: int = 0, times_ms: Sequence[int] | None = None
    ) -> list[str]:
        """Return the verdicts of one micro-batch, and commit it."""
        outcome = self.judge(records, now_ms=now_ms, times_ms=times_ms)
        self.row, self.number = outcome.state.to_bytes(), self.number + 1
        self.counts = dict(outcome.counts)
        return [SEQUENCE_VERDICTS[code] for code in outcome.verdicts]


def _by_place(index: I64) -> I64:
    return np.argsort(np.argsort(index))
