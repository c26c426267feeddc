"""The state row of numbered records: what it holds, how large it is, and that damage is refused."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from dedup.core import sequence_shard
from dedup.core.clocks import Clocks, SourceClock
from dedup.core.keys import Keys
from dedup.core.producers import Producers
from dedup.core.sequence import CYCLE, ProducerMemory, SequenceRule
from dedup.core.sequence_state import SequenceState
from dedup.core.state import ShardState
from dedup.errors import ClockError, ConfigError, StateError
from tests.golden.make_golden import numbered_records
from tests.support import sequence_driver
from tests.support.sequence_driver import SequenceShard
from tests.support.sequence_model import SequenceModel

GOLDEN = Path(__file__).parents[1] / "golden"


def state(producers: int = 3) -> SequenceState:
    memories = [
        ProducerMemory(
            n,
            CYCLE,
            tuple((first, first + n) for first in range(CYCLE, CYCLE + 1 + n % 5 * 20, 20)),
        )
        for n in range(producers)
    ]
    table = Producers.empty().grown(Keys.from_list([b"p%d" % n for n in range(producers)]))
    for row, memory in enumerate(memories):
        table = table.remember(row, memory)
    table.heard_ms[:] = np.arange(producers)
    clocks = Clocks(run_id="run", now_ms=7, sources={"": SourceClock(1, 2, 3)})
    return SequenceState(5, (1, 2), ("producer=p (string)",), clocks, table)


def test_a_row_reads_back() -> None:
    before = state(12)
    after = SequenceState.from_bytes(before.to_bytes())
    assert (after.epoch, after.shard, after.made_of) == (5, (1, 2), before.made_of)
    assert after.clocks == before.clocks
    assert list(after.producers.keys) == list(before.producers.keys)
    assert [after.producers.memory(n) for n in range(12)] == [
        before.producers.memory(n) for n in range(12)
    ]
    assert after.producers.heard_ms.tolist() == list(range(12))
    assert after.to_bytes() == before.to_bytes()
    assert len(SequenceState.from_bytes(SequenceState().to_bytes()).producers) == 0


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("sequences-*")), ids=lambda p: p.name)
def test_rows_of_earlier_versions_are_read(golden: Path) -> None:
    made = json.loads((golden / "made.json").read_text())
    model = SequenceModel()
    for batch in range(made["last_batch"] + 1):
        model.batch(numbered_records(batch))
    states = [SequenceState.from_bytes((golden / f"state-{n}.bin").read_bytes()) for n in range(2)]
    assert [state.shard for state in states] == [(0, 2), (1, 2)]
    known = {}
    for state in states:
        assert state.epoch == made["last_batch"]
        assert state.made_of == (
            "producer=producer (string)", "no epoch", "sequence=number",
            "timestamp=timestamp (timestamp)",
        )  # fmt: skip
        # Five hours after the first micro-batch.
        assert state.clocks.low_watermark_ms == 1_767_225_600_000 + 5 * 3_600_000
        assert set(state.producers.heard_ms.tolist()) == {state.clocks.low_watermark_ms}
        known |= {
            f"golden-{key[-1:].decode()}": state.producers.memory(row)
            for row, key in enumerate(state.producers.keys)
        }
    assert known == {
        producer: ProducerMemory(
            0, found.known_from, tuple((run[0], run[-1]) for run in found.runs())
        )
        for producer, found in model.producers.items()
    }
    assert sorted(len(memory.ranges) for memory in known.values()) == [1, 1, 1, 1, 64]


def test_rows_of_other_kinds_are_rejected_by_name() -> None:
    with pytest.raises(StateError, match=r"with dedup_by_id\. A query with dedup_by_seq"):
        SequenceState.from_bytes(ShardState().to_bytes())
    with pytest.raises(StateError, match=r"with dedup_by_sequence\. A query with dedup_"):
        ShardState.from_bytes(state().to_bytes(), hash_key_id=0)
    with pytest.raises(StateError, match="does not begin like a state row of dedup_by_sequence"):
        SequenceState.from_bytes(b"DDXX" + state().to_bytes()[4:])
    row = bytearray(state().to_bytes())
    row[4:6] = struct.pack("<H", 2)
    row[20:24] = struct.pack("<I", zlib.crc32(row[:20]))
    with pytest.raises(StateError, match="has format 2; this release of rolling-dedup reads form"):
        SequenceState.from_bytes(bytes(row))


@pytest.mark.parametrize(
    ("column", "row", "value", "message"),
    [
        ("counts", 0, 0, "a producer has no range"),
        ("firsts", (1, 0), CYCLE + 99, "ends before it begins"),
        ("firsts", (1, 1), CYCLE + 2, "overlap or are out of order"),
        ("firsts", (0, 0), -1, "a position is below 0 or too large"),
        ("lasts", (1, 1), 1 << 62, "a position is below 0 or too large"),
        ("floors", 0, -1, "a floor is below 0 or above the newest position"),
        ("floors", 1, CYCLE + 99, "a floor is below 0 or above the newest position"),
        ("epochs", 2, -1, "an epoch is below 0"),
        ("heard_ms", 2, -(1 << 62) - 1, "a time is too large"),
        ("heard_ms", 2, (1 << 62) + 1, "a time is too large"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(
    column: str, row: object, value: int, message: str
) -> None:
    made = state()
    getattr(made.producers, column)[row] = value
    with pytest.raises(StateError, match=message):
        SequenceState.from_bytes(made.to_bytes())


def test_a_producer_that_is_there_twice_is_refused() -> None:
    """Nobody knows which entry is right; half of its records would be judged as new."""
    shard = SequenceShard()
    shard.batch([("p", 0, 0), ("q", 0, 0)])
    known = shard.state
    twice = replace(known.producers, keys=Keys.from_list([b"p", b"p"]))
    shard.row = replace(known, producers=twice).to_bytes()
    with pytest.raises(StateError, match="it holds a producer twice"):
        shard.batch([("p", 0, 1)])


def test_a_producer_takes_the_documented_number_of_bytes() -> None:
    """As the page says: 29 and its key, and 16 for each range."""
    empty = len(Producers.empty().to_bytes())
    for ranges in (1, 2, 5, 64, 255):
        table = Producers.empty().grown(Keys.from_list([b"0123456789"]))
        table = table.remember(
            0, ProducerMemory(0, 0, tuple((10 * n, 10 * n + 1) for n in range(ranges)))
        )
        assert len(table.to_bytes()) - empty == 29 + 10 + 16 * ranges


def test_the_state_does_not_grow_with_the_number_of_records() -> None:
    shard = SequenceShard()
    shard.batch([("p", 0, n) for n in range(10)])
    small = len(shard.row or b"")
    for first in range(10, 5000, 499):
        shard.batch([("p", 0, n) for n in range(first, first + 499)])
    assert len(shard.row or b"") <= small + 4
    # Every copy of all that came in order is known, however old.
    assert set(shard.batch([("p", 0, n) for n in range(4000)])) == {"duplicate"}


def test_more_producers_than_allowed_are_an_error() -> None:
    shard = SequenceShard(SequenceRule(max_producers=2))
    shard.batch([("a", 0, 0), ("b", 0, 0)])
    with pytest.raises(ConfigError, match="remember 3 producers, but max_producers is 2"):
        shard.batch([("c", 0, 0)])
    # Those that expire make room in the same micro-batch.
    for now_ms in (250, 500, 750, 1000):
        shard.batch([], now_ms=now_ms)
    assert shard.batch([("c", 0, 0)], now_ms=1001) == ["accept"]
    assert len(shard.state.producers) == 1


def test_a_clock_that_cannot_be_right_is_refused() -> None:
    shard = SequenceShard()
    shard.batch([("a", 0, 0)], now_ms=200_000)
    with pytest.raises(ClockError):
        shard.batch([("a", 0, 1)], now_ms=100_000)
    assert not shard.batch([], now_ms=200_001)


def test_the_copy_that_ranks_first_in_a_micro_batch_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that runs again may get the records in another order, and must emit the same copy."""
    monkeypatch.setattr(sequence_driver, "_by_place", lambda index: -index)
    records = [("p", 0, 0), ("p", 0, 1), ("p", 0, 0), ("p", 0, 1), ("p", 0, 0)]
    assert SequenceShard().batch(records) == ["duplicate"] * 3 + ["accept"] * 2


def test_plain_runs_are_judged_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging them one by one is slow, for example if a fleet starts without its state."""
    shard = SequenceShard(SequenceRule(ranges=3))
    monkeypatch.setattr(sequence_shard, "judge_run", None)
    assert shard.batch([("a", 0, 5), ("a", 0, 6), ("b", 0, 0)]) == ["unknown", "accept", "accept"]
    assert shard.batch([("a", 0, 9), ("a", 0, 10), ("b", 0, 1)]) == ["gap", "accept", "accept"]
    assert (shard.counts["missing"], shard.counts["gap"]) == (2, 1)
    assert shard.batch([("a", 0, 12), ("b", 0, 3)]) == ["gap", "gap"]
    assert shard.state.producers.counts.tolist() == [3, 2]
    # Where a range has to give way, or something is dropped, each is judged on its own.
    with pytest.raises(TypeError):
        shard.batch([("a", 0, 14)])
    shard.rule = SequenceRule(gaps="drop", unknown="drop")
    for record in (("b", 0, 5), ("c", 0, 5)):
        with pytest.raises(TypeError):
            shard.batch([record])


def test_many_producers_are_judged_in_one_micro_batch() -> None:
    rng = Random(1)
    records = [(f"p{n}", 0, s) for n in range(3000) for s in (0, 1)]
    shard = SequenceShard()
    assert set(shard.batch(rng.sample(records, len(records)))) == {"accept"}
    assert set(shard.batch(rng.sample(records, len(records)))) == {"duplicate"}
    assert len(shard.row or b"") < 3000 * 60
