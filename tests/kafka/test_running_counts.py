"""Word counts and windowed counts of a topic's sentences, while the user's code fails at random."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

import dedup
from dedup import dedup_by_id
from dedup.errors import ConfigError, cause
from dedup.sinks import kafka_sink, postgres_sink
from dedup.testing import faults
from tests.databases.conftest import postgres as postgres
from tests.databases.conftest import postgres_server as postgres_server
from tests.databases.postgres import Postgres
from tests.kafka.records import Record, make_topic, read_topic, send
from tests.support.pages import snippets
from tests.support.quick_spark import FAULTS

WORDS = ["to", "be", "or", "not", "that", "is", "the", "question"]
SENTENCES, BATCHES = 240, 5
HOUR_MS = 3_600_000
Start = Callable[[], StreamingQuery]


@dataclass(frozen=True)
class FailsAtRandom:
    """The user's code: it passes rows on and then fails, in some of its first tasks.

    Three attempts in a row fail. Two tasks run at once, so Spark's second attempt does not help.
    """

    folder: Path
    seed: str

    def __call__(self, rows: DataFrame) -> DataFrame:
        return rows.mapInArrow(self._passed_on, rows.schema)

    def _passed_on(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempts = os.open(self.folder / "attempts", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(attempts, b".")
        attempt = os.lseek(attempts, 0, os.SEEK_CUR)
        os.close(attempts)
        yield from batches
        if (attempt - 1) // 3 in random.Random(self.seed).sample(range(0, 6, 2), 2):
            (self.folder / f"failed-{attempt}").touch()
            raise RuntimeError("made to fail")

    @property
    def failures(self) -> int:
        return len(list(self.folder.glob("failed-*")))


@dataclass(frozen=True, kw_only=True)
class Sentences:
    """A topic whose records are of three hours, and what a plain recount finds in it.

    The key is an ID. Every fourth sentence comes twice.
    """

    topic: str
    words: Counter[str]
    hours: Counter[int]
    words_once: Counter[str]


@pytest.fixture(scope="module")
def sentences(broker: str) -> Sentences:
    topic, chosen = make_topic(broker, "sentences", 2), random.Random(0)
    # In an order that is wrong by up to ten minutes.
    minutes = [n * 180 / SENTENCES + chosen.uniform(0, 10) for n in range(SENTENCES)]
    texts = [" ".join(chosen.choices(WORDS, k=4)).encode() for _ in range(SENTENCES)]
    ids = [n - (n % 4 == 3) for n in range(SENTENCES)]
    send(
        broker,
        topic,
        [
            {
                "key": b"%d" % ids[n],
                "value": texts[ids[n]],
                "timestamp": 100 * HOUR_MS + int(minute * 60_000),
                "partition": n % 2,
            }
            for n, minute in enumerate(minutes)
        ],
    )
    found = read_topic(broker, topic)
    assert len(found) == SENTENCES
    once = {record.key: record for record in found}
    assert len(once) == SENTENCES * 3 // 4
    return Sentences(
        topic=topic,
        words=words_in(found),
        hours=Counter(record.timestamp_ms // HOUR_MS for record in found),
        words_once=words_in(once.values()),
    )


def words_in(records: Iterable[Record]) -> Counter[str]:
    return Counter(word for record in records for word in (record.value or b"").decode().split())


class Counting:
    """A query over the sentences, which is started again until it has taken all of them."""

    def __init__(
        self, spark: SparkSession, broker: str, sentences: Sentences, user_code: FailsAtRandom
    ) -> None:
        self.spark, self.broker, self.sentences = spark, broker, sentences
        self.user_code = user_code
        self.checkpoint = str(user_code.folder / "checkpoint")
        dedup.register(spark)

    def records(self) -> DataFrame:
        reader = self.spark.readStream.format("kafka").option("startingOffsets", "earliest")
        reader = reader.option("kafka.bootstrap.servers", self.broker)
        reader = reader.option("subscribe", self.sentences.topic)
        reader = reader.option("maxOffsetsPerTrigger", SENTENCES // BATCHES)
        return self.user_code(reader.load())

    def words(self, records: DataFrame) -> DataFrame:
        words = F.explode(F.split(F.col("value").cast("string"), " ")).alias("word")
        counts = records.select(words).groupBy("word").agg(F.count("*").alias("count"))
        return self.user_code(counts)

    def hours(self) -> DataFrame:
        records = self.records().withWatermark("timestamp", "1 hour")
        counts = records.groupBy(F.window("timestamp", "1 hour")).agg(F.count("*").alias("count"))
        return self.user_code(
            counts.select(F.unix_timestamp("window.start").alias("start"), "count")
        )

    def example(self, page: str, changes: Mapping[str, str], **names: object) -> Start:
        """Return what starts the example of a page, with the user's code before its sink, too."""
        [text] = [each for each in snippets(page) if 'outputMode("update")' in each]
        for given, real in {**changes, ".writeStream": ".transform(user_code).writeStream"}.items():
            assert given in text
            text = text.replace(given, real)

        def start() -> StreamingQuery:
            scope: dict[str, Any] = {"user_code": self.user_code, **names}
            exec(text, scope)
            query: StreamingQuery = scope["counting"]
            return query

        return start

    def run(self, start: Start, point: str) -> None:
        """Start the query until it has taken everything.

        A task is killed at `point`, which is after its commit.
        """
        faults.arm(FAULTS, point, "kill")
        failed = 0
        while failed < 12:
            query = start()
            try:
                query.processAllAvailable()
            except StreamingQueryException as error:
                if refusal := cause(error):
                    raise refusal from error
                failed += 1
                continue
            finally:
                query.stop()
            break
        assert 1 <= failed < 12
        assert self.user_code.failures >= 3
        assert [name for name, _, _ in faults.fired(FAULTS)] == [point]


@pytest.fixture
def counting(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    broker: str,
    sentences: Sentences,
    tmp_path: Path,
    fault_folder: Path,
) -> Counting:
    return Counting(spark, broker, sentences, FailsAtRandom(tmp_path, seed=request.node.name))


def counts(broker: str, topic: str) -> dict[str, list[int]]:
    """Return the counts of each key, in the order of the topic."""
    found: dict[str, list[int]] = {}
    for record in read_topic(broker, topic):
        found.setdefault((record.key or b"").decode(), []).append(int(record.value or b""))
    return found


def newest(found: Mapping[str, list[int]]) -> dict[str, int]:
    """Return the last count of each key, all of whose counts grow: none is there twice."""
    for each in found.values():
        assert each == sorted(set(each))
    return {key: each[-1] for key, each in found.items()}


def test_word_counts_into_a_topic_are_exact(counting: Counting) -> None:
    """The example of the page."""
    topic = make_topic(counting.broker, "word-counts", 2)
    changes = {"localhost:9092": counting.broker, "orders/word-counts": counting.checkpoint}
    start = counting.example(
        "sinks/kafka/README.md", changes, records=counting.records(), kafka_sink=kafka_sink
    )
    counting.run(start, "kafka.commit.after")
    assert newest(counts(counting.broker, topic)) == counting.sentences.words


@pytest.mark.slow
def test_windowed_counts_into_a_topic_are_exact(counting: Counting) -> None:
    """The format rejects update mode; the function continues with the same checkpoint."""
    topic = make_topic(counting.broker, "hourly-counts", 2)
    rows = counting.hours().selectExpr(
        "CAST(start AS STRING) AS key", "CAST(count AS STRING) AS value"
    )
    updates = rows.writeStream.outputMode("update").option(
        "checkpointLocation", counting.checkpoint
    )
    format_options = {"kafka.bootstrap.servers": counting.broker, "topic": topic}
    refused = updates.format("dedup_kafka").options(**format_options).start()
    with pytest.raises(StreamingQueryException) as refusal:
        refused.processAllAvailable()
    advice = cause(refusal.value)
    assert isinstance(advice, ConfigError)
    assert "outputMode('update').foreachBatch(dedup.sinks.kafka_sink(" in str(advice)

    def start() -> StreamingQuery:
        publish = kafka_sink(counting.broker, topic=topic, checkpoint=counting.checkpoint)
        return updates.foreachBatch(publish).start()

    counting.run(start, "kafka.commit.after")
    found = newest(counts(counting.broker, topic))
    assert {int(key) * 1000 // HOUR_MS: n for key, n in found.items()} == counting.sentences.hours


@pytest.mark.slow
def test_word_counts_of_unique_sentences_stay_exact_in_a_table(
    counting: Counting, postgres: Postgres, tmp_path: Path
) -> None:
    """Update mode behind the operator. A count grows, so it can be the version."""
    postgres.run("CREATE TABLE words (word text PRIMARY KEY, count bigint)")
    operator = dedup_by_id(
        "key", horizon="1 day", timestamp="timestamp", catalog=str(tmp_path / "catalog"), shards=2
    )
    rows = counting.words(counting.records().transform(operator))

    def start() -> StreamingQuery:
        publish = postgres_sink(
            postgres.dsn,
            "words",
            checkpoint=counting.checkpoint,
            mode="upsert",
            key="word",
            version="count",
        )
        updates = rows.writeStream.outputMode("update").foreachBatch(publish)
        return updates.option("checkpointLocation", counting.checkpoint).start()

    counting.run(start, "kit.commit.after")
    assert dict(postgres.run("SELECT word, count FROM words")) == counting.sentences.words_once


def test_the_windowed_counts_in_a_table_are_exact(counting: Counting, postgres: Postgres) -> None:
    """The example of the page."""
    postgres.run("CREATE TABLE hourly_orders (hour timestamptz PRIMARY KEY, orders bigint)")
    changes = {"postgresql://localhost/shop": postgres.dsn, "orders/hourly": counting.checkpoint}
    start = counting.example(
        "sinks/postgres/README.md",
        changes,
        orders=counting.records().withColumnRenamed("timestamp", "placed_at"),
        postgres_sink=postgres_sink,
    )
    counting.run(start, "kit.commit.after")
    found = postgres.run("SELECT extract(epoch FROM hour)::bigint, orders FROM hourly_orders")
    assert {start_s * 1000 // HOUR_MS: n for start_s, n in found} == counting.sentences.hours


@pytest.mark.slow
def test_in_complete_mode_each_micro_batch_writes_every_word_once(counting: Counting) -> None:
    """Each micro-batch holds all words, once."""
    topic = make_topic(counting.broker, "complete", 2)
    rows = counting.words(counting.records()).selectExpr(
        "word AS key", "CAST(count AS STRING) AS value"
    )
    writer = rows.writeStream.format("dedup_kafka").outputMode("complete").option("topic", topic)
    writer = writer.option("kafka.bootstrap.servers", counting.broker)
    writer = writer.option("checkpointLocation", counting.checkpoint)
    counting.run(writer.start, "kafka.commit.after")
    found = counts(counting.broker, topic)
    assert {len(each) for each in found.values()} == {BATCHES}
    assert {key: each[-1] for key, each in found.items()} == counting.sentences.words


def test_complete_mode_keeps_exact_counts_in_a_table(
    counting: Counting, postgres: Postgres
) -> None:
    postgres.run("CREATE TABLE hours (start bigint PRIMARY KEY, count bigint)")
    rows = counting.hours()
    writer = (
        rows.writeStream.format("dedup_postgres")
        .outputMode("complete")
        .options(
            dsn=postgres.dsn,
            table="hours",
            mode="upsert",
            key="start",
            checkpointLocation=counting.checkpoint,
        )
    )
    counting.run(writer.start, "kit.commit.after")
    found = dict(postgres.run("SELECT start, count FROM hours"))
    assert {
        start_s * 1000 // HOUR_MS: n for start_s, n in found.items()
    } == counting.sentences.hours
