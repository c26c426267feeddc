"""Lost replies, ended sessions, crashes and backups: each row is in the table once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dedup.errors import SinkError
from dedup.sinks.protocol import PublishedSlice
from tests.databases.database import HARMS, Database, Sink, cases
from tests.support.proxy import Harm, Proxy


@pytest.mark.parametrize("harm", HARMS)
def test_a_tasks_commit_without_a_reply_loses_and_repeats_nothing(
    db: Database, proxy: Proxy, harm: Harm
) -> None:
    sink = Sink(db.by_port(proxy.port))
    sink.batch("run1", 0, [0], [1])
    fault = proxy.strike(harm, db.is_commit)
    try:
        answer = sink.task("run1", 1, 0, [2])
    except SinkError:  # Spark retries the task
        assert harm is not Harm.CUT_AFTER, "the marker shows that the commit is done"
        answer = sink.task("run1", 1, 0, [2])
    fault.wait()
    if harm is Harm.HOLD:
        fault.release()
    assert isinstance(answer.slice, PublishedSlice)
    sink.finish([answer, sink.task("run1", 1, 1, [3])])
    sink.batch("run1", 2, [4], [5])
    sink.assert_once(6)


#: A COPY of PostgreSQL reports a lost session at its end, when the pause is over.
@cases("pause_s", both=[(0,)], mysql=[(1.1,)])
def test_a_session_that_ends_while_spark_computes_is_explained(sink: Sink, pause_s: float) -> None:
    """Kept connections that end, too, are replaced."""

    def rows() -> Iterator[int]:
        yield 2
        time.sleep(pause_s)
        sink.db.end_sessions()
        yield 3

    pause = r"the transaction waited \d s for rows of Spark\. If .* raise its limit"
    why = pause if pause_s else "terminating connection|Lost connection|gone away|killed"
    with pytest.raises(SinkError, match=f"(?s)This attempt to write slice 0 .*({why})"):
        sink.task("run1", 1, 0, rows())
    sink.task("run1", 1, 0, [2])
    sink.db.end_sessions()
    sink.batch("run1", 1, [2], [3])
    sink.assert_once(4)


def test_a_server_crash_in_a_transaction_loses_nothing(server: Any, sink: Sink) -> None:
    def rows() -> Iterator[int]:
        yield 2
        server.crash()
        server.start()
        yield 3

    with pytest.raises(SinkError, match=r"(?s)it published nothing.*Spark retries the task"):
        sink.task("run1", 1, 0, rows())
    sink.batch("run1", 1, [2, 3], [4])
    sink.assert_once(5)


def test_the_sink_waits_for_a_server_that_restarts(server: Any, sink: Sink) -> None:
    server.crash()
    starter = threading.Timer(0.5, server.start)
    starter.start()
    sink.task("run1", 1, 0, [2])
    starter.join()
    sink.batch("run1", 1, [2], [3])
    sink.assert_once(4)


def test_a_server_that_was_restored_from_a_backup_is_rejected(sink: Sink) -> None:
    """The process remembers what it published, for example in the same notebook."""
    sink.db.run("CREATE TABLE backup AS SELECT * FROM dedup_markers")
    sink.batch("run1", 1, [2], [3])
    sink.db.run("DELETE FROM dedup_markers", "INSERT INTO dedup_markers SELECT * FROM backup")
    with pytest.raises(SinkError, match=r"lost what it had committed: slice 0 .* micro-batch 1"):
        sink.task("run1", 2, 0, [4])
    sink.db.run("TRUNCATE dedup_markers")
    with pytest.raises(SinkError, match="lost what it had committed"):
        sink.batch("run2", 2, [4])
    sink.assert_once(4)
    Sink(sink.db, accept_lost_markers="true").batch("run3", 2, [4])
    sink.assert_once(5)
