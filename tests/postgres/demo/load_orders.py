"""Load orders from a topic into a table: each once, despite resends, replays and kills.

    python load_orders.py SERVERS FROM TABLE FOLDER JARS DSN

SERVERS are addresses of some brokers, DSN is PostgreSQL's connection string. The query keeps its
checkpoint and its catalog in FOLDER, and Spark's connector for Kafka in JARS. It runs until
somebody kills it; start it again, and it continues.
"""

from __future__ import annotations

import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import dedup
from dedup import Field, Json, dedup_by_id, kafka_jars, kafka_records
from dedup.errors import cause


def main(servers: str, source: str, table: str, folder: str, jars: str, dsn: str) -> None:
    spark = (
        SparkSession.builder.config("spark.jars", kafka_jars(jars))
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.python.daemon.module", "dedup.spark.daemon")
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
            catalog=f"{folder}/catalog",
        )
    )
    query = (
        unique.select("id", "number", "text")
        .writeStream.format("dedup_postgres")
        .option("dsn", dsn)
        .option("table", table)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start()
    )
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        raise cause(error) or error from None


if __name__ == "__main__":
    main(*sys.argv[1:])
