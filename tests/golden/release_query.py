"""Runs a query until its input ends, with the release of this package that is on PYTHONPATH.

The argument is JSON. Prints the release, and the rows of each micro-batch.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import dedup


def main() -> None:
    given = json.loads(sys.argv[1])
    folder, settings = given["folder"], {**given["settings"], "spark.sql.session.timeZone": "UTC"}
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    reader = spark.readStream.schema(given["schema"]).option("maxFilesPerTrigger", 1)
    operator = getattr(dedup, given["operator"])(*given["columns"], **given["options"])
    rows: dict[int, list[dict[str, Any]]] = {}

    def keep(df: DataFrame, batch: int) -> None:
        rows[batch] = [row.asDict() for row in df.drop("ts").collect()]

    query = (
        reader.parquet(f"{folder}/input")
        .transform(operator)
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(json.dumps([dedup.__version__, rows]))


if __name__ == "__main__":
    main()
