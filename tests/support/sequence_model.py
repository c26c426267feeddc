"""The answers of `dedup_by_sequence` by two models: its own rule, and a broker's.

Both are written from the rules alone, a position at a time and in sets, and share nothing with
`dedup.core` but the names of the verdicts.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

SEQUENCES = 2**31
#: Batches that a broker remembers of a producer.
KEPT = 5


@dataclass
class Remembered:
    """A producer: its epoch, the positions that passed, and the first from which all are known."""

    epoch: int
    known_from: int
    positions: set[int]
    heard_ms: int = -(1 << 62)

    def runs(self) -> list[list[int]]:
        return runs_of(self.positions)

    def keep_newest(self, most: int) -> None:
        for run in self.runs()[:-most]:
            self.positions -= set(run)
            self.known_from = max(self.known_from, run[-1] + 1)


@dataclass
class SequenceModel:
    """All producers; the arguments are the operator's options.

    Their silence is measured by the times of their records, where `batch` is given them.
    """

    gaps: str = "emit"
    unknown: str = "emit"
    kept: int = 64
    expire_ms: int | None = None
    producers: dict[object, Remembered] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    query_ms: int = 0
    before_ms: int | None = None
    watermark_ms: int = -(1 << 62)

    def restart(self) -> None:
        """Begin another run: the time up to its first micro-batch does not count."""
        self.before_ms = None

    def batch(
        self,
        records: Iterable[tuple[object, int, int]],
        now_ms: int = 0,
        times_ms: Mapping[tuple[object, int], int] | None = None,
    ) -> Counter[tuple[object, int, int, str]]:
        """Judge (producer, epoch, sequence); return how often each had each verdict.

        With the newest time of each producer's records of each epoch, it is by event time.
        """
        if self.before_ms is not None and self.expire_ms is not None:
            self.query_ms += min(now_ms - self.before_ms, self.expire_ms // 4)
        self.before_ms = now_ms
        found: Counter[tuple[object, int, int, str]] = Counter()
        by_producer: dict[object, dict[int, list[int]]] = {}
        for producer, epoch, sequence in records:
            by_producer.setdefault(producer, {}).setdefault(epoch, []).append(sequence)
        for producer, epochs in by_producer.items():
            for epoch in sorted(epochs):
                sequences = epochs[epoch]
                places = self._places(producer, epoch, set(sequences))
                verdicts: dict[int, str] = {}
                for run in runs_of(set(places)):
                    verdicts |= self._judge(producer, epoch, run)
                for place, sequence in places.items():
                    copies = sequences.count(sequence)
                    verdict = verdicts[place]
                    found[producer, epoch, sequence, verdict] += 1
                    again = "duplicate" if self.goes_on(verdict) else verdict
                    found[producer, epoch, sequence, again] += copies - 1
            alive = {e for p, e, _, verdict in found if p == producer and verdict != "fenced"}
            if alive and producer in self.producers:
                heard_ms = self.query_ms
                if times_ms is not None:
                    # What comes late counts as of the watermark.
                    newest_ms = max(times_ms[producer, epoch] for epoch in alive)
                    heard_ms = max(newest_ms, self.watermark_ms)
                memory = self.producers[producer]
                memory.heard_ms = max(memory.heard_ms, heard_ms)
        until_ms = self.query_ms
        if times_ms is not None:
            until_ms = self.watermark_ms = max([self.watermark_ms, *times_ms.values()])
        if self.expire_ms is not None:
            for producer in list(self.producers):
                if self.producers[producer].heard_ms < until_ms - self.expire_ms:
                    del self.producers[producer]
                    self.counts["expired"] += 1
        return +found

    def goes_on(self, verdict: str) -> bool:
        """Whether records with a verdict leave the operator."""
        policies = {"accept": "emit", "unnumbered": "emit", "gap": self.gaps}
        return (policies | {"unknown": self.unknown}).get(verdict) == "emit"

    def _places(self, producer: object, epoch: int, sequences: set[int]) -> dict[int, int]:
        """Position -> sequence."""
        memory = self.producers.get(producer)
        if memory is None or memory.epoch != epoch:
            first = _behind_the_widest_hole(sequences)
            return {SEQUENCES + first + (s - first) % SEQUENCES: s for s in sequences}
        newest = max(memory.positions)
        places = {}
        for s in sequences:
            near = [s + cycle * SEQUENCES for cycle in range(-1, newest // SEQUENCES + 3)]
            # Of two that are equally far, the one ahead.
            places[min(near, key=lambda place: (abs(place - newest), -place))] = s
        return places

    def _judge(self, producer: object, epoch: int, run: list[int]) -> dict[int, str]:
        memory = self.producers.get(producer)
        if memory is None:
            return self._judge_stranger(producer, epoch, run)
        if epoch < memory.epoch:
            return dict.fromkeys(run, "fenced")
        if epoch > memory.epoch:
            return self._judge_bump(producer, epoch, run)
        verdicts: dict[int, str] = {}
        added: set[int] = set()
        newest = max(memory.positions)
        follows = newest
        for place in run:
            if place in memory.positions:
                verdicts[place] = "duplicate"
            elif place > newest:
                verdicts[place] = "accept" if place == follows + 1 else "gap"
                if verdicts[place] == "accept" or self.gaps == "emit":
                    if verdicts[place] == "gap":
                        self.counts["missing"] += place - follows - 1
                    follows = place
                    added.add(place)
            elif place >= memory.known_from:
                verdicts[place] = "gap"
                if self.gaps == "emit":
                    self.counts["recovered"] += 1
                    added.add(place)
            else:
                verdicts[place] = "unknown"
                if self.unknown == "emit":
                    added.add(place)
        memory.positions |= added
        memory.keep_newest(self.kept)
        return verdicts

    def _judge_stranger(self, producer: object, epoch: int, run: list[int]) -> dict[int, str]:
        verdicts = {}
        for place in run:
            if producer in self.producers:
                verdicts[place] = "accept"
                self.producers[producer].positions.add(place)
            else:
                verdicts[place] = "accept" if place % SEQUENCES == 0 else "unknown"
                if verdicts[place] == "accept" or self.unknown == "emit":
                    self.producers[producer] = Remembered(epoch, place, {place})
        return verdicts

    def _judge_bump(self, producer: object, epoch: int, run: list[int]) -> dict[int, str]:
        heard_ms = self.producers[producer].heard_ms
        verdicts = {}
        bumped = False
        for place in run:
            if bumped:
                verdicts[place] = "accept"
                self.producers[producer].positions.add(place)
                continue
            verdicts[place] = "gap" if place % SEQUENCES else "accept"
            if verdicts[place] == "accept" or self.gaps == "emit":
                self.counts["missing"] += place % SEQUENCES
                floor = place - place % SEQUENCES
                self.producers[producer] = Remembered(epoch, floor, {place}, heard_ms)
                bumped = True
        return verdicts


def runs_of(positions: set[int]) -> list[list[int]]:
    """Unbroken runs of positions, in order."""
    runs: list[list[int]] = []
    for place in sorted(positions):
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def _behind_the_widest_hole(sequences: set[int]) -> int:
    ordered = sorted(sequences)
    widest, first = 0, ordered[0]
    for before, after in zip([ordered[-1] - SEQUENCES, *ordered], ordered, strict=False):
        if after - before > widest:
            widest, first = after - before, after
    return first


@dataclass
class BrokerModel:
    """A partition of Kafka's as to one producer, in the words of its source.

    ``ProducerAppendInfo.checkProducerEpoch`` and ``checkSequence``, and before them
    ``ProducerStateEntry.findDuplicateBatch``.
    """

    epoch: int | None = None
    batches: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def append(self, epoch: int, first: int, count: int) -> str:
        """Return ``accepted``, ``duplicate``, ``out of order`` or ``fenced``."""
        last = (first + count - 1) % SEQUENCES
        if epoch == self.epoch and (first, last) in self.batches:
            return "duplicate"
        if self.epoch is not None:
            if epoch < self.epoch:
                return "fenced"
            if epoch > self.epoch and first != 0:
                return "out of order"
            if epoch == self.epoch and first != (self.batches[-1][1] + 1) % SEQUENCES:
                return "out of order"
        if epoch != self.epoch:
            self.batches.clear()
        self.epoch = epoch
        self.batches.append((first, last))
        return "accepted"


def contradiction(answer: str, verdicts: Sequence[str]) -> str | None:
    """Say how verdicts of a batch's records contradict a broker's answer to the batch, or None.

    The operator may know more: it remembers unbroken ranges where a broker remembers five batches,
    so that what a broker calls out of order may be duplicates, or duplicates and then records
    that the broker accepts where they come on their own.
    """
    kinds = set(verdicts)
    if answer == "accepted":
        fine = verdicts[0] in ("accept", "unknown") and kinds - {verdicts[0]} <= {"accept"}
    elif answer in ("duplicate", "fenced"):
        fine = kinds == {answer}
    else:
        rest = list(verdicts)
        while rest and rest[-1] == "accept":
            rest.pop()
        fine = bool(rest) and set(rest) <= {"duplicate", "gap", "unknown"}
    return None if fine else f"{answer}: {verdicts}"


def accepted_tail(verdicts: Sequence[str]) -> int:
    """How many records at the end of a batch were accepted."""
    tail = 0
    while tail < len(verdicts) and verdicts[-1 - tail] == "accept":
        tail += 1
    return tail


@dataclass
class Producing:
    """Batches as a producer sends them, and as its zombies, retries and mistakes do."""

    rng: Random
    #: The sequence that a broker waits for.
    following: int
    epoch: int = 0
    sent: list[tuple[int, int, int]] = field(default_factory=list)

    def next(self) -> tuple[int, int, int]:
        """Return epoch, first sequence, and number of records of a batch."""
        rng = self.rng
        count = rng.randint(1, 5)
        kinds = ["in order", "again", "ahead", "behind", "bump", "bad bump", "zombie"]
        kind = rng.choices(kinds, [45, 20, 8, 10, 5, 5, 7])[0]
        if kind == "again" and self.sent:
            return rng.choice(self.sent[-9:])
        if kind == "ahead":
            return self.epoch, (self.following + rng.randint(1, 20)) % SEQUENCES, count
        if kind == "behind":
            return self.epoch, (self.following - rng.randint(1, 12)) % SEQUENCES, count
        if kind == "bump":
            return self.epoch + 1, 0, count
        if kind == "bad bump":
            return self.epoch + 1, rng.choice([1, 3, SEQUENCES - 2]), count
        if kind == "zombie" and self.epoch:
            return self.epoch - 1, rng.choice([0, self.following]), count
        return self.epoch, self.following, count

    def accepted(self, epoch: int, first: int, count: int) -> None:
        """Take note that the broker took a batch."""
        if epoch != self.epoch:
            self.sent.clear()
        self.epoch, self.following = epoch, (first + count) % SEQUENCES
        self.sent.append((epoch, first, count))
