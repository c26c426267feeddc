"""The options of the PostgreSQL sink, which users pass to ``writeStream.option``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dedup.sinks.options import DatabaseOptions, database_options, sink_values
from dedup.values.option import REQUIRED, Option, text

FORMAT = "dedup_postgres"

_PART = r'(?:"(?:[^"]|"")+"|[A-Za-z_][\w$]*)'
_SQL_NAME = text(
    rf"{_PART}(?:\.{_PART})?", 'be a name as in SQL, such as orders, shop.orders or "Orders".'
)
OPTIONS = (
    Option("dsn", text(), REQUIRED, "how to connect, such as postgresql://user@host/database"),
    *database_options(
        "postgres",
        _SQL_NAME,
        Option("quarantine", _SQL_NAME, help="table for rejected records"),
        unique="a unique index",
        place="schema",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions(DatabaseOptions):
    """The values of the options in `OPTIONS`.

    The driver replaces the names in `markers` and `quarantine` by full names with the schema.
    """

    dsn: str = field(repr=False)  # the DSN may contain a password
    quarantine: str | None


def postgres_options(options: Mapping[str, str]) -> PostgresOptions:
    return PostgresOptions(**sink_values(FORMAT, options, OPTIONS))
