"""Process one micro-batch of numbered records of one shard: return verdicts and the next state.

The result depends only on the state before and the records, as in `dedup.core.shard`. The records
of a producer in a micro-batch are judged in the order of epoch and position, whatever their order
of arrival (invariant 15). Positions and runs are those of `dedup.core.sequence`. Of several copies,
the copy that ranks first counts as the original (invariant 6).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from dedup import kernel
from dedup.core.admission import FLAG_NULL_ID
from dedup.core.clocks import Clocks
from dedup.core.keys import Keys
from dedup.core.policy import Policy
from dedup.core.producers import Producers
from dedup.core.records import Epoch, Outcome, Records
from dedup.core.sequence import (
    CYCLE,
    HALF_CYCLE,
    ProducerMemory,
    SequenceRule,
    SequenceVerdict,
    judge_run,
)
from dedup.core.sequence_state import SequenceState
from dedup.core.shard import effective_times
from dedup.errors import ConfigError
from dedup.kernel.arrays import BOOL, I64, U8

#: If records carry no timestamps, a producer is forgotten after at least this many micro-batches
#: without a record.
SILENT_BATCHES = 4


def process_sequences(
    state: SequenceState, records: Records, rule: SequenceRule, policy: Policy, epoch: Epoch
) -> Outcome[SequenceState]:
    """Judge a shard's records, and remember what their producers have sent.

    Only the policy's fields for the clocks have an effect. A producer that is silent for longer
    than the horizon is forgotten. Silence is measured in event time if records carry timestamps,
    and else in query time. In query time, the time between two micro-batches counts for at most the
    horizon divided by `SILENT_BATCHES`. For records that the rule handles as ``"error"`` the caller
    raises the error.

    Raises ClockError if the processing time cannot be right (invariant 11), ConfigError if there
    are more producers than the rule allows, and StateError if the state holds a producer twice.
    """
    clocks = state.clocks
    clocks.check_jump(
        now_ms=epoch.now_ms, worker_now_ms=epoch.worker_now_ms, run_id=epoch.run_id, policy=policy
    )
    assert records.numbers is not None, "their columns are needed"
    verdicts = np.full(len(records.flags), SequenceVerdict.UNTIMED, np.uint8)
    verdicts[(records.flags & FLAG_NULL_ID) != 0] = SequenceVerdict.UNNUMBERED
    judgeable = records.judgeable
    producers, counts = state.producers, Counter[str]()
    advanced = _advanced(clocks, records, policy, epoch)
    if len(judgeable):
        times_ms = np.full(len(judgeable), advanced.query_time_ms)
        if policy.event_time:
            times_ms = effective_times(records, clocks, policy, epoch)[0][judgeable]
        judging = _NumberedRecords.begin(producers, records, epoch.hash_key, rule, counts)
        verdicts[judgeable] = judging.run()
        # Fenced records do not keep a producer alive, as in Kafka's broker. Otherwise an epoch that
        # was raised by mistake would never expire.
        alive = verdicts[judgeable] != SequenceVerdict.FENCED
        np.maximum.at(judging.table.heard_ms, judging.rows[alive], times_ms[alive])
        producers = judging.table.where(judging.table.counts > 0)
    counts["producers_new"] = max(0, len(producers) - len(state.producers))
    expired_before_ms = advanced.query_time_ms - policy.horizon_ms
    if policy.event_time:
        expired_before_ms = advanced.gc_watermark_ms
    kept = producers.where(producers.heard_ms >= expired_before_ms)
    counts["producers_expired"] = len(producers) - len(kept)
    _check_room(kept, rule)
    counts.update(records.counts(verdicts, SequenceVerdict))
    after = replace(state, epoch=epoch.number, clocks=advanced, producers=kept)
    return Outcome(verdicts, after, counts)


def _advanced(clocks: Clocks, records: Records, policy: Policy, epoch: Epoch) -> Clocks:
    """Return the clocks at the end of the micro-batch.

    If records carry no timestamps, limits how far query time advances. During a long gap between
    micro-batches a producer only seems silent, because the query has not read its records yet.
    """
    advanced = clocks.advance(
        records.observed, now_ms=epoch.now_ms, run_id=epoch.run_id, policy=policy
    )
    if policy.event_time:
        return advanced
    elapsed_ms = clocks.elapsed_ms(epoch.now_ms, epoch.run_id)
    counted_ms = min(elapsed_ms, max(1, policy.horizon_ms // SILENT_BATCHES))
    return replace(advanced, query_time_ms=clocks.query_time_ms + counted_ms)


def _check_room(producers: Producers, rule: SequenceRule) -> None:
    if len(producers) > rule.max_producers:
        raise ConfigError(
            f"A shard would have to remember {len(producers):,} producers, but max_producers is "
            f"{rule.max_producers:,}. Nothing was emitted or lost. If a producer takes a new name "
            "at every start, let it keep its name and raise its epoch. Otherwise choose a shorter "
            "expire_after, or a higher max_producers, which costs each micro-batch about 25 ms per "
            "MB of state.",
            remedy="many-producers",
        )


@dataclass(slots=True, eq=False)
class _NumberedRecords:
    """The records of a micro-batch, each with the row of its producer in a mutable table.

    The first `known` rows are from the state before the micro-batch. The other rows are for new
    producers, and have no ranges until records of their producers are remembered.
    """

    table: Producers
    known: int
    rows: I64
    epochs: I64
    sequences: I64
    records: Records
    judgeable: I64
    rule: SequenceRule
    counts: Counter[str]
    #: Verdict of each distinct position. `remembered` says whether to remember the position.
    judged: U8 = field(init=False)
    remembered: BOOL = field(init=False)

    @staticmethod
    def begin(
        producers: Producers,
        records: Records,
        hash_key: bytes,
        rule: SequenceRule,
        counts: Counter[str],
    ) -> _NumberedRecords:
        """Find each record's producer, or raise StateError if the state holds a producer twice."""
        known, judgeable = len(producers), records.judgeable
        keys = Keys.concat([producers.keys, records.keys.take(judgeable)])
        hashes = kernel.hash64(keys.data, keys.offsets, hash_key)
        first = kernel.first_occurrence(keys.data, keys.offsets, hashes)
        if not np.array_equal(first[:known], np.arange(known)):
            raise SequenceState.damaged("it contradicts itself: it holds a producer twice")
        # New producers follow the known producers, in the order of their first records.
        distinct, rows = np.unique(
            np.concatenate([np.arange(known), first[known:]]), return_inverse=True
        )
        assert records.numbers is not None
        epochs, sequences = (numbers[judgeable] for numbers in records.numbers)
        return _NumberedRecords(
            table=producers.grown(keys.take(distinct)),
            known=known,
            rows=rows[known:],
            epochs=epochs,
            sequences=sequences,
            records=records,
            judgeable=judgeable,
            rule=rule,
            counts=counts,
        )

    def run(self) -> U8:
        """Return the verdict of each record, and update the table."""
        positions = self._positions()
        order = np.lexsort((positions, self.epochs, self.rows))
        rows, epochs, at = self.rows[order], self.epochs[order], positions[order]
        same = (rows[1:] == rows[:-1]) & (epochs[1:] == epochs[:-1])
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = ~(same & (at[1:] == at[:-1]))
        distinct = np.flatnonzero(is_first)
        begins = np.ones(len(order), np.bool_)
        begins[1:] = ~(same & (at[1:] <= at[:-1] + 1))
        starts = np.flatnonzero(begins[distinct])
        runs = _Runs(
            rows=rows[distinct[starts]],
            epochs=epochs[distinct[starts]],
            firsts=at[distinct[starts]],
            lasts=at[distinct[np.append(starts[1:], len(distinct)) - 1]],
            starts=starts,
        )
        self.judged = np.full(len(distinct), SequenceVerdict.ACCEPT, np.uint8)
        self.remembered = np.ones(len(distinct), np.bool_)
        self._judge(runs, self._settle(runs))
        return self._of_records(order, is_first)

    def _positions(self) -> I64:
        rows, epochs = self.rows, self.epochs
        is_known = rows < self.known
        goes_on = is_known & (epochs == self.table.epochs[rows])
        newest = self.table.lasts[rows, np.maximum(self.table.counts[rows].astype(np.int64), 1) - 1]
        ahead = (self.sequences - newest) % CYCLE
        positions: I64 = newest + np.where(ahead <= HALF_CYCLE, ahead, ahead - CYCLE)
        begun = np.flatnonzero(~goes_on)
        if len(begun):
            # Group records without a remembered position by producer and epoch.
            order = np.lexsort((epochs[begun], rows[begun]))
            row, epoch = rows[begun][order], epochs[begun][order]
            group = np.zeros(len(begun), np.int64)
            group[order[1:]] = np.cumsum((row[1:] != row[:-1]) | (epoch[1:] != epoch[:-1]))
            positions[begun] = _from_the_widest_hole(group, self.sequences[begun])
        return positions

    def _settle(self, runs: _Runs) -> I64:
        """Judge all simple runs at once, and return the indexes of the other runs.

        A run is simple if its producer has no other run in this micro-batch, and if the run begins
        a producer, follows the newest position, repeats positions of the newest range, or adds a
        range ahead of it. The rule must not drop the run.
        """
        rows, rule = runs.rows, self.rule
        only = np.bincount(rows, minlength=len(self.table.epochs))[rows] == 1
        begun = self.table.counts[rows] > 0
        column = np.maximum(self.table.counts[rows].astype(np.int64), 1) - 1
        goes_on = only & begun & (runs.epochs == self.table.epochs[rows])
        newest = self.table.lasts[rows, column]
        follows = goes_on & (runs.firsts == newest + 1)
        self.table.lasts[rows[follows], column[follows]] = runs.lasts[follows]
        at_zero = runs.firsts % CYCLE == 0
        new = only & ~begun & (at_zero | (rule.unknown == "emit"))
        self.table.epochs[rows[new]] = runs.epochs[new]
        self.table.floors[rows[new]] = self.table.firsts[rows[new], 0] = runs.firsts[new]
        self.table.lasts[rows[new], 0] = runs.lasts[new]
        self.table.counts[rows[new]] = 1
        self.judged[runs.starts[new & ~at_zero]] = SequenceVerdict.UNKNOWN
        again = goes_on & (runs.firsts >= self.table.firsts[rows, column]) & (runs.lasts <= newest)
        repeated = np.repeat(again, np.diff(np.append(runs.starts, len(self.judged))))
        self.judged[repeated], self.remembered[repeated] = SequenceVerdict.DUPLICATE, False
        ranges = self.table.counts[rows]
        ahead = goes_on & (runs.firsts > newest + 1) & (ranges < rule.ranges)
        ahead &= rule.gaps == "emit"
        self.table = self.table.wide_enough(int(ranges[ahead].max(initial=0)) + 1)
        self.table.firsts[rows[ahead], ranges[ahead]] = runs.firsts[ahead]
        self.table.lasts[rows[ahead], ranges[ahead]] = runs.lasts[ahead]
        self.table.counts[rows[ahead]] += 1
        self.judged[runs.starts[ahead]] = SequenceVerdict.GAP
        self.counts["missing"] += int((runs.firsts - newest - 1)[ahead].sum())
        return np.flatnonzero(~(follows | new | again | ahead))

    def _judge(self, runs: _Runs, slow: I64) -> None:
        """Judge the runs with the indexes ``slow`` one after another."""
        columns = (runs.rows, runs.epochs, runs.firsts, runs.lasts, runs.starts)
        at, memory = -1, None
        for row, epoch, first, last, start in zip(
            *(c[slow].tolist() for c in columns), strict=True
        ):
            if row != at:
                self._keep(at, memory)
                at, memory = row, self.table.memory(row)
            outcome = judge_run(memory, epoch, first, last, self.rule)
            for piece in outcome.pieces:
                part = slice(start + piece.first - first, start + piece.last - first + 1)
                self.judged[part], self.remembered[part] = piece.verdict, piece.remembered
            self.counts["missing"] += outcome.missing
            self.counts["recovered"] += outcome.recovered
            memory = outcome.memory
        self._keep(at, memory)

    def _keep(self, row: int, memory: ProducerMemory | None) -> None:
        if memory is not None:
            self.table = self.table.remember(row, memory)

    def _of_records(self, order: I64, is_first: BOOL) -> U8:
        """Return the verdict of each record, from the verdicts of the distinct positions.

        ``order`` sorts the records by position. ``is_first`` marks, in that order, the first record
        of each position.
        """
        number = np.cumsum(is_first) - 1
        verdicts = self.judged[number]
        if not is_first.all():
            # Of several copies that could be emitted, emit the one that ranks first.
            copied = self.remembered & (np.bincount(number) > 1)
            tied = np.flatnonzero(copied[number])
            if len(tied):
                rank = self.records.tie_rank(self.judgeable[order[tied]])
                tied = tied[np.lexsort((rank, number[tied]))]
                later = tied[1:][number[tied[1:]] == number[tied[:-1]]]
                verdicts[later] = SequenceVerdict.DUPLICATE
        by_record = np.empty(len(order), np.uint8)
        by_record[order] = verdicts
        return by_record


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """Unbroken runs of distinct positions, in order. A run has one producer and one epoch.

    `starts` holds the index of each run's first position among all distinct positions.
    """

    rows: I64
    epochs: I64
    firsts: I64
    lasts: I64
    starts: I64


def _from_the_widest_hole(groups: I64, sequences: I64) -> I64:
    """Return positions for records of producers' epochs of which no position is remembered.

    A group is the records of one producer and epoch. Its first sequence is the one after the widest
    gap in the circle of sequences. The first position is in the second cycle, so that records with
    earlier positions may still come.
    """
    order = np.lexsort((sequences, groups))
    row, sequence = groups[order], sequences[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = row[1:] != row[:-1]
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(order)) - 1
    hole = np.diff(sequence, prepend=0)
    hole[starts] = sequence[starts] - sequence[ends] + CYCLE
    widest = np.lexsort((sequence, -hole, row))[starts]
    start = np.repeat(sequence[widest], np.diff(np.append(starts, len(order))))
    positions = np.empty(len(order), np.int64)
    positions[order] = CYCLE + start + (sequence - start) % CYCLE
    return positions
