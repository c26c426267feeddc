"""What the sinks into databases share: connections, work, DDL, errors about rejected records."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from dedup.errors import ConfigError, DataError, DedupError, SinkError
from dedup.sinks.columns import Unsuitable, shown_record
from dedup.sinks.foreach_batch import columns_of
from dedup.sinks.inspection import SinkInspection, inspection_of
from dedup.sinks.kind import SinkKind
from dedup.sinks.kit.slots import TransactionalWork
from dedup.sinks.kit.transactional import TransactionalSink
from dedup.sinks.marker import Marker
from dedup.sinks.options import ATOMIC, DatabaseOptions
from dedup.sinks.protocol import Aborted
from dedup.spark.driver.checkpoint_log import Progress

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

T = TypeVar("T")
O = TypeVar("O", bound=DatabaseOptions)  # noqa: E741

NOTHING_WRITTEN = " Nothing of its slice was written."

_RETRY_S = 0.2
#: Number of free connections that a process keeps for each address.
_KEPT = 2

#: Free connections by address. They belong to the process, because Spark unpickles a new object of
#: the sink for each task.
_free: dict[Hashable, list[Any]] = {}
# A forked child must not use its parent's connections. The child only forgets them: to close them
# would end the parent's sessions.
os.register_at_fork(after_in_child=_free.clear)


def take_connection(
    address: Hashable,
    connect: Callable[[], T],
    may_pass: Callable[[Exception], bool],
    timeout_s: float,
) -> T:
    """Return a connection of DB-API that this process has kept, or else a new one.

    Repeats `connect` for `timeout_s` after errors that `may_pass`, then raises the last error.
    """
    with suppress(KeyError, IndexError):  # another thread may have taken the last connection
        while True:
            kept: T = _free[address].pop()
            if _is_alive(kept):
                return kept
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return connect()
        except Exception as error:
            if not may_pass(error) or time.monotonic() > deadline_s:
                raise
        time.sleep(_RETRY_S)


def _is_alive(connection: Any) -> bool:
    with suppress(Exception):
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        connection.rollback()
        return True
    close(connection)
    return False


def give_back(address: Hashable, connection: Any) -> None:
    """Roll back a connection's open transaction, and keep the connection for reuse."""
    free = _free.setdefault(address, [])
    with suppress(Exception):
        connection.rollback()
        if len(free) < _KEPT:
            free.append(connection)
            return
    close(connection)


def close(connection: Any) -> None:
    with suppress(Exception):
        connection.close()


def no_connection(server: str, options: str, problem: str, *, may_pass: bool) -> DedupError:
    """Return the error for a server that could not be connected to with some options."""
    if may_pass:
        return SinkError(
            f"No connection to {server}: {problem}. Nothing was written. Start the query again "
            f"once the server answers, or correct {options}."
        )
    return ConfigError(
        f"{server} cannot be used with {options}: {problem}. Correct {options}, or the server's "
        "users and databases."
    )


@contextmanager
def answering_server(next_step: str) -> Iterator[None]:
    """Turn Aborted into a SinkError. `next_step` is for the user, once the server answers."""
    try:
        yield
    except Aborted as error:
        raise SinkError(f"{error}. {next_step} once the server answers and takes writes.") from None


@contextmanager
def fitting_column(name: str, table: str) -> Iterator[None]:
    """Turn Unsuitable into a ConfigError about a column of the stream."""
    try:
        yield
    except Unsuitable as why:
        raise ConfigError(
            f"Column {name!r} of the stream does not go into table {table}: {why}."
        ) from None


def check_deciding(options: DatabaseOptions, names: Sequence[str]) -> None:
    """Raise ConfigError if a column of the options key and version is not in the stream."""
    for needed in {*options.key, options.version} - {None, *names}:
        raise ConfigError(
            f"The stream has no column {needed!r} of the options key and version; it has "
            f"{', '.join(names)}."
        )


def changed_columns(table: str) -> ConfigError:
    return ConfigError(
        f"The columns of table {table} have other types than when the query started. Nothing was "
        "written. Start the query again."
    )


def database_kind(
    format_name: str,
    function_name: str,
    parse: Callable[[Mapping[str, str]], O],
    ready: Callable[[O, Sequence[tuple[str, str]]], TransactionalWork],
    read_markers: Callable[[O], list[Marker]],
) -> SinkKind[O]:
    """Return the kind of a sink. `read_markers` returns the newest markers of all queries."""

    def inspect(options: O, progress: Progress | None) -> SinkInspection:
        with answering_server("Try again"):
            return inspection_of(read_markers(options), progress)

    return SinkKind(
        format_name=format_name,
        function_name=function_name,
        parse=parse,
        ready=lambda options, schema: ready(options, columns_of(schema)),
        inspect=inspect,
        takes_complete=lambda options: "key" in options,
    )


class DatabaseSink(TransactionalSink[T]):
    """The sink into one table of a database. Its options and table have full names of tables."""

    options: DatabaseOptions
    table: Any

    @property
    def parallel(self) -> bool:  # type: ignore[override]
        return self.options.mode != ATOMIC

    @property
    def _markers(self) -> str:
        """The table of markers, for statements in which a percent sign begins a parameter."""
        return str(self.options.markers).replace("%", "%%")


def database_work(
    sink: DatabaseSink[Any], address: object, crash_risk: tuple[str, str] | None = None
) -> TransactionalWork:
    options = sink.options
    # Hashed, because the address may hold a password.
    identity = blake2b(repr((address, options.markers)).encode(), digest_size=16).digest()
    setting = {"table": sink.table.name, "markers": str(options.markers)}
    return TransactionalWork(options, sink, identity, setting, crash_risk)


def create_table(
    schema: StructType,
    table: str,
    key: str | Sequence[str],
    quoted: Callable[[str], str],
    column_type: Callable[[str, bool], str],
) -> str:
    """Return the statement that creates a table for the rows of a stream.

    `column_type` gets a Spark type, and whether the column is of the key. It raises Unsuitable if
    the server has no type that fits.
    """
    key = [key] if isinstance(key, str) else key
    for name in key:
        if name not in schema.fieldNames():
            raise ConfigError(f"key={name!r} is not a column; there are {schema.fieldNames()}.")
    lines = []
    for field in schema.fields:
        in_key = field.name in key
        with fitting_column(field.name, table):
            kind = column_type(field.dataType.simpleString(), in_key)
        needed = in_key or not field.nullable
        lines.append(f"{quoted(field.name)} {kind}{' NOT NULL' if needed else ''}")
    if key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, key))})")
    return f"CREATE TABLE {table} (\n    " + ",\n    ".join(lines) + "\n)"


def rejected_record(reason: str, or_else: str = "") -> DataError:
    """Return the error for a record that a table rejects. `reason` consists of sentences."""
    return DataError(
        f"{reason}{NOTHING_WRITTEN} Fix the record at its origin, or the table, and start the "
        f"query again{or_else}.",
        remedy="rejected-rows",
    )


def with_record(error: DataError, record: pa.RecordBatch) -> DataError:
    """Return an error of `rejected_record` that also shows the record."""
    reason, written, advice = error.text.partition(NOTHING_WRITTEN)
    text = f"{reason} The record is {shown_record(record)}.{written}{advice}"
    return DataError(text, remedy=error.remedy)


def converted(rows: pa.RecordBatch, convert: Callable[[pa.RecordBatch], T]) -> T:
    """Return `convert(rows)`, or raise its error for the first unfit record, which it shows."""
    try:
        return convert(rows)
    except DataError as error:
        if rows.num_rows == 1:
            raise with_record(error, rows) from None
        half = rows.num_rows // 2
        converted(rows.slice(0, half), convert)
        converted(rows.slice(half), convert)
        raise


def parts(rows: pa.RecordBatch, most_rows: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Divide rows into parts of at most `most_rows`, and of about `most_bytes` or a single row."""
    row_bytes = max(1, rows.nbytes // max(1, rows.num_rows))
    step = max(1, min(most_rows, most_bytes // row_bytes))
    for begin in range(0, rows.num_rows, step):
        yield rows.slice(begin, step)
