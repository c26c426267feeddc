"""Brokers and networks that fail in the midst of a transaction: each record is there once."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from dedup.errors import SinkError
from dedup.testing.sinks import once
from tests.kafka.broker import Broker
from tests.kafka.proxy import Api, Harm, Proxy, commits, error_of, of
from tests.kafka.records import count_aborted, end_offsets, make_topic
from tests.kafka.slots import Sink, numbers
from tests.support.frozen_task import frozen_task


@pytest.fixture
def topic(broker: str, request: pytest.FixtureRequest) -> str:
    name = make_topic(broker, re.sub(r"\W+", "-", request.node.name).strip("-")[:80], 2)
    make_topic(broker, f"{name}-markers", 2, cleanup_policy="compact")
    return name


@pytest.fixture
def sink(proxy: Proxy, topic: str, tmp_path: Path) -> Iterator[Sink]:
    """Over the proxy, with one micro-batch published by the driver and one by its tasks."""
    made = Sink(proxy.address, topic, tmp_path)
    made.batch("run1", 0, [0, 1], [2])
    made.batch("run1", 1, [3], [4, 5])
    yield made
    made.forget()


HARMS = [Harm.LOSE_REPLY, Harm.CUT_AFTER, Harm.CUT_BEFORE, Harm.DELAY]
APIS = [Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.PRODUCE, Api.END_TXN]
#: Of all pairs those that every run of the tests tries: each request, each harm.
QUICK = [
    (Api.INIT_PRODUCER_ID, Harm.CUT_BEFORE),
    (Api.ADD_PARTITIONS_TO_TXN, Harm.DELAY),
    (Api.PRODUCE, Harm.CUT_AFTER),
    (Api.END_TXN, Harm.CUT_AFTER),
    (Api.END_TXN, Harm.LOSE_REPLY),
]


@pytest.mark.parametrize(
    ("api", "harm"),
    [
        pytest.param(*pair, marks=[] if pair in QUICK else pytest.mark.slow)
        for pair in itertools.product(APIS, HARMS)
    ],
    ids=lambda one: one.name.lower(),
)
def test_a_failed_request_does_no_harm(
    proxy: Proxy, broker: str, sink: Sink, api: Api, harm: Harm
) -> None:
    """A request of a task fails. If the task fails with it, the next attempt succeeds."""
    if api is Api.INIT_PRODUCER_ID:
        sink.forget()
    fault = proxy.arm(api, harm, seconds=0.5)
    try:
        sink.task("run1", 2, 0, [6, 7])
    except SinkError:
        sink.task("run1", 2, 0, [6, 7])
    fault.wait()
    sink.task("run1", 2, 1, [8])
    sink.batch("run1", 3, [9], [])
    assert numbers(broker, sink.topic) == once(10)


def test_a_late_commit_does_not_commit_a_later_transaction(
    proxy: Proxy, broker: str, sink: Sink
) -> None:
    """The client repeats a commit and gets its reply; then the first one arrives (KIP-890)."""
    slot = sink.transactional_id(0)
    fault = proxy.arm(Api.END_TXN, Harm.HOLD, where=lambda f: commits(f) and of(slot)(f))
    sink.task("run1", 2, 0, [6, 7])
    fault.wait()
    released: list[int] = []

    def strike() -> Iterator[int]:
        yield 8
        time.sleep(0.5)  # it is with the broker by then
        released.append(error_of(fault.release()))
        raise RuntimeError("the attempt dies after rows, before its marker")

    with pytest.raises(RuntimeError):
        sink.task("run1", 3, 0, strike())
    assert released == [KafkaError.INVALID_PRODUCER_EPOCH], "the broker must refuse it"
    sink.forget()
    sink.task("run1", 3, 0, [8, 9])
    assert numbers(broker, sink.topic) == once(10)


def test_a_lost_reply_to_the_drivers_commit_duplicates_nothing(
    proxy: Proxy, broker: str, topic: str, tmp_path: Path
) -> None:
    sink = Sink(proxy.address, topic, tmp_path)
    answers = [sink.task("run1", 0, 0, [0, 1]), sink.task("run1", 0, 1, [2])]
    fault = proxy.arm(Api.END_TXN, Harm.LOSE_REPLY, where=commits)
    sink.finish(answers)
    fault.wait()
    sink.batch("run1", 1, [3], [4])
    assert numbers(broker, topic) == once(5)


def test_a_transaction_that_takes_too_long_is_aborted_and_tried_again(
    broker: str, topic: str, tmp_path: Path
) -> None:
    limit = {"kafka.transaction.timeout.ms": "1000", "kafka.socket.timeout.ms": "1000"}
    sink = Sink(broker, topic, tmp_path, **limit)
    sink.batch("run1", 0, [0])

    def slow() -> Iterator[int]:
        yield 1
        yield 2
        until = time.monotonic() + 30
        while end_offsets(broker, topic) != end_offsets(broker, topic, committed=True):
            assert time.monotonic() < until, "the broker aborted nothing"
            time.sleep(0.1)
        yield 3

    with pytest.raises(SinkError, match="transaction"):
        sink.task("run1", 1, 0, slow())
    sink.task("run1", 1, 0, [1, 2, 3])
    assert numbers(broker, topic) == once(4)
    assert count_aborted(broker, topic) >= 1


def test_a_frozen_attempt_is_fenced_by_the_next(broker: str, sink: Sink, tmp_path: Path) -> None:
    with frozen_task(sink, 2, [6], [7]) as failed:
        # Another address: it has its own producers, as in another process.
        Sink(broker, sink.topic, tmp_path).task("run1", 2, 0, [6, 7])
    assert isinstance(failed[0], SinkError)
    assert "This attempt to write slice 0" in str(failed[0])
    sink.task("run1", 2, 1, [8])
    assert numbers(broker, sink.topic) == once(9)


@pytest.mark.slow
def test_a_broker_killed_in_a_transaction_loses_nothing(
    broker_process: Broker, sink: Sink, broker: str
) -> None:
    killed: list[bool] = []

    def rows() -> Iterator[int]:
        yield 6
        yield 7
        broker_process.kill()
        broker_process.restart()
        killed.append(True)
        yield 8

    try:
        sink.task("run1", 2, 0, rows())
    except (SinkError, KafkaException):
        sink.task("run1", 2, 0, [6, 7, 8])
    assert killed
    sink.task("run1", 2, 1, [])
    assert numbers(broker, sink.topic) == once(9)
