"""Options and servers that cannot be used are reported, and a password is shown nowhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, StringType, StructType

from dedup.errors import ConfigError, DataError, DedupError, MissingExtraError, SinkError
from dedup.sinks.data_source import source_of
from tests.databases.database import Database, batch_of, cases
from tests.databases.mysql import Mysql
from tests.databases.postgres import Postgres
from tests.databases.postgres_server import free_port
from tests.support.needs import long

POSTGRES, MYSQL = Postgres("host=h", Path("c")), Mysql({"host": "h"}, Path("c"))
MAKE = "CREATE TABLE t (n int NOT NULL PRIMARY KEY, text varchar(3))"
OFFLINE = pytest.mark.parametrize("db", [POSTGRES, MYSQL], ids=["postgres", "mysql"])


@pytest.mark.parametrize(
    ("db", "given", "why"),
    [
        *((db, given, why) for db in (POSTGRES, MYSQL) for given, why in [
            ({"table": ""}, "option table is missing"),
            ({"tabel": "x"}, "Did you mean table?"),
            ({"mode": "merge"}, "append, upsert, atomic"),
            ({"mode": "upsert"}, "needs the option key"),
            ({"key": "n"}, "append only adds rows"),
            ({"version": "v"}, "give the option key"),
            ({"mode": "upsert", "key": "n", "version": "n"}, "cannot be a column of the key"),
            ({"table": "t; DROP TABLE t"}, "must be a name as in SQL"),
            ({"markers": "(m"}, "must be a name as in SQL"),
            ({"name": "a b"}, "becomes part of markers"),
            ({"timeout.seconds": "0"}, "from 1 to 3600"),
            ({"checkpointLocation": ""}, "Give the option checkpointLocation"),
        ]),
        (POSTGRES, {"dsn": ""}, "option dsn is missing"),
        (MYSQL, {"mysql.prot": "1"}, r"The option mysql\.prot is unknown.*password, port"),
        (MYSQL, {"mysql.init_command": "x"}, "is unknown"),
        (MYSQL, {"mysql.port": "x"}, r"mysql\.port='x' must be a whole number"),
        (MYSQL, {"mysql.ssl_verify_cert": "yes"}, "must be true or false"),
    ],
)  # fmt: skip
def test_options_that_cannot_work_are_rejected(
    db: Database, given: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        db.kind.parse(db.given() | given)


@OFFLINE
def test_a_missing_extra_is_named(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, db.library.__name__, None)
    wanted = f"Writing to {db.own(postgres='PostgreSQL', mysql='MySQL')} needs the extra"
    with pytest.raises(MissingExtraError, match=f"{wanted} '{db.name}'"):
        db.function("t", "c")


@OFFLINE
def test_the_function_takes_the_options_of_the_format(db: Database) -> None:
    given = {"mode": "upsert", "key": ["n"], "version": "v", "options": {"name": "other"}}
    options = db.function("t", "c", **given).options
    found = (options.table, options.mode, options.key, options.version, options.name)
    assert found == ("t", "upsert", ("n",), "v", "other")


@OFFLINE
@pytest.mark.parametrize("mode", ["append", "atomic"])
def test_complete_mode_is_rejected_without_upsert(db: Database, mode: str) -> None:
    source = source_of(db.kind)(db.given(mode=mode))
    with pytest.raises(ConfigError, match=rf"dedup_{db.name} adds .*many times.*mode upsert"):
        source.streamWriter(StructType(), overwrite=True)


def test_complete_mode_is_accepted_with_upsert(db: Database) -> None:
    db.run(MAKE)
    source = source_of(db.kind)(db.given(mode="upsert", key="n"))
    schema = StructType().add("n", IntegerType()).add("text", StringType())
    assert source.streamWriter(schema, overwrite=True)


@cases(
    "address error why",
    postgres=[
        ("host=127.0.0.1 port={free}", SinkError, "No connection to PostgreSQL: .*refused"),
        ("host=127.0.0.1 port={port} user=secret password=s3cret", ConfigError,
         "password authentication failed"),
        ("host=127.0.0.1 port={port} user=postgres dbname=nowhere", ConfigError, "does not exist"),
        ("host=127.0.0.1 port={port} user=nobody", ConfigError, "does not exist"),
        ("host=no.such.host.invalid password=s3cret", SinkError, "resolve host"),
        ("postgresql//mistyped", ConfigError, "Correct the option dsn"),
        ("jdbc:postgresql://h/a?password=s3cret", ConfigError, r'connection option "\.\.\."\.'),
        ("postgresql://u:%s3cret@h", ConfigError, "invalid percent-encoded token"),
        ("postgresql://u:p@s3cret@h.invalid", SinkError, "resolve host"),
        ("postgresql://u:p:s3cret/x@h.invalid", SinkError, "No connection"),
        ("host=h password=my s3cret", ConfigError, "in connection info string"),
        ("host=h.invalid;password=s3cret", SinkError, "resolve host"),
    ],
    mysql=[
        ({"port": "{free}"}, SinkError, "No connection to MySQL: .*refused"),
        ({"user": "dedup", "password": "s3cret"}, ConfigError, "Access denied for user 'dedup'"),
        ({"database": "nowhere", "user": "dedup"}, ConfigError, "Unknown database 'nowhere'"),
        long({"host": "no.such.host.invalid"}, SinkError, "No connection to MySQL"),
        ({"ssl_ca": "/no/such/file"}, ConfigError, "No such file"),
        ({"ssl_verify_cert": "true"}, ConfigError, "SSL"),
        ({"connect_timeout": "0"}, ConfigError, "connect_timeout should be"),
    ],
)  # fmt: skip
def test_a_server_that_cannot_be_used_is_reported_without_the_password(
    server: Any, tmp_path: Path, address: Any, error: type[DedupError], why: str
) -> None:
    ports = {"free": free_port(), "port": server.port}
    if isinstance(address, str):
        db: Database = Postgres(address.format(**ports), tmp_path)
    else:
        local = {"host": "127.0.0.1", "port": "{port}", "database": "mysql"} | address
        db = Mysql({name: text.format(**ports) for name, text in local.items()}, tmp_path)
    with pytest.raises(error, match=why) as refused:
        db.work(timeout_seconds="1")
    assert "s3cret" not in str(refused.value)


def test_a_password_is_used_and_shown_nowhere(db: Database) -> None:
    """Not even by the error for a record, or if it is not Latin-1."""
    db.run(MAKE)
    theirs = db.with_password("s3cret€")
    theirs.write(batch_of([1]), mode="upsert", key="n")
    assert db.run("SELECT n FROM t") == [(1,)]
    assert "s3cret" not in repr(theirs.work())
    with pytest.raises(DataError) as rejected:
        theirs.write(batch_of([2], "four"), name="other")
    assert "s3cret" not in str(rejected.value)
    with pytest.raises(ConfigError, match=r"authentication failed|Access denied") as refused:
        theirs.changed(password="s3cret").work()
    assert "s3cret" not in str(refused.value)
