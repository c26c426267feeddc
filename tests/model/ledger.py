"""The oracle: every record that passed, and the two clauses of the guarantee over them.

It knows nothing of buckets, filters, segments or manifests.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from dedup.core.arrival import Verdict
from dedup.core.policy import Policy


@dataclass(frozen=True)
class Judged:
    """A record and its verdict, under its effective timestamp."""

    id: bytes | None
    effective_ms: int
    rank: int
    late: bool
    untimed: bool
    verdict: Verdict


@dataclass
class Ledger:
    """Records that passed: by ID, their effective timestamps and micro-batches."""

    passed: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    #: The same in order of emission, to draw from.
    in_order: list[tuple[bytes, int, int]] = field(default_factory=list)
    #: Horizon of each micro-batch.
    horizons_ms: list[int] = field(default_factory=list)

    def sample(self, rng: Random, *, recent: bool) -> tuple[bytes, int] | None:
        """An ID that passed, and its time; None if no ID has passed."""
        if not self.in_order:
            return None
        some = self.in_order[-40:] if recent else self.in_order
        record_id, time_ms, _ = rng.choice(some)
        return record_id, time_ms

    def copy(self) -> Ledger:
        """A ledger that goes its own way."""
        return copy.deepcopy(self)

    def roll_back(self, batch: int) -> None:
        """Forget everything from a micro-batch on."""
        del self.horizons_ms[batch:]
        self.in_order = [entry for entry in self.in_order if entry[2] < batch]
        self.passed = {}
        for record_id, time_ms, taken in self.in_order:
            self.passed.setdefault(record_id, []).append((time_ms, taken))

    def judge(self, records: Iterable[Judged], policy: Policy, batch: int) -> None:
        """Check the verdicts of a micro-batch that is committed, and take what passed."""
        assert len(self.horizons_ms) == batch
        self.horizons_ms.append(policy.horizon_ms)
        for record in sorted(records, key=lambda r: (r.effective_ms, r.rank)):
            if record.id is None:
                assert record.verdict == Verdict.NULL_ID, f"{record} has no ID"
                continue
            if record.untimed:
                assert record.verdict == Verdict.UNTIMED, f"{record} has no time"
                continue
            same = self.passed.get(record.id, [])
            near = [
                (time_ms, taken)
                for time_ms, taken in same
                if abs(time_ms - record.effective_ms) <= policy.horizon_ms
            ]
            if record.verdict == Verdict.DUPLICATE:
                assert near, f"clause 2: {record} has no reason to be dropped; passed: {same}"
                continue
            assert record.verdict == (Verdict.LATE if record.late else Verdict.UNIQUE), record
            emitted = record.verdict == Verdict.UNIQUE or policy.late == "emit"
            # If late records are dropped anyway, their duplicates need no verdict of DUPLICATE.
            if emitted or not policy.forgets_at_late:
                close = [entry for entry in near if self._covers(entry, record.effective_ms)]
                assert not close, f"clause 1: {record} passed although {close} did"
            if emitted:
                self.passed.setdefault(record.id, []).append((record.effective_ms, batch))
                self.in_order.append((record.id, record.effective_ms, batch))

    def _covers(self, entry: tuple[int, int], time_ms: int) -> bool:
        """Whether the guarantee covers the pair: the shortest horizon since then does."""
        taken_ms, taken = entry
        return abs(taken_ms - time_ms) <= min(self.horizons_ms[taken:])
