"""Copy orders from a topic to another topic or a table: each once, a customer's orders in order.

    python copy_orders.py SERVERS FROM TO FOLDER JARS [FORMAT OPTIONS]

SERVERS are addresses of some brokers. Customers are the keys. TO is a topic. With the FORMAT of a
sink into tables, and its OPTIONS as JSON, TO is a table. The query keeps its checkpoint and its
catalog in FOLDER, and Spark's connector for Kafka in JARS. It runs until somebody kills it; start
it again, and it continues.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import dedup
from dedup import dedup_by_id, kafka_records
from dedup.errors import cause
from dedup.sources.kafka import Field, Json, kafka_jars


def in_the_order_of_the_source(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task in the order of the topic."""
    rows = list(batches)
    if rows:
        place = [("partition", "ascending"), ("offset", "ascending")]
        yield from pa.Table.from_batches(rows).sort_by(place).to_batches()


def main(servers: str, source: str, target: str, folder: str, jars: str, *table: str) -> None:
    spark = (
        SparkSession.builder.config("spark.jars", kafka_jars(jars))
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.python.daemon.module", "dedup.spark.daemon")
        # Rows are small, so Spark need not measure them.
        .config("spark.sql.execution.arrow.maxBytesPerBatch", 2147483647)
        .getOrCreate()
    )
    dedup.register(spark)
    orders = kafka_records(
        spark,
        servers,
        topics=source,
        value=Json("id string NOT NULL, number long NOT NULL, text string"),
        record_id=Field("id"),
        checkpoint=f"{folder}/checkpoint",
        options={"maxOffsetsPerTrigger": "5000"},
    )
    unique = orders.transform(
        dedup_by_id(
            "record_id",
            horizon="1 day",
            timestamp="timestamp",
            source_partition=["topic", "partition"],
            order_by="offset",
            catalog=f"{folder}/catalog",
        )
    )
    # The operator divides rows by ID. One task for all orders of a customer keeps their order.
    ordered = unique.repartition(2, "key").mapInArrow(in_the_order_of_the_source, unique.schema)
    if not table:
        writer = (
            ordered.selectExpr("key", "to_json(struct(id, number, text)) AS value")
            .writeStream.format("dedup_kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("topic", target)
        )
    else:
        writer = (
            ordered.select("id", "number", "text")
            .writeStream.format(table[0])
            .options(**json.loads(table[1]))
        )
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        raise cause(error) or error from None


if __name__ == "__main__":
    main(*sys.argv[1:])
