"""The PostgreSQL of the tests: a schema and a superuser of the test's own."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self

import psycopg
from psycopg.conninfo import make_conninfo
from pyspark.sql.types import StructType

from dedup.sinks import postgres_ddl, postgres_sink
from dedup.sinks.foreach_batch import SinkFunction
from dedup.sinks.kind import SinkKind
from dedup.sinks.kit.slots import TransactionalWork
from dedup.sinks.postgres.function import POSTGRES
from dedup.sinks.postgres.options import PostgresOptions
from dedup.sinks.postgres.sink import ready
from tests.databases.database import Columns, Database
from tests.databases.postgres_server import PostgresServer


@dataclass(frozen=True)
class Postgres(Database):
    """A schema of the server, which is the first in the search path of this DSN."""

    dsn: str
    folder: Path
    name = "postgres"
    kind: ClassVar[SinkKind[Any]] = POSTGRES
    library: ClassVar[ModuleType] = psycopg
    key_text = "text"

    @classmethod
    def create(cls, server: PostgresServer, name: str, folder: Path) -> Self:
        cls(server.dsn(), folder).run(
            f"CREATE ROLE {name} SUPERUSER LOGIN", f"CREATE SCHEMA AUTHORIZATION {name}"
        )
        return cls(server.dsn(user=name), folder)

    @classmethod
    def of(cls, options: PostgresOptions) -> Self:
        return cls(options.dsn, Path())

    @staticmethod
    def ready(options: PostgresOptions, columns: Columns) -> TransactionalWork:
        return ready(options, columns)

    @staticmethod
    def is_commit(frame: bytes) -> bool:
        return b"COMMIT\0" in frame

    @property
    def address(self) -> dict[str, str]:
        return {"dsn": self.dsn}

    def function(self, table: str, checkpoint: str = "", **given: Any) -> SinkFunction:
        return postgres_sink(self.dsn, table, checkpoint=checkpoint or self.checkpoint, **given)

    @staticmethod
    def ddl(schema: StructType, table: str, key: str | Sequence[str] = ()) -> str:
        return postgres_ddl(schema, table, key=key)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                done = connection.execute(statement.encode())
            return done.fetchall() if done.description else []

    def values(self, columns: Mapping[str, str]) -> list[tuple[Any, ...]]:
        """Return the rows of the table `t`. JSON and texts of enums are texts here."""
        names = [f"{n}::text" if s.startswith("string") else n for n, s in columns.items()]
        ask = f"SELECT {', '.join(names)} FROM t ORDER BY n"
        with psycopg.connect(self.dsn) as connection:
            connection.execute("SET timezone = 'UTC'")
            # Texts of a real are shorter than its value.
            return connection.cursor(binary=True).execute(ask.encode()).fetchall()

    def has_table(self, name: str) -> bool:
        where = f"table_schema = current_schema() AND table_name = '{name}'"
        return bool(self.run(f"SELECT 1 FROM information_schema.tables WHERE {where}"))

    def changed(self, **settings: Any) -> Self:
        return replace(self, dsn=make_conninfo(self.dsn, **settings))

    def by_port(self, port: int) -> Self:
        return self.changed(port=port)

    def by_another_address(self) -> Self:
        return self.changed(host="localhost")

    def elsewhere(self, name: str) -> Self:
        [(schema,)] = self.run("SELECT current_schema()")
        self.run(f"CREATE SCHEMA {schema}_{name}")
        return self.changed(options=f"-csearch_path={schema}_{name}")

    def as_user(self, *grants: str) -> Self:
        role, [(schema,)] = _new_name("u"), self.run("SELECT current_schema()")
        grants = (f"USAGE ON SCHEMA {schema}", *grants)
        self.run(f"CREATE ROLE {role} LOGIN", *(f"GRANT {each} TO {role}" for each in grants))
        return self.changed(user=role, options=f"-csearch_path={schema}")

    def with_password(self, password: str) -> Self:
        role, [(schema,)] = _new_name("secret"), self.run("SELECT current_schema()")
        self.run(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD '{password}'")
        return self.changed(user=role, password=password, options=f"-csearch_path={schema}")

    def sessions(self) -> set[int]:
        mine = "usename = current_user AND pid <> pg_backend_pid()"
        return {pid for (pid,) in self.run(f"SELECT pid FROM pg_stat_activity WHERE {mine}")}

    def end(self, session: int) -> None:
        self.run(f"SELECT pg_terminate_backend({session})")


def _new_name(prefix: str) -> str:
    return f"{prefix}{uuid.uuid4().hex[:12]}"
