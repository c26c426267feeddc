"""Rows to PostgreSQL: what exactly once costs against bare COPY, and against Spark's own JDBC.

python -m benchmarks.postgres
python -m benchmarks.postgres --only upsert

A real server runs beside Spark on the same cores. The bare contenders are one process per core,
each of which reads its file and copies it by the same encoder, in one transaction.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pgpq
import psycopg
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter

import dedup
from benchmarks.events import SCHEMAS, Events
from benchmarks.harness import Pipeline, Sink, data_folder, parser, session, work_folder
from benchmarks.results import finish, median
from dedup.sinks import postgres_ddl
from tests.databases.postgres_server import PostgresServer

BARE, JDBC, SPARK_ALONE = "bare COPY", "Spark's JDBC, at least once", "Spark into no sink"
KEY, CORES, SMALL_ROWS = "event_id", 2, 1000
#: As a small server of a user's.
SETTINGS = {"fsync": "on", "shared_buffers": "512MB", "max_wal_size": "4GB"}
_DRIVER = "org.postgresql:postgresql:42.7.4"
COLUMNS = [each.split()[0] for each in SCHEMAS["narrow"].split(", ")]


class Bare:
    """Processes that copy files, without Spark, markers or owners.

    Parameters
    ----------
    dsn, table : str
    pool : ProcessPoolExecutor
    upsert : bool
        Through a temporary table, sorted, into the table.
    """

    def __init__(self, dsn: str, table: str, pool: ProcessPoolExecutor, *, upsert: bool) -> None:
        self.name, self._pool = BARE, pool
        self._given = (dsn, table, upsert)
        self.batch_ms: list[int] = []

    def feed(self, files: list[Path]) -> None:
        began_s = time.perf_counter()
        list(self._pool.map(copy_file, [(*self._given, str(file)) for file in files]))
        self.batch_ms.append(round((time.perf_counter() - began_s) * 1000))


_connections: dict[str, psycopg.Connection[Any]] = {}


def copy_file(given: tuple[str, str, bool, str]) -> None:
    """Copy a file in a process of the pool, whose connection stays."""
    dsn, table, upsert, file = given
    if dsn not in _connections:
        _connections[dsn] = psycopg.connect(dsn)
    connection = _connections[dsn]
    names = ", ".join(COLUMNS)
    with connection.cursor() as cursor:
        into = "incoming" if upsert else table
        if upsert:
            cursor.execute(
                f"CREATE TEMPORARY TABLE incoming ON COMMIT DROP AS SELECT {names} FROM {table} "
                "WITH NO DATA".encode()
            )
        with cursor.copy(f"COPY {into} ({names}) FROM STDIN (FORMAT BINARY)".encode()) as copy:
            encoder = None
            for batch in pq.ParquetFile(file).iter_batches(10_000):
                rows = batch.select(COLUMNS)
                if encoder is None:
                    encoder = pgpq.ArrowToPostgresBinaryEncoder(rows.schema)
                    copy.write(encoder.write_header())
                copy.write(encoder.write_batch(rows))
            assert encoder is not None
            copy.write(encoder.finish())
        if upsert:
            updates = ", ".join(f"{n} = EXCLUDED.{n}" for n in COLUMNS if n != KEY)
            cursor.execute(
                f"INSERT INTO {table} ({names}) SELECT DISTINCT ON ({KEY}) {names} FROM incoming "
                f"ORDER BY {KEY} ON CONFLICT ({KEY}) DO UPDATE SET {updates}".encode()
            )
    connection.commit()


def to_postgres(dsn: str, table: str, **options: str) -> Sink:
    """Our format."""

    def sink(writer: DataStreamWriter, folder: Path) -> DataStreamWriter:
        given = {"dsn": dsn, "table": table} | options
        return writer.format("dedup_postgres").options(**given)

    return sink


def by_jdbc(url: str, table: str) -> Sink:
    """Spark's own, which writes a micro-batch again when Spark runs it again."""

    def write(rows: DataFrame, batch_id: int) -> None:
        rows.write.format("jdbc").options(
            url=url, dbtable=table, batchsize=10_000, driver="org.postgresql.Driver"
        ).mode("append").save()

    return lambda writer, folder: writer.foreachBatch(write)


def contenders(
    server: PostgresServer, pool: ProcessPoolExecutor, part: str
) -> list[Pipeline | Bare]:
    """All writers of the same rows, each into a separate table."""
    upsert = part == "upsert"
    dsn, count = server.dsn(), 0
    schema = T.StructType.fromDDL(SCHEMAS["narrow"])

    def table() -> str:
        nonlocal count
        count += 1
        name = f"{part}_{count}"
        with psycopg.connect(dsn) as connection:
            statement = postgres_ddl(schema, name, key=[KEY] if upsert else [])
            connection.execute(statement.encode())
        return name

    def same(rows: DataFrame, folder: Path) -> DataFrame:
        return rows

    modes: dict[str, dict[str, str]] = {
        "append": {"append": {}, "atomic": {"mode": "atomic"}},
        "upsert": {
            "upsert": {"mode": "upsert", "key": KEY},
            "atomic": {"mode": "atomic", "key": KEY},
        },
    }[part]  # type: ignore[assignment]
    found: list[Pipeline | Bare] = [Bare(dsn, table(), pool, upsert=upsert)]
    for name, options in modes.items():
        found.append(
            Pipeline(f"dedup_postgres, {name}", same, sink=to_postgres(dsn, table(), **options))
        )  # type: ignore[arg-type]
    if not upsert:
        url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres?user=postgres&reWriteBatchedInserts=true"
        found.append(Pipeline(JDBC, same, sink=by_jdbc(url, table())))
    found.append(Pipeline(SPARK_ALONE, same))
    return found


@contextmanager
def beside_a_server(
    arguments: argparse.Namespace,
) -> Iterator[tuple[SparkSession, PostgresServer, Path]]:
    """A session, the server, and a folder to work in."""
    with (
        work_folder(arguments) as work,
        tempfile.TemporaryDirectory(prefix="dedup-bench-postgres-") as data,
    ):
        Path(data).chmod(0o755)
        with (
            PostgresServer(Path(data, "data"), **SETTINGS) as server,
            session(settings={"spark.jars.packages": _DRIVER}) as spark,
        ):
            dedup.register(spark)
            yield spark, server, work


def measured(arguments: argparse.Namespace, parts: list[str]) -> dict[str, Any]:
    """Times of every micro-batch, fed in turn."""
    result: dict[str, Any] = {"rows_per_batch": arguments.rows, "warm_up": arguments.warm_up}
    with (
        beside_a_server(arguments) as (spark, server, work),
        ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool,
    ):
        for part in parts:
            rows = SMALL_ROWS if part == "small" else arguments.rows
            events = Events(rows=rows, duplicates=0.0)
            data = data_folder(arguments.data, events)
            fed = contenders(server, pool, "append" if part == "small" else part)
            for number, each in enumerate(fed):
                if isinstance(each, Pipeline):
                    each.start(spark, work / part / str(number))
            for number in range(arguments.batches):
                files = events.write(data, number, files=CORES)
                for each in fed:
                    each.feed(files)
            for each in fed:
                if isinstance(each, Pipeline):
                    each.stop()
            result[f"{part}_ms"] = {each.name: each.batch_ms for each in fed}
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                for number in range(1, len(fed)):
                    name = "append" if part == "small" else part
                    connection.execute(f"DROP TABLE {name}_{number}".encode())
    return result


def table_of(result: dict[str, Any]) -> str:
    """Medians, and throughput against bare COPY."""
    lines = []
    for part in ("append", "upsert", "small"):
        if f"{part}_ms" not in result:
            continue
        rows = SMALL_ROWS if part == "small" else result["rows_per_batch"]
        middle = {
            name: median(each[result["warm_up"] :]) for name, each in result[f"{part}_ms"].items()
        }
        lines.append(f"{f'{part}, {rows:,} rows':40}{'ms':>8}{'rows/s':>12}{'throughput':>12}")
        for name, ms in middle.items():
            ratio = middle[BARE] / ms
            lines.append(f"  {name:38}{ms:8.0f}{rows / ms * 1000:12,.0f}{ratio:11.2f}x")
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, rows=200_000, batches=12)
    options.add_argument("--warm-up", type=int, default=4)
    options.add_argument("--only", choices=("append", "upsert", "small"), help="one part")
    arguments = options.parse_args()
    parts = [arguments.only] if arguments.only else ["append", "upsert", "small"]
    finish("postgres", measured(arguments, parts), table_of)


if __name__ == "__main__":
    main()
