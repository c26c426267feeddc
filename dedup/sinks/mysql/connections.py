"""Connect to MySQL and MariaDB, keep connections for reuse in a process, and translate errors."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dedup.errors import ConfigError
from dedup.errors.lazy import library
from dedup.errors.redaction import without_secrets
from dedup.sinks.kit.database import give_back, no_connection, rejected_record, take_connection
from dedup.sinks.mysql.options import MysqlOptions
from dedup.sinks.protocol import Aborted, Disconnected

#: Seconds that a statement may take, besides the wait for a lock, before its server counts as dead.
_ANSWER_S = 120
#: Seconds for which Spark may have no rows for an open transaction. MySQL's own default.
_IDLE_S = 28_800
#: Settings of each session. The strict mode rejects values that do not fit. Without
#: NO_AUTO_VALUE_ON_ZERO the server would replace a 0 in a column with AUTO_INCREMENT. The isolation
#: lets a session that waited for a lock see what the lock's holder committed. The server's limits
#: for idle sessions are for forgotten sessions, and here Spark may compute. MySQL takes the part
#: for MariaDB as a comment.
_SESSION = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_AUTO_VALUE_ON_ZERO,"
    "NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', innodb_lock_wait_timeout = {timeout_s}",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
    f"SET SESSION wait_timeout = {_IDLE_S} /*M!100300 , idle_transaction_timeout = {_IDLE_S}, "
    f"idle_write_transaction_timeout = {_IDLE_S}, idle_readonly_transaction_timeout = {_IDLE_S} */",
)


def mysql_library() -> Any:
    return library("mysql", "Writing to MySQL", "pymysql")


def connected(options: MysqlOptions) -> Any:
    """Return a kept connection, or a new one.

    Raises SinkError if the server does not answer within the option ``timeout.seconds``. Raises
    ConfigError if the server rejects the user, or if the database does not exist.
    """
    library = mysql_library()
    answer_s = options.timeout_seconds + _ANSWER_S
    arguments: dict[str, Any] = {"read_timeout": answer_s, "write_timeout": answer_s}
    arguments |= dict(options.connect)
    if "password" in arguments:
        arguments["password"] = arguments["password"].encode()  # PyMySQL would take Latin-1

    def connect() -> Any:
        made = library.connect(**arguments, charset="utf8mb4", autocommit=False, local_infile=False)
        with made.cursor() as cursor:
            for statement in _SESSION:
                cursor.execute(statement.format(timeout_s=options.timeout_seconds))
        return made

    try:
        return take_connection(options.connect, connect, _may_pass, options.timeout_seconds)
    except configparser.Error as error:
        # The text of the error has lines of the file, which may be a password.
        problem = f"the file of mysql.read_default_file has a {type(error).__name__}"
        raise no_connection("MySQL", "the options mysql.*", problem, may_pass=False) from None
    except (library.Error, TypeError, ValueError, OSError, RuntimeError) as error:
        # PyMySQL rejects arguments, cannot read a file, or lacks a library.
        problem, may_pass = _shown(options, error), _may_pass(error)
        raise no_connection("MySQL", "the options mysql.*", problem, may_pass=may_pass) from None


@contextmanager
def session(options: MysqlOptions) -> Iterator[Any]:
    """Yield a cursor of a connection, and roll back at the end."""
    connection = connected(options)
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        give_back(options.connect, connection)


#: Codes of errors that are not about the rows (MySQL's manual and MariaDB's, "Error Codes"): lost
#: and refused connections, and servers that start or stop.
_AWAY = frozenset({1040, 1047, 1053, 1077, 1203, 1226, 1927, 2002, 2003, 2006, 2013, 2014, 2055,
                   4031})  # fmt: skip
#: Full disks, lost memory, deadlocks, lock waits, time limits, and servers that became replicas.
_TRANSIENT = _AWAY | {1021, 1028, 1030, 1037, 1038, 1041, 1114, 1158, 1159, 1160, 1161, 1180, 1184,
                      1205, 1206, 1213, 1290, 1317, 1412, 1836, 1969, 3024, 3101}  # fmt: skip
#: Codes of errors about users, tables, columns, triggers, privileges and settings.
_CONFIG = frozenset({1044, 1045, 1046, 1049, 1054, 1064, 1066, 1095, 1098, 1115, 1136, 1142, 1143,
                     1146, 1227, 1273, 1305, 1356, 1364, 1370, 1442, 1449, 1665})  # fmt: skip
_LOCK_WAIT, _NO_SESSION = 1205, 1094
#: Number of a row within its statement, which means nothing to the user.
_ROW = re.compile(r" at row \d+$")


def _translated(options: MysqlOptions, error: Exception) -> Exception:
    """Translate the server's error for a transaction that is rolled back.

    Returns a `DataError` about a record, a `ConfigError` about the table or its privileges, or
    `Aborted` if another attempt may succeed.
    """
    text = f"Table {options.table}: {_shown(options, error)}"
    if _code(error) in _CONFIG:
        return ConfigError(f"{text}. Nothing was written. Change the table or its privileges.")
    if _code(error) in _AWAY or _code(error) <= 0:
        return Disconnected(text)
    if _code(error) in _TRANSIENT:
        return Aborted(text)
    return rejected_record(f"{text}.")


@contextmanager
def translated_errors(options: MysqlOptions) -> Iterator[None]:
    try:
        yield
    except mysql_library().Error as error:
        raise _translated(options, error) from None


def is_lock_wait(error: Exception) -> bool:
    return _code(error) == _LOCK_WAIT


def end_session(cursor: Any, number: int) -> None:
    """End a session of the server. Does nothing if the session has ended already."""
    try:
        cursor.execute(f"KILL {number}")
    except mysql_library().Error as error:
        if _code(error) != _NO_SESSION:
            raise


def _may_pass(error: Exception) -> bool:
    return _code(error) in _AWAY


def _code(error: Exception) -> int:
    code = error.args[0] if error.args else 0
    return code if isinstance(code, int) else -1


def _shown(options: MysqlOptions, error: Exception) -> str:
    text = " ".join(str(error.args[-1] if error.args else error).split()).rstrip(".")
    text = _ROW.sub("", text)
    return without_secrets(text, {name: str(value) for name, value in options.connect})
