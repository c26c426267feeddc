"""The slots of a `TransactionalSink`, and its work.

The text under a slot's key has its owner and its marker. The text of the batch slot also lists all
slots that the sink has ever used.

Whoever acquires a slot waits for the lock of its key, and stores a new owner ID. A transaction that
publishes rows first locks the key and compares the owner ID. So once a slot is acquired, the
transactions of earlier owners have ended, and later transactions of earlier owners are rejected.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, TypeAlias

import pyarrow as pa

from dedup.errors import ConfigError, SinkError, faults
from dedup.sinks.kit.transactional import TransactionalSink
from dedup.sinks.ledger import Ledger
from dedup.sinks.marker import BATCH_SLOT, Marker, reading
from dedup.sinks.options import SinkOptions
from dedup.sinks.protocol import (
    Aborted,
    Disconnected,
    Fenced,
    Indefinite,
    SinkSlots,
    SliceRows,
    Stage,
    StagedBatch,
    StagedSlice,
)
from dedup.sinks.work import SlotWork
from dedup.storage.document import from_document, to_document
from dedup.values.parse import integer, mapping, text

_FORMAT = 1
#: Seconds between two statements of a transaction after which an error names the pause.
_PAUSE_S = 1
#: Owner ID and newest marker of a slot.
Ownership: TypeAlias = "tuple[str, Marker | None]"

#: For each slot, the owner ID that this process stored last, and the newest marker. This belongs to
#: the process, because Spark unpickles a new object of the sink for each task.
_known: dict[Hashable, Ownership] = {}


def forget_slots() -> None:
    """Forget which slots this process owns, as if the process had just started."""
    _known.clear()


@dataclass(frozen=True, slots=True)
class Stored:
    """What the database keeps under the key of a slot."""

    owner: str | None = None
    marker: Marker | None = None
    #: In the batch slot, how many slots tasks have ever published in: the slots from 0 on.
    slots: int = 0

    def to_text(self) -> str:
        marker = None if self.marker is None else asdict(self.marker)
        fields = {"owner": self.owner, "marker": marker, "slots": self.slots}
        return to_document(fields, version=_FORMAT).decode().rstrip()

    @classmethod
    def from_text(cls, stored_text: str | None, key: str) -> Stored:
        """Return what a text holds. An empty text, like None, holds nothing.

        A column of type ``CHAR`` may have added spaces.

        Raises SinkError if the text is damaged, or was written by another release.
        """
        if not stored_text:
            return cls()
        with reading(f"The marker {key}"):
            document = from_document(stored_text.rstrip().encode(), version=_FORMAT)
            names = frozenset({"owner", "marker", "slots"})
            value = mapping(document, needed=names, allowed=names)
            return cls(
                owner=None if value["owner"] is None else text(value["owner"]),
                marker=None if value["marker"] is None else Marker.from_json(value["marker"]),
                slots=integer(value["slots"], 0),
            )


class KitSlot:
    """One slot of the sink. Implements `dedup.sinks.protocol.Slot`."""

    room = "kit"

    def __init__(self, slots: KitSlots, number: int) -> None:
        self._key = (slots.work.identity, slots.key(number))
        self._slots, self.number = slots, number
        # Keep a copy for this attempt, because another thread of this process, such as the driver
        # of another start, may acquire the slot later.
        self._owned = _known.get(self._key)
        self._stored = Stored()
        self._transaction: Any = None
        # `begin` may return None, if the sink keeps its transaction in an attribute.
        self._is_open = False
        #: When the last statement of the open transaction ended.
        self._used_s = 0.0

    @property
    def last(self) -> Marker | None:
        return self._owned[1] if self._owned else None

    def acquire(self) -> Marker | None:
        owner, newest = self._slots.own([self.number])[self.number]
        self.know(owner, newest)
        return newest

    def know(self, owner: str, newest: Marker | None) -> None:
        """Remember the slot's owner and its newest marker.

        Raises SinkError if the server has lost a micro-batch that this process has published.
        """
        last = None if self._slots.work.options.accept_lost_markers else self.last
        if last is not None and (newest is None or newest.batch_id < last.batch_id):
            has = "none" if newest is None else f"the one of micro-batch {newest.batch_id}"
            raise SinkError(
                f"The server has lost what it had committed: slice {self.number} was published up "
                f"to micro-batch {last.batch_id}, and its newest marker is {has}. The server was "
                "restored to an earlier state, and the rows since then are missing. Nothing was "
                "written.",
                remedy="sink-markers",
            )
        self._owned = _known[self._key] = owner, newest

    def begin(self) -> None:
        """Open a transaction. Raises Fenced if this attempt does not own the slot any more."""
        self.abort()
        self._transaction = self._slots.sink.begin()
        self._is_open = True
        try:
            self._stored = self._slots.read(self._transaction, self.number)
            if self._owned and self._owned[1] is None and self._stored == Stored():
                raise self._not_stored()
            if (self._stored.owner, self._stored.marker) != self._owned:
                raise Fenced(f"slot {self.number} has another owner by now")
        except BaseException:
            self.abort()
            raise
        self._used_s = time.monotonic()
        faults.point("kit.begun")

    def send(self, rows: pa.RecordBatch) -> None:
        with self._after_a_pause():
            self._slots.sink.write_rows(self._transaction, rows)

    def pre_commit(self, marker: Marker) -> None:
        faults.point("kit.marker.before")
        self._stored = replace(self._stored, marker=marker)
        with self._after_a_pause():
            self._slots.write(self._transaction, self.number, self._stored)
        faults.point("kit.marker.after")

    @contextmanager
    def _after_a_pause(self) -> Iterator[None]:
        """Name the pause before statements of the ``with`` block that find no connection."""
        pause_s = time.monotonic() - self._used_s
        try:
            yield
        except Disconnected as error:
            if pause_s < _PAUSE_S:
                raise
            raise Disconnected(
                f"{error}. Before that, the transaction waited {pause_s:,.0f} s for rows of Spark. "
                "If the server or a proxy ends idle sessions sooner, raise its limit"
            ) from None
        self._used_s = time.monotonic()

    def commit(self) -> None:
        faults.point("kit.commit.before")
        try:
            self._slots.sink.commit(self._transaction)
        except Exception as error:
            self.abort()
            raise Indefinite(_no_answer(error)) from error
        self._ended()
        assert self._stored.owner is not None, "begin has compared it"
        self._owned = _known[self._key] = self._stored.owner, self._stored.marker
        faults.point("kit.commit.after")

    def abort(self) -> None:
        if self._is_open:
            transaction = self._transaction
            self._ended()
            self._slots.rollback(transaction)

    drop = abort

    def _ended(self) -> None:
        # A transaction may hold rows, and this object refers to others that refer to it.
        self._is_open, self._transaction = False, None

    def _not_stored(self) -> ConfigError:
        """Return the error for a sink that has lost the owner that it has just committed."""
        sink = type(self._slots.sink).__name__
        return ConfigError(
            f"{sink} does not keep its markers: write_marker stored one under the key "
            f"{self._slots.key(self.number)}, commit returned, and read_marker finds none. Check "
            "that write_marker adds a key that is missing, that commit commits, and that "
            "read_marker looks for the same key. Nothing was written."
        )


class KitSlots(SinkSlots[KitSlot]):
    """All slots of one sink of one query, and the transactions that read and write their keys."""

    def __init__(self, work: TransactionalWork, query_id: str) -> None:
        super().__init__(partial(KitSlot, self))
        self.work, self.sink, self._query_id = work, work.custom, query_id

    def key(self, number: int) -> str:
        return f"{self._query_id}/{self.work.name}/{number}"

    def read(self, transaction: Any, number: int) -> Stored:
        key = self.key(number)
        stored_text: object = self.sink.read_marker(transaction, key)
        if not isinstance(stored_text, str | None):
            raise ConfigError(
                f"{type(self.sink).__name__}.read_marker must return a str or None, and has "
                f"returned {stored_text!r:.80}. Nothing was written."
            )
        return Stored.from_text(stored_text, key)

    def write(self, transaction: Any, number: int, stored: Stored) -> None:
        self.sink.write_marker(transaction, self.key(number), stored.to_text())

    def all(self) -> dict[int, Stored]:
        """Return what the database keeps for each slot that the sink has used."""
        # One transaction for each slot has one lock, and never waits with it for another lock.
        batch = self._look(BATCH_SLOT)
        return {BATCH_SLOT: batch, **{number: self._look(number) for number in range(batch.slots)}}

    def _look(self, number: int) -> Stored:
        transaction = self.sink.begin()
        try:
            return self.read(transaction, number)
        finally:
            self.rollback(transaction)

    def acquire(self, slots: Sequence[int]) -> Mapping[int, Marker]:
        # To own the batch slot is also to own all slots that tasks have used before.
        owned = self.own(slots if self.sink.parallel else [BATCH_SLOT])
        for number, (owner, newest) in owned.items():
            self.slot(number).know(owner, newest)
        return {number: newest for number, (_, newest) in owned.items() if newest is not None}

    def own(self, numbers: Sequence[int]) -> dict[int, Ownership]:
        """Store a new owner of slots in ascending order. With the batch slot, own all used slots.

        Raises Aborted if the commit had no answer. The caller may then acquire the slots again.
        """
        faults.point("kit.own.before")
        owner = str(uuid.uuid4())
        owned: dict[int, Ownership] = {}
        transaction = self.sink.begin()
        try:
            waiting = sorted(numbers)
            while waiting:
                number = waiting.pop(0)
                stored = self.read(transaction, number)
                if number == BATCH_SLOT:
                    stored = replace(stored, slots=max([stored.slots, *(n + 1 for n in waiting)]))
                    waiting = list(range(stored.slots))
                self.write(transaction, number, replace(stored, owner=owner))
                owned[number] = owner, stored.marker
        except BaseException:
            self.rollback(transaction)
            raise
        try:
            self.sink.commit(transaction)
        except Exception as error:
            self.rollback(transaction)
            raise Aborted(_no_answer(error)) from error
        faults.point("kit.own.after")
        return owned

    def rollback(self, transaction: Any) -> None:
        """Roll back. Ignore a lost connection, because the server rolls its transaction back."""
        with suppress(Exception):
            self.sink.rollback(transaction)

    def rows(self, slices: Sequence[StagedSlice]) -> SliceRows[KitSlot]:
        staging = self.work.staging(self._query_id)
        return SliceRows(rows for piece in slices for rows in staging.read(piece))


def _no_answer(error: Exception) -> str:
    return f"commit raised {type(error).__name__}: {error}"


@dataclass(frozen=True)
class TransactionalWork(SlotWork[KitSlot]):
    """The work of a `TransactionalSink`.

    `identity` tells sinks of other outputs apart in one process. `setting` holds the options that
    decide where the markers are, for the ledger, or None if only the sink knows them.
    """

    options: SinkOptions
    custom: TransactionalSink[Any]
    identity: bytes
    setting: Mapping[str, str] | None = None
    crash_risk: tuple[str, str] | None = None
    room = "kit"

    @property
    def is_atomic(self) -> bool:
        return not self.custom.parallel

    def task_rows(self, rows: Iterable[pa.RecordBatch], stage: Stage) -> SliceRows[KitSlot]:
        # Wait for Spark's first rows before a transaction opens: servers end idle transactions.
        first = list(islice(rows := iter(rows), 1))
        return SliceRows(chain(first, rows), stage)

    def slots(self, query_id: str) -> KitSlots:
        return KitSlots(self, query_id)

    def settle(self, ledger: Ledger, staged: StagedBatch) -> None:
        """Record where the markers are.

        If a user's sink looks for them elsewhere, it misses the micro-batch of the ledger.
        """
        if self.setting is not None:
            ledger.settle(self.setting)
