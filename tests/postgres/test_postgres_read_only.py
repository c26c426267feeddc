"""A server that only reads now may write later; a role that only reads never does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dedup.errors import ConfigError, SinkError, restart_helps
from dedup.sinks.postgres.options import postgres_options
from dedup.sinks.postgres.sink import ready
from tests.postgres.server import Server
from tests.postgres.tables import Sink, once, run
from tests.support.connections import forget_connections

SETTING = "default_transaction_read_only"


def start(dsn: str, folder: Path) -> None:
    """Check the tables, as a query does at its start."""
    given = {"dsn": dsn, "table": "numbers", "checkpointLocation": str(folder)}
    ready(postgres_options(given | {"timeout.seconds": "1"}), [("n", "int"), ("text", "string")])


@pytest.fixture
def sink(database: str, tmp_path: Path) -> Sink:
    """With one micro-batch published by the driver, so that tasks publish the next ones."""
    made = Sink(database, tmp_path)
    made.batch("run1", 0, [0])
    return made


@pytest.fixture
def writing(database: str) -> Iterator[str]:
    """A DSN whose sessions write whatever the settings of role and database."""
    yield f"{database} options='-c {SETTING}=off'"
    forget_connections()


@pytest.mark.parametrize("whose", ["DATABASE {}", "ROLE postgres IN DATABASE {}"])
def test_a_read_only_database_or_role_is_a_configuration_error(
    sink: Sink, database: str, writing: str, tmp_path: Path, whose: str
) -> None:
    """A start and a task report it, and both succeed once it is reset."""
    whose = whose.format(database.split("dbname=")[1])
    run(database, f"ALTER {whose} SET {SETTING} = on")
    forget_connections()
    for attempt in (
        lambda: sink.task("run1", 1, 0, [1]),
        lambda: start(writing[:-4] + "on'", tmp_path),
    ):
        with pytest.raises(ConfigError, match=f"{SETTING} is on for this ") as told:
            attempt()
        assert not restart_helps(told.value)
    run(writing, f"ALTER {whose} RESET {SETTING}")
    sink.batch("run1", 1, [1])
    assert sink.numbers() == once(2)


@pytest.mark.parametrize("only", ["", " target_session_attrs=read-write"])
def test_a_read_only_dsn_is_a_configuration_error(database: str, tmp_path: Path, only: str) -> None:
    """It is one even if libpq itself rejects the session."""
    run(database, "CREATE TABLE numbers (n integer, text text)")
    dsn = f"{database} options='-c {SETTING}=on'{only}"
    with pytest.raises(ConfigError, match="is on for this client") as told:
        start(dsn, tmp_path)
    assert not restart_helps(told.value)


def test_a_restart_helps_once_a_read_only_server_is_writable_again(
    sink: Sink, database: str, writing: str, tmp_path: Path
) -> None:
    run(
        database,
        f"ALTER SYSTEM SET {SETTING} = on",
        "SELECT pg_reload_conf()",
        "SELECT pg_sleep(0.2)",
    )
    forget_connections()
    try:
        for attempt in (lambda: sink.task("run1", 1, 0, [1]), lambda: start(database, tmp_path)):
            with pytest.raises(SinkError, match="only is on in its settings") as told:
                attempt()
            assert restart_helps(told.value)
    finally:
        run(
            writing,
            f"ALTER SYSTEM RESET {SETTING}",
            "SELECT pg_reload_conf()",
            "SELECT pg_sleep(0.2)",
        )
    sink.batch("run1", 1, [1])
    assert sink.numbers() == once(2)


@pytest.mark.parametrize(
    "role", ["", f" options='-c {SETTING}=on'"], ids=["role", "read-only role"]
)
def test_a_restart_helps_once_a_standby_is_promoted(
    server: Server, sink: Sink, database: str, tmp_path: Path, role: str
) -> None:
    """After a failover the same connection settings may lead to a standby."""
    server.become_standby()
    try:
        reading = f"{database}{role}"
        for attempt in (lambda: sink.task("run1", 1, 0, [1]), lambda: start(reading, tmp_path)):
            with pytest.raises(SinkError, match=r"is a standby.*target_session_attrs") as told:
                attempt()
            assert restart_helps(told.value)
    finally:
        run(database, "SELECT pg_promote()")
    sink.batch("run1", 1, [1])
    assert sink.numbers() == once(2)
