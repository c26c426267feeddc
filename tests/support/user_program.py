"""A program as a user writes it. Strict type checkers accept it."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from dedup import (
    BatchMetrics,
    DedupListener,
    check_query,
    dedup_by_id,
    errors,
    kafka_records,
    register,
    split,
    tools,
)
from dedup.sinks import files_sink, kafka_sink, postgres_sink
from dedup.sources.kafka import FromGroup, Json
from dedup.tools import ExponentialDelay, run_with_restarts


def orders(spark: SparkSession) -> DataFrame:
    events = kafka_records(
        spark, "localhost:9092", topics="orders", value=Json("id STRING"), start=FromGroup("shop")
    )
    operator = dedup_by_id(
        "id", horizon="7 days", timestamp="timestamp", catalog="catalog",
        state_budget_bytes="1 MiB", verdict="verdict",
    )  # fmt: skip
    for finding in check_query(events, operator, checkpoint="checkpoint"):
        print(finding.rule, finding.evidence)
    return events.transform(operator)


def run(spark: SparkSession) -> None:
    register(spark)
    spark.streams.addListener(DedupListener(on_batch, log="metrics"))
    unique = files_sink("orders", checkpoint="checkpoint")
    copies = kafka_sink("localhost:9092", topic="copies", checkpoint="checkpoint")
    late = postgres_sink("dbname=shop", "late", checkpoint="checkpoint")
    try:
        run_with_restarts(
            lambda: split(orders(spark), unique=unique, duplicate=copies, late=late).start(),
            ExponentialDelay(),
        )
    except errors.DedupError as error:
        print(error.text, error.remedy)
    print(tools.inspect_output("dedup_files", {"path": "orders"}).to_json())


def on_batch(metrics: BatchMetrics) -> None:
    print(metrics.batch_id, metrics.unique)
