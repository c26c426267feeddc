"""Judge the records of producers that number them, by the rule for Kafka's idempotent producers.

Each record has an epoch, which rises when its producer restarts, and a sequence, which counts the
producer's records. Kafka's broker applies the same rule to batches of records (KIP-98, KIP-360;
``ProducerAppendInfo`` and ``ProducerStateEntry`` of apache/kafka). A record of an older epoch is
fenced. A newer epoch begins at sequence 0. The next sequence is accepted, a remembered sequence is
a duplicate, and any other sequence is out of order. A broker rejects records out of order, because
their producer retries. A stream cannot ask for a retry, so `SequenceRule` leaves the choice to the
user.

Sequences count from 0 to 2^31 - 1 and then from 0 again. So a record is judged by its **position**,
a number that never wraps. The sequence is the position modulo 2^31. Of all positions with that
remainder the record gets the one closest to the newest position (invariant 15). If no position of a
producer's epoch is remembered, the first sequence of the micro-batch is the one after the widest
gap in the circle of sequences. A **run** is a range of positions without gaps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal, TypeAlias, get_args

#: Number of sequences of a producer, which are 0 to 2^31 - 1.
CYCLE = 1 << 31
#: A sequence counts as ahead of the newest one by at most this much, and else as behind.
HALF_CYCLE = CYCLE >> 1
#: Largest number of unbroken ranges of sequences that the query can remember per producer, and the
#: default of this number.
MOST_RANGES = 255
RANGES = 64

SequenceHandling: TypeAlias = Literal["emit", "drop", "error"]
HANDLINGS: tuple[SequenceHandling, ...] = get_args(SequenceHandling)


class SequenceVerdict(IntEnum):
    """The outcome of a record."""

    #: The next sequence of its producer.
    ACCEPT = 0
    #: A record with the same producer, epoch and sequence was emitted before.
    DUPLICATE = 1
    #: The record is new, but out of order. Either sequences before it are missing, or the record
    #: itself was missing until now.
    GAP = 2
    #: A record with a newer epoch of the same producer was emitted before.
    FENCED = 3
    #: Nothing is remembered of the producer, or its memory does not reach back to the record.
    UNKNOWN = 4
    #: The record lacks a producer, epoch or sequence.
    UNNUMBERED = 5
    #: The record is numbered, but has no timestamp.
    UNTIMED = 6


#: Names of the verdicts. Every record gets one.
SEQUENCE_VERDICTS = tuple(verdict.name.lower() for verdict in SequenceVerdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRule:
    """The user's choices for records that are neither accepted nor duplicates.

    The query remembers emitted records, except fenced and unnumbered records. It does not remember
    dropped records, so that they may come again in order.
    """

    #: What to do with records of each verdict. Kafka's broker acts like ``gaps="drop"``,
    #: ``fenced="drop"`` and, since release 2.5, ``unknown="emit"``.
    gaps: SequenceHandling = "emit"
    unknown: SequenceHandling = "emit"
    fenced: SequenceHandling = "drop"
    unnumbered: SequenceHandling = "emit"
    #: Largest number of unbroken ranges to remember per producer, up to `MOST_RANGES`.
    ranges: int = RANGES
    #: Largest number of producers that a shard remembers.
    max_producers: int = 100_000

    def emitted(self, *, untimed: bool) -> frozenset[str]:
        """Return the names of the verdicts that pass through.

        ``untimed`` says whether records without a timestamp pass through.
        """
        emitted = {
            SequenceVerdict.ACCEPT: True,
            SequenceVerdict.GAP: self.gaps == "emit",
            SequenceVerdict.FENCED: self.fenced == "emit",
            SequenceVerdict.UNKNOWN: self.unknown == "emit",
            SequenceVerdict.UNNUMBERED: self.unnumbered == "emit",
            SequenceVerdict.UNTIMED: untimed,
        }
        return frozenset(verdict.name.lower() for verdict, emits in emitted.items() if emits)


@dataclass(frozen=True, slots=True)
class ProducerMemory:
    """What is remembered of one producer."""

    #: The newest epoch.
    epoch: int
    #: Lowest position from which on `ranges` holds everything that was emitted.
    floor: int
    #: First and last position of each unbroken range that was emitted. The ranges are in order, and
    #: at least one position is missing between two ranges. There is at least one range.
    ranges: tuple[tuple[int, int], ...]

    @property
    def last(self) -> int:
        return self.ranges[-1][1]

    def adding(self, runs: list[tuple[int, int]], most: int) -> ProducerMemory:
        """Return the memory with the positions of ``runs``, cut to its ``most`` highest ranges."""
        # Positions ahead of the newest range cannot merge with earlier ranges.
        ahead = runs[0][0] > self.last
        ranges = list(self.ranges) if ahead else []
        for first, last in runs if ahead else sorted([*self.ranges, *runs]):
            if ranges and first <= ranges[-1][1] + 1:
                ranges[-1] = ranges[-1][0], max(last, ranges[-1][1])
            else:
                ranges.append((first, last))
        floor = self.floor
        if gone := ranges[:-most]:
            floor = max(floor, gone[-1][1] + 1)
        return ProducerMemory(self.epoch, floor, tuple(ranges[-most:]))


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a run: positions with the same verdict, and whether to remember them."""

    first: int
    last: int
    verdict: SequenceVerdict
    remembered: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdicts of a run, and what is remembered of its producer afterwards.

    `missing` counts the positions that the run skipped. `recovered` counts the positions of this
    run that an earlier run skipped.
    """

    pieces: tuple[Piece, ...]
    memory: ProducerMemory | None
    missing: int = 0
    recovered: int = 0


def judge_run(
    memory: ProducerMemory | None, epoch: int, first: int, last: int, rule: SequenceRule
) -> Judged:
    """Judge an unbroken run of records of one producer.

    ``memory`` is None for an unknown producer. ``first`` and ``last`` are the positions of the
    run's first and last record.
    """
    if memory is None or epoch > memory.epoch:
        return _of_new_epoch(memory, epoch, first, last, rule)
    if epoch < memory.epoch:
        return Judged((Piece(first, last, SequenceVerdict.FENCED),), memory)
    return _of_known_epoch(memory, first, last, rule)


def _of_new_epoch(
    memory: ProducerMemory | None, epoch: int, first: int, last: int, rule: SequenceRule
) -> Judged:
    zero = -(-first // CYCLE) * CYCLE
    # Sequences are missing only if an earlier epoch of the producer is known.
    early, handling, floor = SequenceVerdict.UNKNOWN, rule.unknown, first
    if memory is not None:
        early, handling, floor = SequenceVerdict.GAP, rule.gaps, first // CYCLE * CYCLE
    if first == zero or handling == "emit":
        verdict = SequenceVerdict.ACCEPT if first == zero else early
        begun = ProducerMemory(epoch, floor, ((first, last),))
        return Judged(_led_by(verdict, first, last), begun, first - floor)
    refused = Piece(first, min(last, zero - 1), early)
    if last < zero:
        return Judged((refused,), memory)
    rest = _of_new_epoch(memory, epoch, zero, last, rule)
    return replace(rest, pieces=(refused, *rest.pieces))


def _of_known_epoch(memory: ProducerMemory, first: int, last: int, rule: SequenceRule) -> Judged:
    pieces = list(_behind(memory, first, min(last, memory.last), rule))
    recovered = sum(
        piece.last - piece.first + 1
        for piece in pieces
        if piece.verdict == SequenceVerdict.GAP and piece.remembered
    )
    missing = 0
    ahead = max(first, memory.last + 1)
    if ahead == memory.last + 1 and ahead <= last:
        pieces += _led_by(SequenceVerdict.ACCEPT, ahead, last)
    elif ahead <= last and rule.gaps == "emit":
        pieces += _led_by(SequenceVerdict.GAP, ahead, last)
        missing = ahead - memory.last - 1
    elif ahead <= last:
        pieces.append(Piece(ahead, last, SequenceVerdict.GAP))
    added = [(piece.first, piece.last) for piece in pieces if piece.remembered]
    after = memory.adding(added, rule.ranges) if added else memory
    return Judged(tuple(pieces), after, missing, recovered)


def _behind(memory: ProducerMemory, first: int, last: int, rule: SequenceRule) -> list[Piece]:
    """Judge a run whose positions are not ahead of the newest remembered position."""
    pieces = []
    at = first
    while at <= last:
        start, end = next(span for span in memory.ranges if span[1] >= at)
        if at >= start:
            piece = Piece(at, min(last, end), SequenceVerdict.DUPLICATE)
        elif at >= memory.floor:
            emitted = rule.gaps == "emit"
            piece = Piece(at, min(last, start - 1), SequenceVerdict.GAP, emitted)
        else:
            emitted = rule.unknown == "emit"
            end = min(last, start - 1, memory.floor - 1)
            piece = Piece(at, end, SequenceVerdict.UNKNOWN, emitted)
        pieces.append(piece)
        at = piece.last + 1
    return pieces


def _led_by(verdict: SequenceVerdict, first: int, last: int) -> tuple[Piece, ...]:
    """Return a run to remember, with ``verdict`` for its first record and ACCEPT for the others."""
    led = Piece(first, first, verdict, True)
    if first == last:
        return (led,)
    rest = Piece(first + 1, last, SequenceVerdict.ACCEPT, True)
    if verdict == SequenceVerdict.ACCEPT:
        return (replace(rest, first=first),)
    return led, rest
