"""Connect to MySQL and MariaDB, keep connections for reuse in a process, and translate errors."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dedup.errors import ConfigError, DataError, DedupError, MissingExtraError, SinkError
from dedup.errors.redaction import without_secrets
from dedup.sinks.mysql.options import MysqlOptions
from dedup.sinks.protocol import Aborted

_RETRY_S = 0.2
#: Number of free connections that a process keeps for each server and user.
_KEPT = 2
#: Settings of each session. The strict mode rejects values that do not fit, and the isolation lets
#: a session that waited for a lock see what the lock's holder committed.
_SESSION = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,"
    "NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', innodb_lock_wait_timeout = {timeout_s}",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)

_free: dict[tuple[Any, ...], list[Any]] = {}
# A forked child must not use its parent's connections. The child only forgets them: to close them
# would end the parent's sessions.
os.register_at_fork(after_in_child=_free.clear)


def mysql_library() -> Any:
    try:
        import pymysql
    except ImportError:
        raise MissingExtraError("mysql", "Writing to MySQL") from None
    return pymysql


def connected(options: MysqlOptions) -> Any:
    """Return a kept connection, or a new one.

    Raises SinkError if the server does not answer within the option ``timeout.seconds``. Raises
    ConfigError if the server rejects the user, or if the database does not exist.
    """
    while kept := _free.get(options.connect):
        connection = kept.pop()
        with suppress(mysql_library().Error):
            connection.ping(reconnect=False)
            return connection
    deadline_s = time.monotonic() + options.timeout_seconds
    given = {"connect_timeout": 10, **dict(options.connect)}
    while True:
        try:
            made = mysql_library().connect(
                **given, charset="utf8mb4", autocommit=False, local_infile=False
            )
            with made.cursor() as cursor:
                for statement in _SESSION:
                    cursor.execute(statement.format(timeout_s=options.timeout_seconds))
            return made
        except mysql_library().Error as error:
            if _code(error) not in _AWAY or time.monotonic() > deadline_s:
                raise _no_connection(options, error) from None
            time.sleep(_RETRY_S)
        except (TypeError, ValueError, OSError) as error:  # PyMySQL rejects arguments, or a file
            raise _no_connection(options, error) from None


def give_back(options: MysqlOptions, connection: Any) -> None:
    """Roll back a connection's open transaction, and keep the connection for reuse."""
    free = _free.setdefault(options.connect, [])
    with suppress(Exception):
        connection.rollback()
        if len(free) < _KEPT:
            free.append(connection)
            return
    with suppress(Exception):
        connection.close()


def forget_connections() -> None:
    while _free:
        for connection in _free.popitem()[1]:
            connection.close()


@contextmanager
def session(options: MysqlOptions) -> Iterator[Any]:
    """Yield a cursor of a connection, and roll back at the end."""
    connection = connected(options)
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        give_back(options, connection)


#: Codes of errors that are not about the rows: lost and refused connections, servers that start,
#: stop or became replicas, deadlocks and lock waits (MySQL's manual, "Server Error Messages").
_AWAY = frozenset({1040, 1053, 1077, 1927, 2002, 2003, 2006, 2013, 2014, 2055})
_TRANSIENT = _AWAY | {1028, 1041, 1114, 1158, 1159, 1160, 1161, 1180, 1205, 1213, 1290, 1317, 1836}
#: Codes of errors about users, tables, columns and privileges.
_CONFIG = frozenset({1044, 1045, 1046, 1049, 1054, 1064, 1098, 1115, 1142, 1143, 1146, 1227, 1273})
LOCK_WAIT = 1205
_ROW = re.compile(r" at row (\d+)$")
_ADVICE = (
    " Nothing of its slice was written. Fix the record at its origin, or the table, and start the "
    "query again."
)


def rejected_record(reason: str) -> DataError:
    """Return the error for a record that the table rejects. `reason` consists of sentences."""
    return DataError(reason + _ADVICE)


def translate_error(options: MysqlOptions, error: Exception) -> Exception:
    """Translate the server's error for a transaction that was rolled back.

    Returns a `DataError` about a record, a `ConfigError` about the table or its privileges, or
    `Aborted` if another attempt may succeed.
    """
    text = f"Table {options.table}: {_shown(options, error)}"
    if _code(error) in _CONFIG:
        return ConfigError(f"{text}. Nothing was written. Change the table or its privileges.")
    if _code(error) in _TRANSIENT or _code(error) == 0:
        return Aborted(text)
    return rejected_record(f"{text}.")


@contextmanager
def translated_errors(options: MysqlOptions) -> Iterator[None]:
    try:
        yield
    except mysql_library().Error as error:
        raise translate_error(options, error) from None


def rejected_row(error: Exception) -> int | None:
    """Return the number of the row of a statement that an error names, from 1 on, or None."""
    found = _ROW.search(str(error.args[-1]))
    return int(found[1]) if found else None


def is_lock_wait(error: Exception) -> bool:
    return _code(error) == LOCK_WAIT


def _code(error: Exception) -> int:
    code = error.args[0] if error.args else 0
    return code if isinstance(code, int) else -1


def _shown(options: MysqlOptions, error: Exception) -> str:
    text = " ".join(str(error.args[-1] if error.args else error).split()).rstrip(".")
    return without_secrets(text, {name: str(value) for name, value in options.connect})


def _no_connection(options: MysqlOptions, error: Exception) -> DedupError:
    text = _shown(options, error)
    if _code(error) in _AWAY:
        return SinkError(
            f"No connection to MySQL: {text}. Nothing was written. Start the query again once the "
            "server answers, or correct the options mysql.*."
        )
    return ConfigError(
        f"MySQL cannot be used with these options mysql.*: {text}. Correct them, or the server's "
        "users and databases."
    )
