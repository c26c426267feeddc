"""Keep connections to PostgreSQL for reuse in a process, and translate PostgreSQL's errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from dedup.errors import ConfigError, DataError, DedupError, SinkError
from dedup.errors.lazy import library
from dedup.errors.redaction import without_secrets
from dedup.sinks.kit import database
from dedup.sinks.postgres.options import PostgresOptions
from dedup.sinks.protocol import Aborted, Disconnected

if TYPE_CHECKING:
    import psycopg

Connection: TypeAlias = "psycopg.Connection[Any]"

#: Connection defaults, which the DSN may override. They let a process that waits for an answer
#: detect a dead server within half a minute (keepalives). A process that sends data waits up to two
#: minutes, because a live server that waits for a lock does not read data.
_SESSION = {
    "application_name": "dedup",
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "120000",
}


def psycopg_library() -> ModuleType:
    return library("postgres", "Writing to PostgreSQL", "psycopg", "pgpq")


def connected(dsn: str, timeout_s: float) -> Connection:
    """Return a kept connection, or a new one.

    Raises SinkError if the server does not answer within `timeout_s`, or is still starting then.
    Raises ConfigError if the server rejects the user, or if the database does not exist.
    """
    library = psycopg_library()

    def connect() -> Connection:
        settings = library.conninfo.conninfo_to_dict(dsn)
        defaults = {name: value for name, value in _SESSION.items() if name not in settings}
        made: Connection = library.connect(
            dsn, **defaults, client_encoding="UTF8", prepare_threshold=None
        )
        # A session that waited for a lock must see what the lock's holder committed.
        made.isolation_level = library.IsolationLevel.READ_COMMITTED
        return made

    try:
        return database.take_connection(dsn, connect, _may_pass, timeout_s)
    except library.Error as error:
        raise _no_connection(dsn, error) from None


def give_back(dsn: str, connection: Connection) -> None:
    if connection.info.transaction_status == psycopg_library().pq.TransactionStatus.ACTIVE:
        # It has an open COPY, and a rollback would wait forever. To close it rolls the COPY back.
        connection.close()
    else:
        database.give_back(dsn, connection)


@contextmanager
def transaction(options: PostgresOptions) -> Iterator[Connection]:
    """Yield a connection in a transaction. Commit if the block succeeds, and otherwise roll back.

    Raises the errors of `connected`.
    """
    connection = connected(options.dsn, options.timeout_seconds)
    try:
        yield connection
        connection.commit()
    finally:
        give_back(options.dsn, connection)


def refuse_read_only(connection: Connection, settings: str = "") -> None:
    """Run the statements `settings`. If the connection only reads, close it and raise an error.

    The error is a ConfigError if the role, the database or the DSN says so. Otherwise it is a
    SinkError, because a server may become the primary, and a new connection may find another one.
    """
    cursor = connection.execute(f"SHOW transaction_read_only; {settings}".encode())
    if cursor.fetchone() == ("off",):
        return
    is_standby, source = connection.execute(_WHY_READ_ONLY).fetchone() or (True, "")
    connection.close()
    if not is_standby and source in _OWN_SETTING:
        raise ConfigError(
            "PostgreSQL takes no writes with this dsn: default_transaction_read_only is on for "
            f"this {source}. Nothing was written. Reset it (ALTER ROLE, ALTER DATABASE, or the "
            "options of the dsn), or use another role."
        )
    why = "it is a standby" if is_standby else "default_transaction_read_only is on in its settings"
    raise SinkError(
        f"The server of PostgreSQL takes no writes now: {why}. Nothing was written. Start the "
        "query again once it writes. target_session_attrs=read-write in the dsn finds the primary "
        "among several hosts."
    )


@contextmanager
def translated_errors(table: str) -> Iterator[None]:
    library = psycopg_library()
    try:
        yield
    except library.Error as error:
        raise translate_error(error, table) from None


#: Classes of errors that are not about the rows, but about connections, transactions, resources,
#: locks, administrators who intervene, and the server's own faults. The empty class is included.
_SERVER_CLASSES = re.compile("|08|0B|25|26|3B|40|53|55|57|58|72|F0|HV|XX")
#: Classes and codes of errors that every attempt meets. A trigger that ends the transaction raises
#: 2D000, a trigger whose command needs a transaction of its own raises 25001, and an upsert with a
#: deferrable unique index raises 55000.
_CONFIG_CODES = ("42", "0A", "28", "2B", "2D", "3D", "3F", "25000", "25001", "55000")
#: Settings of the server or user that end a transaction, by the code of their error.
_TIME_LIMITS = {"57014": "statement_timeout", "25P04": "transaction_timeout"}
#: Sources of a setting (`pg_settings`) that every attempt meets again.
_OWN_SETTING = ("user", "database", "database user", "global", "client")
_WHY_READ_ONLY = """
SELECT pg_is_in_recovery(), source FROM pg_settings WHERE name = 'default_transaction_read_only'
"""
#: Pattern of the line and column of a COPY in the context of an error.
_PLACE = re.compile(r"COPY [^,\n]+, line (\d+)(?:, column [^:\n]+)?")


def rejected_record(reason: str) -> DataError:
    return database.rejected_record(reason, "; or let the option quarantine set such records aside")


def reason_of(error: DataError) -> str:
    return error.text.partition(database.NOTHING_WRITTEN)[0]


def translate_error(error: Any, table: str) -> Exception:
    """Translate PostgreSQL's error for a transaction that was rolled back.

    Returns a `DataError` about a record, a `ConfigError` about the table or its privileges, or
    `Aborted` if another attempt may succeed.
    """
    state, diag = error.sqlstate or "", error.diag
    message = (diag.message_primary or str(error)).rstrip(".")
    detail = f" {diag.message_detail}" if diag.message_detail else ""
    place = _PLACE.search(diag.context or "")
    text = f"Table {table}: {message}{f' ({place[0]})' if place else ''}"
    if state in _TIME_LIMITS and "user" not in message:  # a COPY may wait for Spark until the limit
        text += f"; `-c {_TIME_LIMITS[state]}=0` among the options of the dsn lifts a time limit"
    if state.startswith(_CONFIG_CODES):
        return ConfigError(
            f"{text}.{detail} Nothing was written. Change the table or its privileges."
        )
    if _SERVER_CLASSES.fullmatch(state[:2]) and not (state == "08P01" and place):  # wrong bytes
        return (Disconnected if diag.severity in (None, "FATAL") else Aborted)(text)
    return rejected_record(f"{text}.{detail}")  # a trigger may raise any code


def copied_line(error: Any) -> int | None:
    """Return the number of the COPY line that an error names, from 1 on, or None without a line."""
    place = _PLACE.search(error.diag.context or "")
    return int(place[1]) if place else None


#: Pattern of permanent errors while connecting. psycopg gives no code for these errors.
_PERMANENT = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|does not exist|"
    r"permission denied|could not translate host name|invalid (?:connection option|dsn|port)|"
    r"missing \"=\"|does not support SSL|certificate"
)


def _may_pass(error: Any) -> bool:
    if not isinstance(error, psycopg_library().OperationalError):
        return False  # such as a DSN that is not valid
    is_permanent = _PERMANENT.search(str(error)) is not None
    return not is_permanent and not (error.sqlstate or "").startswith(("28", "3D", "42"))


def _no_connection(dsn: str, error: Any) -> DedupError:
    text = without_password(dsn, " ".join(str(error).split()).rstrip("."))
    if "session is read-only" in text:  # target_session_attrs=read-write rejects a role, too
        with suppress(psycopg_library().Error):
            refuse_read_only(psycopg_library().connect(dsn, target_session_attrs="any"))
    return database.no_connection("PostgreSQL", "the option dsn", text, may_pass=_may_pass(error))


def without_password(dsn: str, text: str) -> str:
    parts: dict[str, Any] = {}
    try:
        parts = psycopg_library().conninfo.conninfo_to_dict(dsn)
    except psycopg_library().Error:
        text = re.sub(r'".*"', '"..."', text, flags=re.DOTALL)  # quotes may hold part of the DSN
    named = {name: str(value) for name, value in parts.items() if value}
    text = without_secrets(text, {**named, "dsn": dsn})
    if "password=" in text:  # a wrong separator hides the password in another part
        text = text.partition("password=")[0] + "password=..."
    return text
