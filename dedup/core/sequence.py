"""The idempotent producer's rule: what becomes of a run of consecutive sequences of one producer.

It is the rule that Kafka's broker applies to batches (KIP-98, KIP-360; ``ProducerAppendInfo`` and
``ProducerStateEntry`` of apache/kafka): an older epoch is fenced, a newer one begins at 0, what
follows the last sequence is accepted, what is remembered is a duplicate, and anything else is out
of order. A broker refuses the latter, for its producer asks again. A stream cannot ask, so there is
a choice here: `SequenceRule`.

Sequences count from 0 to 2^31 - 1 and then from 0 again. They are judged by their **position**, a
number that goes on counting, of which the sequence is the remainder by 2^31. A sequence is at the
position next to the newest one that it can have: at most 2^30 ahead of it, or behind it
(invariant 15). Where nothing is known, of a producer or of a new epoch, its sequences in the
micro-batch begin behind the widest hole in their circle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal, TypeAlias, get_args

#: Sequences of a producer: 0 to 2^31 - 1.
CYCLE = 1 << 31
#: A sequence is taken for one that is at most so far ahead, else for one behind.
HALF_CYCLE = CYCLE >> 1
#: Unbroken ranges of sequences that may be remembered of a producer, and are by default.
MOST_RANGES = 255
RANGES = 64

Handling: TypeAlias = Literal["emit", "drop", "error"]
HANDLINGS: tuple[Handling, ...] = get_args(Handling)


class SequenceVerdict(IntEnum):
    """What became of a record."""

    #: The next of its producer.
    ACCEPT = 0
    #: A record of its producer, epoch and sequence went on before.
    DUPLICATE = 1
    #: Out of order, and new: records before it are missing, or it is one of those.
    GAP = 2
    #: A newer epoch of its producer went on before.
    FENCED = 3
    #: The memory of its producer does not reach so far back, or there is none.
    UNKNOWN = 4
    #: It has no producer, epoch or sequence.
    UNNUMBERED = 5
    #: It is numbered, and has no timestamp.
    UNTIMED = 6


#: Every record gets one of them.
SEQUENCE_VERDICTS = tuple(verdict.name.lower() for verdict in SequenceVerdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRule:
    """What becomes of records that are neither accepted nor duplicates.

    What is emitted is remembered, but for what is fenced or not numbered. What is dropped is not,
    so that it may come again, in order.

    Parameters
    ----------
    gaps, unknown, fenced, unnumbered : {"emit", "drop", "error"}
        By verdict. A broker has ``gaps="drop"`` and ``fenced="drop"``, and ``unknown="emit"`` since
        release 2.5.
    ranges : int
        Unbroken ranges of sequences that are remembered of a producer at most, up to `MOST_RANGES`.
    max_producers : int
        Producers that a shard remembers at most.
    """

    gaps: Handling = "emit"
    unknown: Handling = "emit"
    fenced: Handling = "drop"
    unnumbered: Handling = "emit"
    ranges: int = RANGES
    max_producers: int = 100_000

    def emitted(self, *, untimed: bool) -> frozenset[str]:
        """Return the names of the verdicts whose rows pass through, `untimed` among them or not."""
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
    """What is remembered of a producer.

    Parameters
    ----------
    epoch : int
        The newest.
    floor : int
        Position below which it is not known what went on, but for `ranges`.
    ranges : tuple of (int, int)
        First and last position of each unbroken range that went on, at least one, in order, with at
        least one missing position between two of them.
    """

    epoch: int
    floor: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def last(self) -> int:
        """The newest position."""
        return self.ranges[-1][1]

    def adding(self, runs: list[tuple[int, int]], most: int) -> ProducerMemory:
        """Return the memory with further positions; the lowest ranges beyond so many give way."""
        # What lies ahead alone needs no look at the ranges before the newest.
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
    """Positions of a run with one verdict, and whether they are remembered from now on."""

    first: int
    last: int
    verdict: SequenceVerdict
    remembered: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a run, in order; the memory that goes on, if any; and what that says.

    `missing` is the number of positions that the run left out; `recovered` of those that were left
    out before and came with it.
    """

    pieces: tuple[Piece, ...]
    memory: ProducerMemory | None
    missing: int = 0
    recovered: int = 0


def judge_run(
    memory: ProducerMemory | None, epoch: int, first: int, last: int, rule: SequenceRule
) -> Judged:
    """Judge an unbroken run of records of one producer.

    Parameters
    ----------
    memory : ProducerMemory or None
        None for a producer that nothing is known of.
    epoch : int
    first, last : int
        Positions, inclusive.
    rule : SequenceRule
    """
    if memory is None:
        return _of_unknown_producer(epoch, first, last, rule)
    if epoch < memory.epoch:
        return Judged((Piece(first, last, SequenceVerdict.FENCED),), memory)
    if epoch > memory.epoch:
        return _of_new_epoch(memory, epoch, first, last, rule)
    return _of_known_epoch(memory, first, last, rule)


def _of_unknown_producer(epoch: int, first: int, last: int, rule: SequenceRule) -> Judged:
    zero = -(-first // CYCLE) * CYCLE
    if rule.unknown == "emit" or first == zero:
        started = ProducerMemory(epoch, first, ((first, last),))
        verdict = SequenceVerdict.ACCEPT if first == zero else SequenceVerdict.UNKNOWN
        return Judged(_led_by(verdict, first, last), started)
    unknown = Piece(first, min(last, zero - 1), SequenceVerdict.UNKNOWN)
    if last < zero:
        return Judged((unknown,), None)
    started = ProducerMemory(epoch, zero, ((zero, last),))
    return Judged((unknown, *_led_by(SequenceVerdict.ACCEPT, zero, last)), started)


def _of_new_epoch(
    memory: ProducerMemory, epoch: int, first: int, last: int, rule: SequenceRule
) -> Judged:
    zero = -(-first // CYCLE) * CYCLE
    if first == zero or rule.gaps == "emit":
        verdict = SequenceVerdict.ACCEPT if first == zero else SequenceVerdict.GAP
        floor = first // CYCLE * CYCLE
        bumped = ProducerMemory(epoch, floor, ((first, last),))
        return Judged(_led_by(verdict, first, last), bumped, first - floor)
    refused = Piece(first, min(last, zero - 1), SequenceVerdict.GAP)
    if last < zero:
        return Judged((refused,), memory)
    begun = _of_new_epoch(memory, epoch, zero, last, rule)
    return replace(begun, pieces=(refused, *begun.pieces))


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
    """Return the pieces of positions that are not newer than the newest."""
    pieces = []
    at = first
    while at <= last:
        start, end = next(found for found in memory.ranges if found[1] >= at)
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
    """Return a run that is remembered, of which the first record alone is not the next one."""
    led = Piece(first, first, verdict, True)
    if first == last:
        return (led,)
    rest = Piece(first + 1, last, SequenceVerdict.ACCEPT, True)
    if verdict == SequenceVerdict.ACCEPT:
        return (replace(rest, first=first),)
    return led, rest
