"""Each rule of the protocol of sinks, and each refusal, in a sink that lives in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from dedup.errors import SinkError
from dedup.sinks.batch import Batch
from dedup.sinks.content import Content
from dedup.sinks.figures import measured
from dedup.sinks.marker import BATCH_SLOT, Marker
from dedup.sinks.protocol import (
    ATTEMPTS,
    Aborted,
    Fenced,
    Indefinite,
    PublishedSlice,
    StagedBatch,
    StagedSlice,
    publish_slice,
    publish_staged,
)

BATCH = Batch(query_id="q", sink="s", run_id="now", batch_id=7, writer="here", time_ms=1)
BEFORE = replace(BATCH, run_id="before", writer="there")
ROWS = {"a": Content(1, 1, 0), "b": Content(1, 2, 0), "c": Content(1, 4, 0)}


def content(rows: str) -> Content:
    return sum((ROWS[row] for row in rows), Content())


def staged(slot: int, rows: str) -> StagedSlice:
    return StagedSlice(slot, content(rows), rows)


def published(slot: int, rows: str) -> PublishedSlice:
    return PublishedSlice(slot, content(rows))


@dataclass
class Memory:
    """A sink: what is visible, and what was asked of it, in this order."""

    newest: dict[int, Marker] = field(default_factory=dict)
    visible: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    #: What the next commits come to: "applied" or "lost" (both without an answer), or an error.
    commits: list[str | Exception] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)

    def put(self, batch: Batch, slot: int, rows: str) -> Marker:
        self.newest[slot] = marker = batch.marker(slot, content(rows))
        return marker

    def acquire(self, slots: Sequence[int]) -> Mapping[int, Marker]:
        self.asked.append(f"own {list(dict.fromkeys([*slots, *sorted(self.newest)]))}")
        return dict(self.newest)

    def slot(self, number: int) -> Port:
        return Port(self, number)

    def rows(self, slices: Sequence[StagedSlice]) -> Rows:
        return Rows("".join(self.files.get(piece.file, piece.file) for piece in slices), BATCH_SLOT)

    def transactions(self) -> list[str]:
        return [each for each in self.asked if each.startswith("commit")]


@dataclass
class Port:
    memory: Memory
    number: int
    last: Marker | None = None
    sent: str = ""
    marker: Marker | None = None

    def acquire(self) -> Marker | None:
        self.memory.asked.append(f"own {self.number}")
        return self.memory.newest.get(self.number)

    def begin(self) -> None:
        self.memory.asked.append(f"begin {self.number}")
        self.sent = ""

    def pre_commit(self, marker: Marker) -> None:
        assert marker.slot == self.number
        self.marker = marker

    def commit(self) -> None:
        self.memory.asked.append(f"commit {self.number}: {self.sent}")
        outcome = self.memory.commits.pop(0) if self.memory.commits else "answered"
        if isinstance(outcome, Exception):
            raise outcome
        if outcome != "lost":
            assert self.marker is not None
            self.memory.newest[self.number] = self.marker
            self.memory.visible += self.sent
        if outcome != "answered":
            raise Indefinite("the connection was cut")

    def abort(self) -> None:
        self.memory.asked.append(f"abort {self.number}")


@dataclass
class Rows:
    rows: str
    slot: int = 0
    done: str = ""

    def send_first(self, slot: Port) -> None:
        slot.sent += self.rows[:1]

    def send_rest(self, slot: Port) -> Content:
        slot.sent = self.rows
        self.done = "sent"
        return content(self.rows)

    def consume(self) -> Content:
        self.done = "drained"
        return content(self.rows)

    def stage(self) -> StagedSlice:
        self.done = "staged"
        return staged(self.slot, self.rows)


def publish(
    memory: Memory,
    slices: Sequence[PublishedSlice | StagedSlice],
    batch: Batch = BATCH,
    *,
    atomic: Callable[[], Sequence[StagedSlice]] | None = None,
    **more: Any,
) -> None:
    publish_staged(StagedBatch(batch, slices, **more), memory, atomic=atomic)


def earlier(batch: Batch, by: int = 1) -> Batch:
    return replace(batch, batch_id=batch.batch_id - by)


# Tasks.


def test_a_task_reads_a_published_slice_to_its_end_and_sends_nothing() -> None:
    memory, rows = Memory(), Rows("ba")
    memory.put(BATCH, 0, "ab")
    found = publish_slice(BATCH, 0, Port(memory, 0), rows)
    assert found == published(0, "ab")
    assert rows.done == "drained"
    assert memory.asked == ["own 0"]


def test_a_process_that_still_owns_its_slot_publishes_without_owning_it_again() -> None:
    memory = Memory()
    last = memory.put(earlier(BATCH), 0, "c")
    publish_slice(BATCH, 0, Port(memory, 0, last), Rows("ab"))
    assert memory.asked == ["begin 0", "commit 0: ab"]


def test_a_lost_slot_and_an_unanswered_commit_are_counted() -> None:
    class Taken(Port):
        def begin(self) -> None:
            if memory.asked == []:
                memory.asked.append("fenced")
                raise Fenced("by the next worker")
            super().begin()

    memory = Memory(commits=["applied"])
    last = memory.put(earlier(BATCH), 0, "c")
    with measured() as figures:
        publish_slice(BATCH, 0, Taken(memory, 0, last), Rows("ab"))
    assert memory.asked == ["fenced", "own 0", "begin 0", "commit 0: ab", "own 0"]
    assert (figures.fenced, figures.retries) == (1, 1)


# The driver.


def test_nothing_is_committed_if_everything_is_published() -> None:
    memory = Memory()
    for slot, rows in enumerate("ab"):
        memory.put(BEFORE, slot, rows)
    memory.put(earlier(BEFORE), 2, "c")
    publish(memory, [staged(0, "a"), published(1, "b")])
    assert memory.asked == ["own [-1, 0, 1, 2]"]


def test_a_published_slice_that_no_longer_exists_is_refused() -> None:
    memory = Memory()
    memory.put(BEFORE, 1, "b")
    with pytest.raises(
        SinkError, match=r"slice 1 by there, 1 rows\. Now it is divided into 1 sl"
    ) as e:
        publish(memory, [staged(0, "abc")])
    assert e.value.remedy == "sink-differs"
    assert not memory.transactions()


def test_an_empty_slice_may_be_missing_in_another_division() -> None:
    memory = Memory()
    memory.put(BEFORE, 1, "")
    publish(memory, [staged(0, "abc")])
    assert memory.visible == ["a", "b", "c"]


def test_files_that_do_not_hold_what_was_staged_are_not_published() -> None:
    memory = Memory(files={"a": "ab"})
    with pytest.raises(SinkError, match=r"slice 0 of micro-batch 7 is not there any more"):
        publish(memory, [staged(0, "a")])
    assert memory.asked[-1] == "abort 0"
    assert not memory.visible


# The whole micro-batch in one transaction.


# Commits that fail.


@pytest.mark.parametrize("outcome", ["lost", Aborted("too slow")])
def test_a_transaction_of_the_driver_that_was_aborted_is_tried_again(
    outcome: str | Exception,
) -> None:
    memory = Memory(commits=["answered", outcome])
    with measured() as figures:
        publish(memory, [staged(0, "a")])
    assert memory.visible == ["a"]
    assert (figures.fenced, figures.retries) == (0, 1)


def test_the_driver_gives_up_after_some_attempts_and_says_why() -> None:
    memory = Memory(commits=[Aborted("too slow")] * ATTEMPTS)
    with pytest.raises(SinkError, match=r"3 transactions for micro-batch 7 .*because: too slow\."):
        publish(memory, [staged(0, "a")])
    assert len(memory.transactions()) == ATTEMPTS
