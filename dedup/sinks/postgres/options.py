"""The options of the PostgreSQL sink, which users pass to ``writeStream.option``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dedup.core.option import REQUIRED, Option, choice, names, text, whole
from dedup.errors import ConfigError
from dedup.sinks.options import ACCEPT, SinkOptions, named, sink_values

FORMAT = "dedup_postgres"
APPEND, UPSERT, ATOMIC = "append", "upsert", "atomic"

_PART = r'(?:"(?:[^"]|"")+"|[A-Za-z_][\w$]*)'
_SQL_NAME = text(
    rf"{_PART}(?:\.{_PART})?", 'be a name as in SQL, such as orders, shop.orders or "Orders".'
)
OPTIONS = (
    Option("dsn", text(), REQUIRED, "how to connect, such as postgresql://user@host/database"),
    Option("table", _SQL_NAME, REQUIRED, "the table, which must exist"),
    Option("mode", choice(APPEND, UPSERT, ATOMIC), APPEND, help="see above"),
    Option("key", names(), (), help="columns over which the table has a unique index"),
    Option("version", text(), help="column that decides between rows of one key"),
    Option("markers", _SQL_NAME, help="table of the markers; default: in the table's schema"),
    Option("quarantine", _SQL_NAME, help="table for rejected records"),
    Option("staging.schema", _SQL_NAME, help="schema for staging tables; default: the table's"),
    Option("timeout.seconds", whole(1, 3600), 60, help="longest wait for a server, and a lock"),
    named("postgres"),
    *ACCEPT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions(SinkOptions):
    """The values of the options in `OPTIONS`.

    The driver replaces the names in `markers`, `staging_schema` and `quarantine` by full names with
    the schema.
    """

    dsn: str = field(repr=False)  # the DSN may contain a password
    table: str
    mode: str
    key: tuple[str, ...]
    version: str | None
    markers: str | None
    quarantine: str | None
    staging_schema: str | None
    timeout_seconds: int


def postgres_options(given: Mapping[str, str]) -> PostgresOptions:
    options = PostgresOptions(**sink_values(FORMAT, given, OPTIONS))
    if options.mode == UPSERT and not options.key:
        raise ConfigError("Mode upsert needs the option key: the columns that identify a row.")
    if options.mode == APPEND and options.key:
        raise ConfigError("Option key is for the modes upsert and atomic; append only adds rows.")
    if options.version is not None and not options.key:
        raise ConfigError("Option version decides between rows of one key: give the option key.")
    if options.version in options.key:
        raise ConfigError(f"Option version={options.version!r} cannot be a column of the key.")
    return options
