"""The demonstration: what happens in which order, and what is counted at the end."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dedup.cli.demo import Check
from tests.kafka.demo.moments import MOMENTS, Kill, kill_at
from tests.kafka.demo.producers import Load, Producers
from tests.kafka.demo.query_process import QueryProcess
from tests.kafka.demo.reader import Reader, Seen
from tests.kafka.records import Record, make_topic, read_topic

_PARTITIONS = 2
_TIMEOUT_S = 400.0

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to.

    Parameters
    ----------
    checks : list of Check
        Every figure against what it must be.
    kills : list of Kill
    seconds : float
    """

    checks: list[Check]
    kills: list[Kill]
    seconds: float

    @property
    def good(self) -> bool:
        """Whether every figure is right."""
        return all(check.good for check in self.checks)


def run(address: str, folder: Path, load: Load, note: Note) -> Outcome:
    """Run the demonstration against a broker.

    Parameters
    ----------
    address : str
        Of the broker; topics of new names are made there.
    folder : Path
        Of checkpoint, catalog and logs.
    load : Load
        There is a kill between each two of its stretches.
    note : callable
        Takes a line about each step.

    Raises
    ------
    OSError
        If the broker or the query fails in a way that no one caused.
    """
    begun_s = time.monotonic()
    name = uuid.uuid4().hex[:6]
    source = make_topic(address, f"orders-{name}", _PARTITIONS)
    target = make_topic(address, f"orders-once-{name}", _PARTITIONS)
    producers = Producers(address, source, load)
    query = QueryProcess(address, source, target, folder)
    kills: list[Kill] = []
    try:
        with Reader(address, target) as reader:
            producers.start()
            note(
                f"{load.producers} producers send {load.distinct:,} orders of {load.keys:,} "
                f"customers to topic {source}, and some batches again; a reader of committed "
                f"records watches {target}."
            )
            for number in range(load.stretches - 1):
                pid = _start(query, producers, note)
                kills.append(kill_at(MOMENTS[number % len(MOMENTS)], query, pid))
                note(str(kills[-1]))
            _start(query, producers, note)
            _until_all_is_read(query, producers)
            committed = read_topic(address, target)
            _until(lambda: len(reader.seen.places) >= len(committed), query)
        found = Found(
            given=read_topic(address, source),
            committed=committed,
            every=read_topic(address, target, committed=False),
            watched=reader.seen,
        )
    finally:
        query.kill()
    if reader.error is not None:
        raise reader.error
    checks = judged(load, producers.sent, found) + _kills(load, kills)
    return Outcome(checks=checks, kills=kills, seconds=time.monotonic() - begun_s)


def _start(query: QueryProcess, producers: Producers, note: Note) -> int:
    producers.go_on()
    pid = query.start()
    note(f"Start {query.starts}: the query runs as process {pid}.")
    return pid


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is in the topics at the end, and what was seen of them before.

    Parameters
    ----------
    given : list of Record
        The whole input.
    committed, every : list of Record
        The output as clients read it with `read_committed`, and with no isolation.
    watched : Seen
        What the reader saw while the query ran.
    """

    given: list[Record]
    committed: list[Record]
    every: list[Record]
    watched: Seen


def judged(load: Load, sent: int, found: Found) -> list[Check]:
    """Return the figures of a run.

    Parameters
    ----------
    load : Load
    sent : int
        Records that the broker acknowledged to the producers.
    found : Found
    """
    given, out, watched = Seen(found.given), Seen(found.committed), found.watched
    aborted = {(r.partition, r.offset) for r in found.every} - out.places
    return [
        _same("records in", len(found.given), sent),
        _same("  distinct", len(given.ids), load.distinct),
        _more("  sent again by a retry", len(given.twice), 0),
        _same("records out", len(found.committed), load.distinct),
        _same("  lost", len(given.ids - out.ids), 0),
        _same("  duplicated", len(out.twice), 0),
        _same("  out of a customer's order", len(out.misplaced), 0),
        _same("seen by the reader meanwhile", len(watched.places), load.distinct),
        _same("  twice at any moment", len(watched.twice), 0),
        _same("  out of a customer's order", len(watched.misplaced), 0),
        _more("aborted records in the topic", len(aborted), 0),
        _same("  seen by the reader", len(aborted & watched.places), 0),
    ]


def _kills(load: Load, kills: list[Kill]) -> list[Check]:
    wanted = load.stretches - 1
    under_way = sum(1 for kill in kills if kill.published or kill.waiting)
    return [
        _same("kills", len(kills), wanted),
        _same("  in the midst of a micro-batch", under_way, wanted),
    ]


def _until_all_is_read(query: QueryProcess, producers: Producers) -> None:
    _until(lambda: producers.done, query)
    _ = producers.sent  # raises what stopped them
    _until(query.has_read_all, query)


def _until(so: Callable[[], bool], query: QueryProcess) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not so():
        query.check_alive()
        if time.monotonic() > deadline_s:
            raise OSError(f"The query was not done within {_TIMEOUT_S:.0f} s.")
        time.sleep(0.05)


def _same(name: str, value: int, expected: int) -> Check:
    return Check(name, value, f"{expected:,}", value == expected)


def _more(name: str, value: int, least: int) -> Check:
    return Check(name, value, f"more than {least:,}", value > least)
