"""A server that only reads now may write later; a role that only reads never does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dedup.errors import ConfigError, SinkError, restart_helps
from tests.databases.database import Sink
from tests.databases.postgres import Postgres
from tests.databases.postgres_server import PostgresServer
from tests.support.connections import forget_connections

SETTING = "default_transaction_read_only"
NOW = ("SELECT pg_reload_conf()", "SELECT pg_sleep(0.2)")


@pytest.fixture
def own(postgres: Postgres) -> Postgres:
    """A whole database, whose settings no other test has."""
    [(name,)] = postgres.run("SELECT current_user")
    postgres.run(f"CREATE DATABASE {name}")
    return postgres.changed(dbname=name)


@pytest.fixture
def sink(own: Postgres) -> Sink:
    """With one micro-batch published by the driver, so that tasks publish the next ones."""
    made = Sink(own)
    made.batch("run1", 0, [0])
    return made


@pytest.fixture
def writing(own: Postgres) -> Iterator[Postgres]:
    """Its sessions may write under any setting of role and database."""
    yield own.changed(options=f"-c {SETTING}=off")
    forget_connections()


def start(db: Postgres) -> None:
    """Check the tables, as a query does at its start."""
    db.work(table="numbers", timeout_seconds="1")


@pytest.mark.parametrize("whose", ["DATABASE {0}", "ROLE {0} IN DATABASE {0}"])
def test_a_read_only_database_or_role_is_a_configuration_error(
    sink: Sink, own: Postgres, writing: Postgres, whose: str
) -> None:
    """A start and a task report it, and both succeed once it is reset."""
    [(name,)] = own.run("SELECT current_database()")
    own.run(f"ALTER {whose.format(name)} SET {SETTING} = on")
    forget_connections()
    reading = own.changed(options=f"-c {SETTING}=on")
    for attempt in (lambda: sink.task("run1", 1, 0, [1]), lambda: start(reading)):
        with pytest.raises(ConfigError, match=f"{SETTING} is on for this ") as told:
            attempt()
        assert not restart_helps(told.value)
    writing.run(f"ALTER {whose.format(name)} RESET {SETTING}")
    sink.batch("run1", 1, [1])
    sink.assert_once(2)


@pytest.mark.parametrize("only", [{}, {"target_session_attrs": "read-write"}], ids=str)
def test_a_read_only_dsn_is_a_configuration_error(postgres: Postgres, only: dict[str, str]) -> None:
    """It is one even if libpq itself rejects the session."""
    postgres.run("CREATE TABLE numbers (n integer, text text)")
    with pytest.raises(ConfigError, match="is on for this client") as told:
        start(postgres.changed(options=f"-c {SETTING}=on", **only))
    assert not restart_helps(told.value)


def test_a_restart_helps_once_a_read_only_server_is_writable_again(
    sink: Sink, own: Postgres, writing: Postgres
) -> None:
    own.run(f"ALTER SYSTEM SET {SETTING} = on", *NOW)
    forget_connections()
    try:
        for attempt in (lambda: sink.task("run1", 1, 0, [1]), lambda: start(own)):
            with pytest.raises(SinkError, match="only is on in its settings") as told:
                attempt()
            assert restart_helps(told.value)
    finally:
        writing.run(f"ALTER SYSTEM RESET {SETTING}", *NOW)
    sink.batch("run1", 1, [1])
    sink.assert_once(2)


@pytest.mark.parametrize("options", ["", f"-c {SETTING}=on"], ids=["role", "read-only role"])
def test_a_restart_helps_once_a_standby_is_promoted(
    postgres_server: PostgresServer, sink: Sink, own: Postgres,
    options: str,
) -> None:  # fmt: skip
    """After a failover the same connection settings may lead to a standby."""
    postgres_server.become_standby()
    reading = own.changed(options=options)
    try:
        for attempt in (lambda: sink.task("run1", 1, 0, [1]), lambda: start(reading)):
            with pytest.raises(SinkError, match=r"is a standby.*target_session_attrs") as told:
                attempt()
            assert restart_helps(told.value)
    finally:
        own.run("SELECT pg_promote()")
    sink.batch("run1", 1, [1])
    sink.assert_once(2)
