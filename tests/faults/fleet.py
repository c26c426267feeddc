"""Numbered records as producers, their zombies and their mistakes send them; and the truth of them.

A fleet's producers number their records within two lines each. They lose some, hold some back, send
some again (a restart under the same epoch sends the last ones again, one under a new epoch begins
at 0 while the old instance still sends), fall silent until they are forgotten, count past the last
number, and one sends every second number a micro-batch late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dedup.sinks.batch_folders import published_batches
from tests.faults.truth import Outcome
from tests.support.sequence_model import SEQUENCES, SequenceModel
from tests.support.spark_query import BASE

FLEET_SCHEMA = (
    "producer string, line int, epoch int, sequence bigint, ts timestamp, n bigint, load binary"
)
FLEET_ARROW = pa.schema(
    [
        ("producer", pa.string()),
        ("line", pa.int32()),
        ("epoch", pa.int32()),
        ("sequence", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("n", pa.int64()),
        ("load", pa.binary()),
    ]
)
PRODUCERS = 12
STEP_S, EXPIRE_S = 60, 150
#: Cases that a campaign must meet to prove anything.
CASES = (
    "accept", "duplicate", "gap", "fenced", "unknown", "unnumbered", "expired", "wrapped",
)  # fmt: skip

Sent = tuple[int, int]


@dataclass
class _Line:
    """What a producer sends of one partition: epoch and number of each record."""

    rng: Random
    following: int = 0
    epoch: int = 0
    silent: int = 0
    every_second_late: bool = False
    steady: bool = False
    sent: list[Sent] = field(default_factory=list)
    held_back: list[Sent] = field(default_factory=list)

    def micro_batch(self, count: int) -> list[Sent]:
        rng = self.rng
        if self.silent:
            self.silent -= 1
            return []
        now = self.held_back
        self.held_back = []
        kind = rng.choices(
            ["go on", "new epoch", "bad epoch", "again", "jump", "silent"], [70, 7, 4, 9, 3, 7]
        )[0]
        if self.steady:
            kind = "again"
        if kind == "silent":
            self.silent = rng.randint(2, 5)
        elif kind in ("new epoch", "bad epoch"):
            # The old instance continues for a while.
            now += [(self.epoch, self.following + n) for n in range(rng.randint(0, 4))]
            self.epoch, self.following = self.epoch + 1, rng.randint(1, 9) * (kind == "bad epoch")
        elif kind == "again":
            now += self.sent[-rng.randint(1, 2 * count) :]
        elif kind == "jump":
            self.following += rng.randint(50, 2000)
        fresh = [(self.epoch, self.following + n) for n in range(count)]
        self.following += count
        for each in fresh:
            late = self.every_second_late and each[1] % 2
            fate = "late" if late else rng.choices(["on time", "late", "lost"], [90, 7, 3])[0]
            if fate == "on time":
                now.append(each)
            elif fate == "late":
                self.held_back.append(each)
        self.sent = (self.sent + fresh)[-40 * count :]
        # At once, and long ago.
        return now + rng.sample(now, len(now) // 5) + rng.sample(self.sent, count // 5)


def fleet(batches: int, rows: int, seed: int) -> list[pa.Table]:
    """Return micro-batches of about so many records."""
    rng = Random(seed)
    lines = {
        (f"device-{n}", line): _Line(
            rng,
            # Of the first one, a line counts on behind the last number, the other begins again.
            following=SEQUENCES - rows // 30 if n == 0 else rng.choice([0, 0, 0, 7]),
            steady=n == 0,
            every_second_late=n == 1,
        )
        for n in range(PRODUCERS)
        for line in (0, 1)
    }
    made = []
    first = 0
    for batch in range(batches):
        records: list[dict[str, Any]] = []
        for (producer, line), sender in lines.items():
            for epoch, number in sender.micro_batch(max(5, rows // 30)):
                sequence = number % SEQUENCES if line else number
                records.append(
                    {"producer": producer, "line": line, "epoch": epoch, "sequence": sequence}
                )
        some = {"producer": "device-3", "line": 0, "epoch": 0, "sequence": 5}
        records += [some | {"producer": None}, some | {"epoch": None}, some | {"sequence": -1}]
        rng.shuffle(records)
        for n, record in enumerate(records, first):
            at_s = batch * STEP_S + rng.randint(0, STEP_S - 1) - rng.choice([0] * 9 + [100])
            record |= {"ts": BASE.timestamp() + at_s, "n": n, "load": rng.randbytes(20)}
        first += len(records)
        made.append(_table(records))
    return made


def _table(records: list[dict[str, Any]]) -> pa.Table:
    columns = {name: [record[name] for record in records] for name in FLEET_ARROW.names}
    columns["ts"] = [int(at * 1_000_000) for at in columns["ts"]]
    return pa.table(columns, FLEET_ARROW)


# --- the truth


def judge_numbered(output: Path, given: Iterable[pa.Table], model: SequenceModel) -> Outcome:
    """Compare the published micro-batches with input and model, row by row, verdict by verdict.

    What a micro-batch consists of is read off its rows: all of them are there, with their verdicts.
    """
    rows_in = Counter(n for table in given for n in table["n"].to_pylist())
    rows_out: Counter[int] = Counter()
    lost = duplicated = other = 0
    seen: Counter[str] = Counter()
    for batch in published_batches(output):
        rows = pq.read_table(output / f"batch={batch}", partitioning=None).to_pylist()
        rows_out.update(row["n"] for row in rows)
        told = Counter((key_of(row), row["verdict"]) for row in rows)
        right = verdicts_of(model, rows)
        seen.update(verdict for (_, verdict), n in right.items() for _ in range(n))
        seen["wrapped"] += sum((r["sequence"] or 0) >= SEQUENCES for r in rows)
        on: Counter[Any] = Counter()
        for (key, verdict), n in (+(told - right)).items():
            on[key] += n * model.goes_on(verdict)
        for (key, verdict), n in (+(right - told)).items():
            on[key] -= n * model.goes_on(verdict)
        lost += -sum(n for n in on.values() if n < 0)
        duplicated += sum(n for n in on.values() if n > 0)
        other += (right - told).total() - sum(map(abs, on.values()))
    lost += (rows_in - rows_out).total()
    duplicated += (rows_out - rows_in).total()
    cases = {**seen, **model.counts}
    return Outcome(rows_in.total(), lost, duplicated, other, dict(sorted(cases.items())))


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Whose record it is, and its number."""
    sequence = row["sequence"]
    if sequence is not None and sequence >= 0:
        sequence %= SEQUENCES
    return row["producer"], row["line"], row["epoch"], sequence


def verdicts_of(model: SequenceModel, rows: list[dict[str, Any]]) -> Counter[tuple[Any, str]]:
    """How often each record has which verdict."""
    right: Counter[tuple[Any, str]] = Counter()
    records: list[tuple[object, int, int]] = []
    times_ms: dict[tuple[object, int], int] = {}
    for row in rows:
        producer, line, epoch, sequence = key_of(row)
        numbered = None not in (producer, epoch, sequence) and min(epoch, sequence) >= 0
        whose = (producer, line) if numbered else None
        if numbered:
            records.append((whose, epoch, sequence))
        else:
            right[key_of(row), "unnumbered"] += 1
        at_ms = int(row["ts"].timestamp() * 1000)
        times_ms[whose, epoch] = max(at_ms, times_ms.get((whose, epoch), at_ms))
    for (line_of, epoch, sequence, verdict), n in model.batch(records, times_ms=times_ms).items():
        right[(*line_of, epoch, sequence), verdict] += n  # type: ignore[misc]
    return right
