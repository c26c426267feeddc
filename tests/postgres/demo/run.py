"""The demonstration: what happens in which order, and what is counted at the end.

The table has no unique index: a row that came twice would be there twice.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psycopg

from dedup.cli.demo import Check
from dedup.testing import faults
from tests.kafka.demo.producers import Load, Producers
from tests.kafka.demo.query_process import QueryProcess
from tests.kafka.records import make_topic, read_topic
from tests.postgres.server import Server
from tests.postgres.tables import run as run_sql

#: Steps of the sink at which the query is killed: all is with the server and uncommitted; one task
#: has committed and Spark does not know; rows are written.
MOMENTS = ("postgres.marker.after", "postgres.commit.after", "postgres.rows.sent")
SCRIPT = Path(__file__).with_name("load_orders.py")
_TIMEOUT_S = 400.0
_OTHERS_GO_ON_S = 0.2

Note = Callable[[str], None]


class Reader:
    """Asks the table again and again for rows that are there twice; a context manager.

    Parameters
    ----------
    server : Server
    table : str
    """

    def __init__(self, server: Server, table: str) -> None:
        self._dsn, self._table = server.dsn(), table
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.looks = 0
        self.most_of_one = 0

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        asked = f"SELECT count(*) FROM {self._table} GROUP BY id ORDER BY 1 DESC LIMIT 1"
        while not self._stop.wait(0.3):
            try:
                found = run_sql(self._dsn, asked)
            except psycopg.OperationalError:  # the server restarts
                continue
            self.looks += 1
            self.most_of_one = max([self.most_of_one, *(row[0] for row in found)])


def run(servers: str, server: Server, folder: Path, load: Load, note: Note) -> list[Check]:
    """Run the demonstration; return every figure against what it must be.

    Parameters
    ----------
    servers : str
        Of the broker; a topic of a new name is made there.
    server : Server
        Of PostgreSQL.
    folder : Path
        Of checkpoint, catalog and logs.
    load : Load
        There is a kill between each two of its stretches.
    note : callable
        Takes a line about each step.

    Raises
    ------
    OSError
        If broker, server or query fail in a way that no one caused.
    """
    name = uuid.uuid4().hex[:6]
    source, table = make_topic(servers, f"orders-{name}", 2), f"orders_{name}"
    run_sql(server.dsn(), f"CREATE TABLE {table} (id text, number bigint, text text)")
    producers = Producers(servers, source, load)
    query = QueryProcess(servers, source, table, folder, script=SCRIPT, more=[server.dsn()])
    half_done = restarts = 0
    try:
        with Reader(server, table) as reader:
            producers.start()
            note(
                f"{load.producers} producers send {load.distinct:,} orders to topic {source}, and "
                f"some batches again; a reader watches table {table}."
            )
            for number in range(load.stretches - 1):
                _start(query, producers, note)
                half_done += _kill_at(MOMENTS[number % len(MOMENTS)], query, server, note)
            _start(query, producers, note)
            _until(lambda: query.newest("commits") > query.newest("offsets") - 1, query)
            server.restart()
            restarts += 1
            note("Restarted PostgreSQL under the query.")
            _until(lambda: producers.done, query)
            _until(query.has_read_all, query)
        given = [json.loads(record.value or b"")["id"] for record in read_topic(servers, source)]
        found = Counter(row[0] for row in run_sql(server.dsn(), f"SELECT id FROM {table}"))
    finally:
        query.kill()
    return [
        *judged(load, producers.sent, given, found),
        Check("looks at the table meanwhile", reader.looks, "more than 0", reader.looks > 0),
        _same("  rows of one order, at most", reader.most_of_one, 1),
        _same("kills of the query", query.starts - 1, load.stretches - 1),
        _same("  in the midst of a micro-batch", half_done, load.stretches - 1),
        _same("restarts of the server", restarts, 1),
    ]


def judged(load: Load, sent: int, given: list[str], found: Counter[str]) -> list[Check]:
    """Return the figures of the output.

    Parameters
    ----------
    load : Load
    sent : int
        Records that the broker acknowledged.
    given : list of str
        IDs of all records in the topic.
    found : Counter of str
        How many rows the table has of each ID.
    """
    repeated = len(given) - len(set(given))
    return [
        _same("records in", len(given), sent),
        _same("  distinct", len(set(given)), load.distinct),
        Check("  sent again by a retry", repeated, "more than 0", repeated > 0),
        _same("rows in the table", found.total(), load.distinct),
        _same("  lost", len(set(given) - set(found)), 0),
        _same("  duplicated", found.total() - len(found), 0),
    ]


def _start(query: QueryProcess, producers: Producers, note: Note) -> None:
    producers.go_on()
    pid = query.start()
    note(f"Start {query.starts}: the query runs as process {pid}.")


def _kill_at(point: str, query: QueryProcess, server: Server, note: Note) -> int:
    """Kill the query in the midst of a micro-batch; return 1 if it was there.

    The first task that comes to the point stands still there until the kill, others continue.
    """
    begun = query.newest("commits")
    _until(lambda: query.newest("commits") > begun, query)
    struck = len(faults.fired(query.faults))
    faults.arm(query.faults, point, "freeze", query.starts)
    _until(lambda: len(faults.fired(query.faults)) > struck, query)
    time.sleep(_OTHERS_GO_ON_S)
    processes, batch_id = query.kill(), query.newest("offsets")
    is_under_way = query.newest("commits") < batch_id
    rows = run_sql(
        server.dsn(),
        "SELECT coalesce(sum((marker::json ->> 'rows')::int), 0) FROM dedup_markers "
        f"WHERE (marker::json ->> 'batch_id')::int = {batch_id}",
    )[0][0]
    note(
        f"Killed all {processes} processes of the query in micro-batch {batch_id}, {rows:,} of "
        "whose rows are in the table already."
    )
    return int(is_under_way)


def _until(so: Callable[[], bool], query: QueryProcess) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not so():
        query.check_alive()
        if time.monotonic() > deadline_s:
            raise OSError(f"The query was not done within {_TIMEOUT_S:.0f} s.")
        time.sleep(0.02)


def _same(name: str, value: int, expected: int) -> Check:
    return Check(name, value, f"{expected:,}", value == expected)
