"""The verdicts of numbered records, against models that are written from the rules alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from dedup.core.policy import Policy
from dedup.core.sequence import SEQUENCE_VERDICTS, SequenceRule
from tests.support.sequence_driver import SequenceShard
from tests.support.sequence_model import (
    SEQUENCES,
    BrokerModel,
    Producing,
    SequenceModel,
    accepted_tail,
    contradiction,
)

Record = tuple[str, int, int]


def batches_of(sequences: st.SearchStrategy[int]) -> st.SearchStrategy[list[list[Record]]]:
    """Micro-batches of runs of records."""
    producers, epochs, lengths = st.sampled_from("ab"), st.integers(0, 2), st.integers(1, 6)
    runs = st.builds(
        lambda producer, epoch, first, length: [
            (producer, epoch, (first + n) % SEQUENCES) for n in range(length)
        ],
        producers, epochs, sequences, lengths,
    )  # fmt: skip
    batch = st.lists(runs, max_size=6).map(lambda many: list(chain.from_iterable(many)))
    return st.lists(batch, max_size=10)


#: Around the beginning and the end of the numbers, with room for holes.
near = st.one_of(st.integers(0, 40), st.integers(SEQUENCES - 20, SEQUENCES - 1))
#: And so far away that it is ahead or behind by the same number.
far = st.one_of(near, st.integers(2**30 - 3, 2**30 + 3))


def counted(
    records: Sequence[Record], verdicts: Sequence[str]
) -> Counter[tuple[str, int, int, str]]:
    return Counter((*record, verdict) for record, verdict in zip(records, verdicts, strict=True))


@pytest.mark.parametrize("seed", range(24))
def test_seeded_streams_get_the_verdicts_of_the_model(seed: int) -> None:
    """Finds the likeliest mistakes without a search for the smallest example."""
    rng = Random(seed)
    given_batches: list[list[Record]] = []
    for _ in range(8):
        given_batches.append([])
        for _ in range(rng.randint(0, 12)):
            first = rng.choice([rng.randint(0, 60), SEQUENCES - rng.randint(1, 20)])
            producer, epoch = rng.choice("ab"), rng.choices([0, 1, 2], [20, 2, 1])[0]
            given_batches[-1] += [
                (producer, epoch, (first + n) % SEQUENCES) for n in range(rng.randint(1, 4))
            ]
    gaps, unknown = rng.choice(["emit", "emit", "drop"]), rng.choice(["emit", "emit", "drop"])
    check_against_the_model(given_batches, gaps, unknown, rng)


@settings(max_examples=80)
@given(
    batches_of(far),
    st.sampled_from(["emit", "drop"]),
    st.sampled_from(["emit", "drop"]),
    st.randoms(),
)
def test_verdicts_and_counts_match_the_model(
    given_batches: list[list[Record]], gaps: str, unknown: str, rng: Random
) -> None:
    check_against_the_model(given_batches, gaps, unknown, rng)


def check_against_the_model(
    given_batches: list[list[Record]], gaps: str, unknown: str, rng: Random
) -> None:
    kept = rng.choice([1, 2, 5, 64])
    model = SequenceModel(gaps, unknown, kept, expire_ms=80)
    policy = Policy(horizon_ms=80, bucket_ms=80)
    shard = SequenceShard(SequenceRule(gaps=gaps, unknown=unknown, ranges=kept), policy)  # type: ignore[arg-type]
    now_ms = 0
    for records in given_batches:
        now_ms += rng.choice([1, 19, 20, 21, 1000])
        if rng.random() < 0.2:  # a restart with other options
            model.gaps, model.unknown = rng.choice(["emit", "drop"]), rng.choice(["emit", "drop"])
            shard.rule = replace(shard.rule, gaps=model.gaps, unknown=model.unknown)  # type: ignore[arg-type]
            model.restart()
            shard.run_id += "x"
        model.counts.clear()
        expected = model.batch(records, now_ms)
        shuffled = rng.sample(records, len(records))
        again = shard.judge(records, now_ms=now_ms).verdicts
        verdicts = shard.batch(shuffled, now_ms=now_ms)
        assert counted(shuffled, verdicts) == expected
        assert counted(records, [SEQUENCE_VERDICTS[code] for code in again]) == expected
        assert shard.counts.get("missing", 0) == model.counts["missing"]
        assert shard.counts.get("recovered", 0) == model.counts["recovered"]
        producers = shard.state.producers
        assert {key.decode() for key in producers.keys} == set(model.producers)
        for row, key in enumerate(producers.keys):
            memory, remembered = producers.memory(row), model.producers[key.decode()]
            assert memory is not None
            assert (memory.epoch, memory.floor) == (remembered.epoch, remembered.known_from)
            ranges = [(run[0], run[-1]) for run in remembered.runs()]
            assert list(memory.ranges) == ranges


@pytest.mark.parametrize("seed", range(8))
def test_producers_expire_by_event_time_as_in_the_model(seed: int) -> None:
    """Timestamps are out of order within and between micro-batches."""
    rng = Random(seed)
    event = Policy(horizon_ms=100, bucket_ms=100, event_time=True)
    model, shard = SequenceModel(expire_ms=100), SequenceShard(policy=event)
    expired = 0
    for batch in range(40):
        records, times_ms = [], []
        newest_ms: dict[tuple[object, int], int] = {}
        for _ in range(rng.randint(0, 4)):
            producer, epoch = rng.choice("abcdef"), rng.choice([0, 0, 0, 1])
            at_ms = 30 * batch + rng.choice([-500, -40, 0, 0, 29])
            records.append((producer, epoch, rng.randint(0, 9)))
            times_ms.append(at_ms)
            newest_ms[producer, epoch] = max(at_ms, newest_ms.get((producer, epoch), at_ms))
        right = model.batch(records, times_ms=newest_ms)
        verdicts = shard.batch(records, now_ms=1 << 40, times_ms=times_ms or None)
        assert counted(records, verdicts) == right
        expired += shard.counts["producers_expired"]
    assert expired == model.counts["expired"] > 0


@settings(max_examples=60)
@given(batches_of(near))
def test_numbered_records_pass_once_and_none_of_the_newest_epoch_is_lost(
    given_batches: list[list[Record]],
) -> None:
    """README's guarantee under the default options, checked from outside."""
    shard = SequenceShard()
    gone: Counter[Record] = Counter()
    newest: dict[str, int] = {}
    for records in given_batches:
        passing = []
        for record, verdict in zip(records, shard.batch(records), strict=True):
            if verdict in ("accept", "gap", "unknown"):
                passing.append((record, verdict))
        here = Counter(record for record, _ in passing)
        assert max(here.values(), default=1) == 1
        for record, verdict in passing:
            # Only unknown records may pass again.
            assert verdict == "unknown" or not gone[record]
        gone += here
        for producer, epoch, _ in records:
            newest[producer] = max(epoch, newest.get(producer, 0))
        for record in set(records) - set(gone):
            assert record[1] < newest[record[0]], f"{record} was lost"


@pytest.mark.parametrize("seed", range(20))
def test_a_producer_is_judged_as_by_a_broker(seed: int) -> None:
    """Each batch is a micro-batch, under the options that match a broker's rule."""
    rng = Random(seed)
    producing = Producing(rng, rng.choice([0, 7, SEQUENCES - 9]))
    broker, shard = BrokerModel(), SequenceShard(SequenceRule(gaps="drop"))
    answers: Counter[str] = Counter()
    for _ in range(200):
        epoch, first, count = producing.next()
        answer = broker.append(epoch, first, count)
        answers[answer] += 1
        records = [("p", epoch, (first + n) % SEQUENCES) for n in range(count)]
        verdicts = shard.batch(records)
        assert contradiction(answer, verdicts) is None
        if answer == "accepted":
            producing.accepted(epoch, first, count)
        elif tail := accepted_tail(verdicts):
            first = (first + count - tail) % SEQUENCES
            assert broker.append(epoch, first, tail) == "accepted"
            producing.accepted(epoch, first, tail)
    assert set(answers) == {"accepted", "duplicate", "out of order", "fenced"}
