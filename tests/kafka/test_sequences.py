"""Verdicts of `dedup_by_sequence`, against what a real broker answers to the same batches."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from dedup.core.sequence import SequenceRule
from tests.kafka.raw_producer import ANSWERS, RawProducer
from tests.kafka.records import make_topic, read_topic
from tests.support.sequence_driver import SequenceShard
from tests.support.sequence_model import (
    SEQUENCES,
    BrokerModel,
    Producing,
    accepted_tail,
    contradiction,
)

BATCHES = 150


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(n, marks=pytest.mark.slow) for n in range(12, 200))]
)
def test_batches_get_the_verdicts_of_a_real_broker(broker: str, seed: int) -> None:
    rng = Random(seed)
    topic = make_topic(broker, f"sequences-{seed}", 1)
    producing = Producing(rng, [0, 7, SEQUENCES - 9][seed % 3])
    model, shard = BrokerModel(), SequenceShard(SequenceRule(gaps="drop"))
    answers: Counter[str] = Counter()
    offsets: dict[int, tuple[int, int, int]] = {}
    gone_on: list[str] = []

    with RawProducer(broker) as raw:
        producer_id = raw.new_producer_id()

        def send(epoch: int, first: int, count: int) -> str:
            """TaskResult of the broker, which the model has to give as well."""
            values = [_name(epoch, first + n) for n in range(count)]
            encoded = [value.encode() for value in values]
            error, offset = raw.send(topic, 0, producer_id, epoch, first, encoded)
            answer = ANSWERS[error]
            if answer == "none":
                answer = "duplicate" if offset in offsets else "accepted"
                # The answer has the offset of the existing batch.
                assert offsets.setdefault(offset, (epoch, first, count)) == (epoch, first, count)
            assert model.append(epoch, first, count) == answer
            return answer

        for _ in range(BATCHES):
            epoch, first, count = producing.next()
            answer = send(epoch, first, count)
            answers[answer] += 1
            records = [("p", epoch, (first + n) % SEQUENCES) for n in range(count)]
            verdicts = shard.batch(records)
            assert contradiction(answer, verdicts) is None
            gone_on += [
                _name(epoch, sequence)
                for (_, epoch, sequence), verdict in zip(records, verdicts, strict=True)
                # Before the first batch of an unknown producer all is out of order to a broker.
                if verdict == "accept" or answer == "accepted"
            ]
            if answer == "accepted":
                producing.accepted(epoch, first, count)
            elif tail := accepted_tail(verdicts):
                first = (first + count - tail) % SEQUENCES
                assert send(epoch, first, tail) == "accepted"
                producing.accepted(epoch, first, tail)
    assert set(answers) == {"accepted", "duplicate", "out of order", "fenced"}
    log = [record.value.decode() for record in read_topic(broker, topic)]
    assert log == gone_on
    assert len(set(log)) == len(log) > BATCHES


def _name(epoch: int, sequence: int) -> str:
    return f"{epoch}:{sequence % SEQUENCES}"
