"""Records to Kafka: what exactly once costs against Spark's own sink, alone and end to end.

python -m benchmarks.kafka
python -m benchmarks.kafka --only end-to-end --size 1000 --rows 100000

A real broker of one node runs beside Spark on the same cores. Pipelines are fed in turn.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import dedup
from benchmarks.events import Events
from benchmarks.harness import Pipeline, Sink, data_folder, parser, session, work_folder
from benchmarks.results import finish, median
from tests.kafka.broker import Broker, connector_jars
from tests.kafka.records import make_topic

OWN, ONCE, AT_LEAST = "Spark's own sink", "exactly-once", "at-least-once"
NARROW_BYTES, WIDE_BYTES, SMALL_ROWS = 100, 1000, 1000
PLAIN = "no de-duplication -> Spark's own sink"
BUILT_IN = "dropDuplicatesWithinWatermark -> Spark's own sink"
OURS = "dedup_by_id -> dedup_kafka"
OURS_TO_OWN = "dedup_by_id -> Spark's own sink"
_PARTITIONS = 4
#: So that disks do not fill.
_KEPT = {"retention_bytes": 200_000_000, "segment_bytes": 50_000_000}


def to_kafka(address: str, topic: str, mode: str | None) -> Sink:
    """Spark's own sink if the mode is None."""

    def sink(writer: DataStreamWriter, folder: Path) -> DataStreamWriter:
        to = writer.option("kafka.bootstrap.servers", address).option("topic", topic)
        return to.format("kafka") if mode is None else to.format("dedup_kafka").option("mode", mode)

    return sink


def records_of(size: int) -> Callable[[DataFrame, Path], DataFrame]:
    """Events as records of a key and a value of so many bytes."""
    value = f"rpad(event_id, {size}, 'x') AS value"
    return lambda events, folder: events.selectExpr("event_id AS key", value)


def sinks(address: str, size: int) -> list[Pipeline]:
    """The same records into each of the sinks."""
    modes = {OWN: None, ONCE: ONCE, AT_LEAST: AT_LEAST}
    return [
        Pipeline(
            name,
            records_of(size),
            sink=to_kafka(address, make_topic(address, f"{name[:5]}-{size}", 4, **_KEPT), mode),
        )
        for name, mode in modes.items()
    ]


@dataclass
class FromKafka(Pipeline):
    """A pipeline that reads a separate topic."""

    address: str = ""
    topic: str = ""
    producer: Producer = field(init=False)

    def start(self, spark: SparkSession, folder: Path) -> None:
        self.producer = Producer(
            {"bootstrap.servers": self.address, "transactional.id": f"feed-{self.topic}"}
        )
        self.producer.init_transactions()
        source = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.address)
            .option("kafka.isolation.level", "read_committed")
            # As `kafka_records` has it, for all of them.
            .option("kafka.fetch.max.wait.ms", "10")
            .option("subscribe", self.topic)
        )
        self.begin(self.transform(source.load(), folder), folder)

    def feed_records(self, records: list[tuple[bytes, bytes]]) -> None:
        """One micro-batch: the records appear at once, as one transaction."""
        before = self.last_batch()
        self.producer.begin_transaction()
        for key, value in records:
            while True:
                try:
                    self.producer.produce(self.topic, value, key)
                    break
                except BufferError:
                    self.producer.poll(0.1)
        self.producer.commit_transaction()
        self.finish(before)


def by_key(events: DataFrame, folder: Path) -> DataFrame:
    """Ours, over the columns that it or the sink needs."""
    return (
        events.select("key", "value", "timestamp", "topic", "partition")
        .transform(
            dedup.dedup_by_id(
                "key",
                horizon="7 days",
                timestamp="timestamp",
                source_partition=["topic", "partition"],
                catalog=str(folder / "catalog"),
            )
        )
        .select("key", "value")
    )


def built_in(events: DataFrame, folder: Path) -> DataFrame:
    """Spark's."""
    marked = events.withWatermark("timestamp", "7 days")
    return marked.dropDuplicatesWithinWatermark(["key"]).select("key", "value")


def from_kafka(address: str) -> list[FromKafka]:
    """Kafka to Kafka, by each of the ways."""
    ways: dict[str, tuple[Callable[[DataFrame, Path], DataFrame], str | None]] = {
        PLAIN: (lambda df, folder: df.select("key", "value"), None),
        BUILT_IN: (built_in, None),
        OURS_TO_OWN: (by_key, None),
        OURS: (by_key, ONCE),
    }
    return [
        FromKafka(
            name,
            transform,
            sink=to_kafka(address, make_topic(address, f"to-{n}", _PARTITIONS, **_KEPT), mode),
            address=address,
            topic=make_topic(address, f"from-{n}", _PARTITIONS, **_KEPT),
        )
        for n, (name, (transform, mode)) in enumerate(ways.items())
    ]


@contextmanager
def started(spark: SparkSession, pipelines: list[Any], folder: Path) -> Iterator[None]:
    for number, pipeline in enumerate(pipelines):
        pipeline.start(spark, folder / str(number))
    yield
    for pipeline in pipelines:
        pipeline.stop()


@contextmanager
def beside_a_broker(arguments: argparse.Namespace) -> Iterator[tuple[SparkSession, str, Path]]:
    """A session, the broker's address, and a folder to work in."""
    with (
        work_folder(arguments) as work,
        tempfile.TemporaryDirectory(prefix="dedup-bench-kafka-", dir=arguments.work) as logs,
        Broker(Path(logs)) as broker,
        session(settings={"spark.jars": connector_jars()}) as spark,
    ):
        dedup.register(spark)
        yield spark, broker.address, work


def alone(arguments: argparse.Namespace) -> dict[str, Any]:
    """Times of every micro-batch of the sinks, fed in turn."""
    result: dict[str, Any] = {"rows_per_batch": arguments.rows, "warm_up": arguments.warm_up}
    with beside_a_broker(arguments) as (spark, address, work):
        for name, size, rows in (
            ("narrow_ms", NARROW_BYTES, arguments.rows),
            ("wide_ms", WIDE_BYTES, arguments.rows // 2),
            ("small_ms", NARROW_BYTES + 1, SMALL_ROWS),
        ):
            events = Events(rows=rows, duplicates=0.0)
            data = data_folder(arguments.data, events)
            pipelines = sinks(address, size)
            with started(spark, pipelines, work / name):
                for number in range(arguments.batches):
                    files = events.write(data, number, files=2)
                    for pipeline in pipelines:
                        pipeline.feed(files)
            result[name] = {p.name: p.batch_ms for p in pipelines}
    return result


def end_to_end(arguments: argparse.Namespace) -> dict[str, Any]:
    """Kafka to Kafka, with one record in twenty there already."""
    events = Events(rows=arguments.rows, duplicates=0.05)
    data = data_folder(arguments.data, events)
    with beside_a_broker(arguments) as (spark, address, work):
        pipelines = from_kafka(address)
        with started(spark, pipelines, work):
            for number in range(arguments.batches):
                files = events.write(data, number, files=2)
                ids = [row.event_id for row in spark.read.parquet(*map(str, files)).collect()]
                values = [each.encode().ljust(arguments.size, b"x") for each in ids]
                records = [(each.encode(), v) for each, v in zip(ids, values, strict=True)]
                for pipeline in pipelines:
                    pipeline.feed_records(records)
    return {
        "rows_per_batch": arguments.rows,
        "warm_up": arguments.warm_up,
        "record_bytes": arguments.size,
        "batch_ms": {p.name: p.batch_ms for p in pipelines},
    }


def sinks_table(result: dict[str, Any]) -> str:
    """Medians, and throughput against Spark's own sink."""
    rows = result["rows_per_batch"]
    return "\n".join(
        _table(f"{count:,} records of {size} B", result[key], OWN, count, result["warm_up"])
        for key, size, count in (
            ("narrow_ms", NARROW_BYTES, rows),
            ("wide_ms", WIDE_BYTES, rows // 2),
            ("small_ms", NARROW_BYTES, SMALL_ROWS),
        )
    )


def ways_table(result: dict[str, Any]) -> str:
    """Medians, and throughput against Spark's own de-duplication."""
    rows = result["rows_per_batch"]
    title = f"Kafka to Kafka, {rows:,} records of {result['record_bytes']} B"
    return _table(title, result["batch_ms"], BUILT_IN, rows, result["warm_up"])


def _table(title: str, times: dict[str, list[int]], base: str, count: int, warm_up: int) -> str:
    middle = {name: median(each[warm_up:]) for name, each in times.items()}
    lines = [f"{title:55}{'ms':>7}{'records/s':>12}{'throughput':>12}"]
    for name, ms in middle.items():
        lines.append(f"  {name:53}{ms:7.0f}{count / ms * 1000:12,.0f}{middle[base] / ms:11.2f}x")
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, rows=200_000, batches=14)
    options.add_argument("--warm-up", type=int, default=4)
    options.add_argument("--only", choices=("sinks", "end-to-end"), help="one part")
    options.add_argument("--size", type=int, default=NARROW_BYTES, help="of a record end to end")
    arguments = options.parse_args()
    if arguments.only != "end-to-end":
        finish("kafka", alone(arguments), sinks_table)
    if arguments.only != "sinks":
        name = "" if arguments.size == NARROW_BYTES else f"-{arguments.size}"
        finish(f"kafka-end-to-end{name}", end_to_end(arguments), ways_table)


if __name__ == "__main__":
    main()
