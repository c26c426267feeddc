"""The MariaDB of the tests: a database of the test's own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import Any, Self

import pymysql
from pyspark.sql.types import StructType

from dedup.sinks import mysql_ddl, mysql_sink
from dedup.sinks.foreach_batch import SinkFunction
from dedup.sinks.kit.slots import TransactionalWork
from dedup.sinks.mysql.function import MYSQL
from dedup.sinks.mysql.options import MysqlOptions
from dedup.sinks.mysql.sink import ready
from tests.databases.database import Columns, Database
from tests.databases.mysql_server import MysqlServer, by_port
from tests.support.connections import forget_connections

#: Texts of this collation may be keys.
_TEXTS = "CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
#: Lets double quotes mean names, as in other databases.
_QUOTES = "SET sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES')"


@dataclass(frozen=True)
class Mysql(Database):
    """A database of the server, with arguments of ``connect``."""

    where: Mapping[str, Any]
    folder: Path
    name = "mysql"
    kind = MYSQL
    library = pymysql
    key_text = "varchar(9)"

    @classmethod
    def create(cls, server: MysqlServer, name: str, folder: Path) -> Self:
        return cls(server.where(), folder).elsewhere(name)

    @classmethod
    def of(cls, options: MysqlOptions) -> Self:
        return cls(dict(options.connect), Path())

    @staticmethod
    def ready(options: MysqlOptions, columns: Columns) -> TransactionalWork:
        return ready(options, columns)

    @staticmethod
    def is_commit(frame: bytes) -> bool:
        return frame.endswith(b"\3COMMIT")

    @property
    def address(self) -> dict[str, str]:
        return {f"mysql.{name}": str(value) for name, value in self.where.items()}

    def function(self, table: str, checkpoint: str = "", **given: Any) -> SinkFunction:
        return mysql_sink(self.where, table, checkpoint=checkpoint or self.checkpoint, **given)

    @staticmethod
    def ddl(schema: StructType, table: str, key: str | Sequence[str] = ()) -> str:
        return mysql_ddl(schema, table, server="mariadb", key=key)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        connection = pymysql.connect(
            **self.where, autocommit=True, charset="utf8mb4", init_command=_QUOTES
        )
        with closing(connection), connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def values(self, columns: Mapping[str, str]) -> list[tuple[Any, ...]]:
        """Return the rows of the table `t`, with booleans and times as Arrow has them."""
        ask = f"SELECT {', '.join(columns)} FROM t ORDER BY n"
        return [
            tuple(_as_arrow(v, s) for v, s in zip(row, columns.values(), strict=True))
            for row in self.run("SET time_zone = '+00:00'", ask)
        ]

    def has_table(self, name: str) -> bool:
        return bool(self.run(f"SHOW TABLES LIKE '{name}'"))

    def changed(self, **arguments: Any) -> Self:
        return replace(self, where={**self.where, **arguments})

    def by_port(self, port: int) -> Self:
        return replace(self, where=by_port(self.where["database"], port))

    def by_another_address(self) -> Self:
        [(port,)] = self.run("SELECT @@port")
        return self.by_port(port)

    def elsewhere(self, name: str) -> Self:
        if "database" in self.where:
            name = f"{self.where['database']}_{name}"
        self.run(f"CREATE DATABASE {name} {_TEXTS}")
        return self.changed(database=name)

    def as_user(self, *grants: str) -> Self:
        """Return the database for a new user, who connects by the socket."""
        user = f"u{uuid.uuid4().hex[:12]}"
        granted = (f"GRANT {each} TO {user}@localhost" for each in grants)
        self.run(f"CREATE USER {user}@localhost", *granted)
        return self.changed(user=user)

    def with_password(self, password: str) -> Self:
        user = f"u{uuid.uuid4().hex[:12]}"
        self.run(f"CREATE USER {user} IDENTIFIED BY '{password}'", f"GRANT ALL ON *.* TO {user}")
        return self.by_another_address().changed(user=user, password=password)

    @contextmanager
    def setting(self, back: object = "DEFAULT", **values: object) -> Iterator[None]:
        """Let sessions that begin now have other settings of the server."""
        forget_connections()
        self.run(*(f"SET GLOBAL {name} = {value}" for name, value in values.items()))
        try:
            yield
        finally:
            forget_connections()
            self.run(*(f"SET GLOBAL {name} = {back}" for name in values))

    def sessions(self) -> set[int]:
        ask = "SELECT id FROM information_schema.processlist WHERE db = DATABASE()"
        return {number for (number,) in self.run(f"{ask} AND id <> CONNECTION_ID()")}

    def end(self, session: int) -> None:
        self.run(f"KILL {session}")


def _as_arrow(value: Any, spark: str) -> Any:
    if value is None:
        return None
    if spark == "boolean":
        return bool(value)
    return value.replace(tzinfo=UTC) if spark == "timestamp" else value
