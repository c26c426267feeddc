"""Where the demonstration writes: a topic or a table, which a reader watches."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from dedup.cli.demo import Check
from tests.databases.mysql import Mysql
from tests.databases.mysql_server import MysqlServer
from tests.databases.postgres import Postgres
from tests.databases.postgres_server import PostgresServer
from tests.kafka.demo.producers import Load
from tests.kafka.demo.query_process import QueryProcess
from tests.kafka.records import Record, make_topic, read_topic
from tests.kafka.watching import reading


def same(name: str, value: int, expected: int) -> Check:
    return Check(name, value, f"{expected:,}", value == expected)


def more(name: str, value: int, least: int) -> Check:
    return Check(name, value, f"more than {least:,}", value > least)


class Target(ABC):
    """Where the query writes, with format and options of the sink."""

    name: str
    #: Further arguments of the query's program.
    arguments: tuple[str, ...] = ()
    format: str
    options: dict[str, str]
    #: Steps of the sink at which the query is killed: all is with the server and uncommitted; one
    #: task has committed and Spark does not know; some rows are sent.
    moments: tuple[str, ...]

    @abstractmethod
    def watched(self, query: QueryProcess) -> AbstractContextManager[None]:
        """Let a reader judge the output while the query runs."""

    def disturb(self, query: QueryProcess) -> None:  # noqa: B027 - not every target does
        """Disturb the last start of the query."""

    @abstractmethod
    def ids(self) -> Counter[str]:
        """How often each order is in the output."""

    @abstractmethod
    def checks(self, load: Load) -> list[Check]:
        """Return the figures of this kind of target and of its reader."""


class Seen:
    """Orders that somebody saw, one after another, each judged by those before it."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.ids: Counter[str] = Counter()
        #: Partition and offset of each record.
        self.places: set[tuple[int, int]] = set()
        #: IDs that did not follow the order before them of the same customer.
        self.misplaced: list[str] = []
        self._next: dict[bytes | None, int] = {}
        for record in records:
            self.see(record)

    def see(self, record: Record) -> None:
        """Judge a record."""
        order = json.loads(record.value or b"")
        self.places.add((record.partition, record.offset))
        self.ids[order["id"]] += 1
        if self.ids[order["id"]] > 1:
            return
        # The orders of a customer are numbered without gaps, so each has one place.
        if order["number"] != self._next.get(record.key, 0):
            self.misplaced.append(order["id"])
        self._next[record.key] = order["number"] + 1

    @property
    def twice(self) -> int:
        """How many records were there already when they were seen."""
        return self.ids.total() - len(self.ids)


class Topic(Target):
    """A new topic, and a reader of committed records."""

    format = "dedup_kafka"
    moments = ("kafka.marker.after", "kafka.commit.after", "kafka.rows.first")

    def __init__(self, address: str, name: str) -> None:
        self.name, self._address, self._seen = make_topic(address, name, 2), address, Seen()
        self.options = {"kafka.bootstrap.servers": address, "topic": name}

    @contextmanager
    def watched(self, query: QueryProcess) -> Iterator[None]:
        with reading(self._address, self.name, self._seen.see):
            yield
            written = len(read_topic(self._address, self.name))
            query.wait_for(lambda: len(self._seen.places) >= written)

    def ids(self) -> Counter[str]:
        return Seen(read_topic(self._address, self.name)).ids

    def checks(self, load: Load) -> list[Check]:
        every = read_topic(self._address, self.name, committed=False)
        return judged(load, read_topic(self._address, self.name), every, self._seen)


def judged(load: Load, committed: list[Record], every: list[Record], seen: Seen) -> list[Check]:
    """Return the figures of a topic, as clients read it with `read_committed` and without.

    A reader has `seen` it while the query ran.
    """
    out = Seen(committed)
    aborted = {(record.partition, record.offset) for record in every} - out.places
    return [
        same("  out of a customer's order", len(out.misplaced), 0),
        same("seen by the reader meanwhile", len(seen.places), load.distinct),
        same("  twice at any moment", seen.twice, 0),
        same("  out of a customer's order", len(seen.misplaced), 0),
        more("aborted records in the topic", len(aborted), 0),
        same("  seen by the reader", len(aborted & seen.places), 0),
    ]


class Table(Target):
    """A new table without a unique index, on a server that restarts once under the query.

    `run` runs a statement and returns the rows, or raises `away` while the server restarts.
    """

    moments = ("kit.marker.after", "kit.commit.after", "kit.rows.sent")

    def __init__(
        self,
        name: str,
        columns: str,
        sink: tuple[str, dict[str, str]],
        run: Callable[[str], list[tuple[Any, ...]]],
        away: type[Exception],
        restart: Callable[[], None],
    ) -> None:
        self.name = name.replace("-", "_")
        self.format, where = sink
        self.options = where | {"table": self.name}
        self.arguments = (self.format, json.dumps(self.options))
        self._run, self._away, self._restart = run, away, restart
        self._looks = self._most_of_one = self._restarts = 0
        run(f"CREATE TABLE {self.name} {columns}")

    @contextmanager
    def watched(self, query: QueryProcess) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._look, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _look(self, stop: threading.Event) -> None:
        """Ask the table again and again for rows that are there twice."""
        while not stop.wait(0.3):
            try:
                found = self.ids()
            except self._away:  # the server restarts
                continue
            self._looks += 1
            self._most_of_one = max(self._most_of_one, *found.values(), 0)

    def disturb(self, query: QueryProcess) -> None:
        query.wait_for(lambda: query.newest("commits") == query.newest("offsets"))
        self._restart()
        self._restarts += 1

    def ids(self) -> Counter[str]:
        return Counter(dict(self._run(f"SELECT id, count(*) FROM {self.name} GROUP BY id")))

    def checks(self, load: Load) -> list[Check]:
        return [
            more("looks of the reader at the table", self._looks, 0),
            same("  rows of one order, at most", self._most_of_one, 1),
            same("restarts of the server", self._restarts, 1),
        ]


def postgres_table(server: PostgresServer, name: str) -> Table:
    return Table(
        name, "(id text, number bigint, text text)",
        ("dedup_postgres", {"dsn": server.dsn()}),
        Postgres(server.dsn(), Path()).run, psycopg.OperationalError, server.restart,
    )  # fmt: skip


def mysql_table(server: MysqlServer, name: str) -> Table:
    where = server.where("test")
    Mysql(server.where(), Path()).run("CREATE DATABASE test")
    return Table(
        name, "(id text, number bigint, text text) CHARACTER SET utf8mb4",
        ("dedup_mysql", {f"mysql.{key}": value for key, value in where.items()}),
        Mysql(where, Path()).run, pymysql.OperationalError, server.restart,
    )  # fmt: skip
