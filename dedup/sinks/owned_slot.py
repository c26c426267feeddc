"""A slot of a database: a stored owner ID and marker, which a transaction locks and compares.

Whoever acquires a slot waits for the lock of the slot, and stores a new owner ID. A transaction
that publishes rows first locks its slot and compares the owner ID. So once a slot is acquired, the
transactions of earlier owners have ended, and later transactions of earlier owners are rejected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import ClassVar, TypeAlias

from dedup.errors import SinkError, faults
from dedup.sinks.marker import Marker
from dedup.sinks.protocol import Fenced

#: Owner ID and newest marker of a slot. Each is None if the database has none.
Ownership: TypeAlias = "tuple[str | None, Marker | None]"

#: For each slot, the owner ID that this process stored last, and the newest marker.
_known: dict[Hashable, Ownership] = {}


def forget_slots() -> None:
    """Forget which slots this process owns, as if the process had just started."""
    _known.clear()


class OwnedSlot(ABC):
    """One slot of a sink. With the methods that send rows, it implements `protocol.SlotPort`.

    `key` identifies the slot within this process. `room` is the prefix of the fault points.
    """

    room: ClassVar[str]

    def __init__(self, key: Hashable, number: int, *, accept_lost_markers: bool) -> None:
        self._key, self.number, self._accept_lost_markers = key, number, accept_lost_markers
        # Keep a copy for this attempt, because another thread of this process, such as the driver
        # of another start, may acquire the slot later.
        self._owned = _known.get(key)
        self._written: Marker | None = None

    @property
    def last(self) -> Marker | None:
        return self._owned[1] if self._owned else None

    @property
    def owner(self) -> str:
        """The owner ID of this attempt, which `begin` has compared with the stored one."""
        owner = self._owned[0] if self._owned else None
        assert owner is not None, "begin has compared it"
        return owner

    def acquire(self) -> Marker | None:
        faults.point(f"{self.room}.own.before")
        owner, newest = self._acquire()
        faults.point(f"{self.room}.own.after")
        self.know(owner, newest)
        return newest

    def know(self, owner: str | None, newest: Marker | None) -> None:
        """Remember the slot's owner and its newest marker.

        Raises SinkError if the server has lost a micro-batch that this process has published.
        """
        last = None if self._accept_lost_markers else self.last
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
        found = self._begin()
        if self._owned is None or found != self._owned:
            raise self._fenced()
        faults.point(f"{self.room}.begun")

    def pre_commit(self, marker: Marker) -> None:
        faults.point(f"{self.room}.marker.before")
        self._write(marker)
        self._written = marker
        faults.point(f"{self.room}.marker.after")

    def commit(self) -> None:
        faults.point(f"{self.room}.commit.before")
        self._commit()
        self._owned = _known[self._key] = self.owner, self._written
        faults.point(f"{self.room}.commit.after")

    @abstractmethod
    def abort(self) -> None:
        """Abort the open transaction, if there is one. Committed rows stay."""

    def drop(self) -> None:
        self.abort()

    @abstractmethod
    def _acquire(self) -> Ownership:
        """Store a new owner ID, and return it with the newest marker."""

    @abstractmethod
    def _begin(self) -> Ownership:
        """Open a transaction, lock the slot until it ends, and return what the slot holds."""

    @abstractmethod
    def _write(self, marker: Marker) -> None:
        """Write the marker within the open transaction."""

    @abstractmethod
    def _commit(self) -> None:
        """Commit and close the transaction, or raise `protocol.Indefinite` if no answer comes."""

    def _fenced(self) -> Fenced:
        self.abort()
        return Fenced(f"slot {self.number} has another owner by now")
