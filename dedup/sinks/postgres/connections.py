"""Connections to PostgreSQL that a process keeps, and what its errors mean.

An error of a connection that is lost says nothing about what a commit did; every other error of
PostgreSQL ends the transaction, which is then certain not to be visible (PostgreSQL's manual,
"Error Codes").
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dedup.errors import ConfigError, DataError, DedupError, MissingExtraError, SinkError
from dedup.errors.redaction import without_secrets
from dedup.sinks.protocol import Aborted

if TYPE_CHECKING:
    import psycopg

#: What a session is told where the user's own words say nothing: a peer that is gone is found out
#: within half a minute by who waits for its answer (keepalives), and within two by who sends to it.
#: Not sooner: Linux counts a server that reads nothing, as while it waits for a lock, as gone too.
_SESSION = {
    "application_name": "dedup",
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "120000",
}
_RETRY_S = 0.2
#: Free connections that a process keeps of a server.
_KEPT = 2

_free: dict[str, list[psycopg.Connection[Any]]] = {}
# A child would speak to the server in between its parent's words; its own copies are not closed,
# which would end the parent's session.
os.register_at_fork(after_in_child=_free.clear)


def psycopg_library() -> ModuleType:
    """Return the driver of PostgreSQL.

    Raises
    ------
    MissingExtraError
        If it, or the encoder of rows, is not installed.
    """
    try:
        import pgpq  # noqa: F401
        import psycopg
    except ImportError:
        raise MissingExtraError("postgres", "Writing to PostgreSQL") from None
    return psycopg


def connected(dsn: str, timeout_s: float) -> psycopg.Connection[Any]:
    """Return a connection, one that the process has kept if there is any.

    Parameters
    ----------
    dsn : str
    timeout_s : float
        How long to wait for a server that does not answer, or starts.

    Raises
    ------
    ConfigError
        If the server refuses this user, or there is no such database.
    SinkError
        If no server answers in time.
    """
    while (kept := _taken(dsn)) is not None:
        if is_alive(kept):
            return kept
        kept.close()
    library = psycopg_library()
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            made: psycopg.Connection[Any] = library.connect(
                dsn, **_session(dsn), client_encoding="UTF8", prepare_threshold=None
            )
            # Whoever waits for a lock must see what its holder has committed.
            made.isolation_level = library.IsolationLevel.READ_COMMITTED
            return made
        except library.Error as error:
            if not _is_passing(error) or time.monotonic() > deadline:
                raise _no_connection(dsn, error) from None
            time.sleep(_RETRY_S)


def _taken(dsn: str) -> psycopg.Connection[Any] | None:
    try:
        return _free.get(dsn, []).pop()
    except IndexError:
        return None


def give_back(dsn: str, connection: psycopg.Connection[Any]) -> None:
    """Take a connection back; what is open on it is aborted."""
    status = psycopg_library().pq.TransactionStatus
    if connection.info.transaction_status in (status.INTRANS, status.INERROR):
        with suppress(psycopg_library().Error):
            connection.rollback()
    free = _free.setdefault(dsn, [])
    # One with an open COPY takes no other command: closing it aborts all.
    if connection.info.transaction_status != status.IDLE or len(free) >= _KEPT:
        connection.close()
    else:
        free.append(connection)


def forget_connections() -> None:
    """Close all connections that nobody uses."""
    while _free:
        for connection in _free.popitem()[1]:
            connection.close()


def is_alive(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the server still answers."""
    try:
        connection.execute("SELECT 1")
        connection.rollback()
        return True
    except psycopg_library().Error:
        return False


@contextmanager
def transaction(dsn: str, timeout_s: float) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection whose transaction is committed at the end; errors abort it.

    Parameters
    ----------
    dsn : str
    timeout_s : float
        As of `connected`.
    """
    connection = connected(dsn, timeout_s)
    try:
        yield connection
        connection.commit()
    finally:
        give_back(dsn, connection)


@contextmanager
def explained(table: str) -> Iterator[None]:
    """Tell a user's mistake from a server that was away, and both from a transaction that is lost.

    Raises
    ------
    DataError, ConfigError
        Naming table, column and record.
    Aborted
        Where another attempt may succeed.
    """
    library = psycopg_library()
    try:
        yield
    except library.Error as error:
        raise meaning(error, table) from None


def record_refused(reason: str) -> DataError:
    """Return the error for a record that the table does not take.

    Parameters
    ----------
    reason : str
        Naming the table, as whole sentences.
    """
    return DataError(reason + _ADVICE, remedy="postgres-rows")


def reason_of(error: DataError) -> str:
    """Return the reason that `record_refused` was given."""
    return error.text.removesuffix(_ADVICE)


#: Classes of errors, or no class, that are not about the rows: connections, transactions,
#: resources, locks, operators who intervene, and the server's own faults.
_OF_SERVER = re.compile("|08|0B|25|26|2D|3B|3D|40|53|55|57|58|72|F0|HV|XX")
_ADVICE = (
    " Nothing of its slice was written. Mend the record where it comes from, or the table, and "
    "start the query again; or let the option quarantine set such records aside."
)


def meaning(error: Any, table: str) -> Exception:
    """Return what an error within a transaction means; nothing of it is visible."""
    state, diag = error.sqlstate or "", error.diag
    told = (diag.message_primary or str(error)).rstrip(".")
    detail = f" {diag.message_detail}" if diag.message_detail else ""
    context = _PLACE.search(diag.context or "")
    where = f" ({context[0]})" if context else ""
    text = f"Table {table}: {told}{where}"
    if state == "57014" and "user" not in told:  # COPY waits for Spark
        text += "; `-c statement_timeout=0` among the options of the dsn lifts a time limit"
    if _OF_SERVER.fullmatch(state[:2]):
        return Aborted(text)
    if state[:2] in ("42", "0A", "2B", "3F", "28"):
        return ConfigError(
            f"{text}.{detail} Nothing was written. Change the table or its privileges."
        )
    return record_refused(f"{text}.{detail}")  # also under a code of a trigger's own


def copied_line(error: Any) -> int | None:
    """Return which line of a COPY an error is about, from 1 on; None where it is about none."""
    place = _PLACE.search(error.diag.context or "")
    return int(place[1]) if place else None


def says_nothing(error: Any) -> bool:
    """Whether an error of a commit leaves open what came of it (classes 08 and 40003, or none)."""
    state = error.sqlstate or "08"
    return state.startswith("08") or state == "40003"


#: Which line of a COPY, and which column.
_PLACE = re.compile(r"COPY [^,\n]+, line (\d+)(?:, column [^:\n]+)?")


def _session(dsn: str) -> dict[str, Any]:
    """What a session is told beside the DSN; raises ProgrammingError where that is none."""
    given = psycopg_library().conninfo.conninfo_to_dict(dsn)
    return {option: value for option, value in _SESSION.items() if option not in given}


def _is_passing(error: Any) -> bool:
    """Whether a server may be there when it is asked again."""
    if isinstance(error, psycopg_library().ProgrammingError):
        return False  # the DSN is none
    refused = _PERMANENT.search(str(error))
    return refused is None and not (error.sqlstate or "").startswith(("28", "3D", "42"))


#: psycopg gives no code for what the server said before there was a session.
_PERMANENT = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|does not exist|"
    r"permission denied|could not translate host name|invalid (?:connection option|dsn|port)|"
    r"missing \"=\"|does not support SSL|certificate"
)


def _no_connection(dsn: str, error: Any) -> DedupError:
    text = without_password(dsn, " ".join(str(error).split()).rstrip("."))
    if _is_passing(error):
        return SinkError(
            f"No connection to PostgreSQL: {text}. Nothing was written; start the query again once "
            "the server answers, or correct the option dsn."
        )
    return ConfigError(
        f"PostgreSQL cannot be used with this dsn: {text}. Correct the option dsn, or the server's "
        "users and databases."
    )


def without_password(dsn: str, text: str) -> str:
    """Return a text without what a DSN keeps secret."""
    parts: dict[str, Any] = {}
    try:
        parts = psycopg_library().conninfo.conninfo_to_dict(dsn)
    except psycopg_library().Error:
        text = _CITED.sub('"..."', text)  # where it ends is not known
    named = {name: str(value) for name, value in parts.items() if value}
    text = without_secrets(text, {**named, "dsn": dsn})
    if "password=" in text:  # a separator that is none
        text = text.partition("password=")[0] + "password=..."
    return text


_CITED = re.compile(r'".*"', re.DOTALL)
