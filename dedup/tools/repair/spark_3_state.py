"""Reads the operator's state with Spark 3.5, which has no data source for it.

Spark's own state stores read it, as they do for a query that starts again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

_KEY, _VALUE = "shard INT", "groupState STRUCT<shard_state: BINARY>"
_STATES = "org.apache.spark.sql.execution.streaming.state"


def rows_of_state(spark: SparkSession, checkpoint: str) -> Iterator[tuple[int, bytes]]:
    """Yield slot key and state of each shard after the last committed micro-batch."""
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    hadoop = session.sessionState().newHadoopConf()
    path = jvm.org.apache.hadoop.fs.Path
    files = path(checkpoint).getFileSystem(hadoop)

    def numbers(folder: str) -> list[int]:
        if not files.exists(path(folder)):
            return []
        names = (status.getPath().getName() for status in files.listStatus(path(folder)))
        return sorted(int(name) for name in names if name.isdigit())

    def is_own(operator: int) -> bool:
        """Return whether it is the operator of dedup, and not a window behind it."""
        schema = files.open(path(f"{checkpoint}/state/{operator}/0/_metadata/schema"))
        try:
            text = jvm.org.apache.commons.io.IOUtils.toString(schema, "latin1")
            return "shard_state" in str(text)
        finally:
            schema.close()

    committed = numbers(f"{checkpoint}/commits")
    operator = next(filter(is_own, numbers(f"{checkpoint}/state")), None)
    if not committed or operator is None:
        return
    last = committed[-1]
    _, pinned, *_ = spark.read.text(f"{checkpoint}/offsets/{last}").collect()
    settings = session.sessionState().conf().clone()
    for name, value in json.loads(pinned[0])["conf"].items():
        settings.setConfString(name, value)
    states = jvm.org.apache.spark.sql.execution.streaming.state
    of_store = states.StateStoreConf(settings, jvm.PythonUtils.toScalaMap({}))
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    providers = jvm.java.lang.Class.forName(f"{_STATES}.StateStoreProvider$", True, loader)
    create = providers.getField("MODULE$").get(None).createAndInit
    kind = jvm.org.apache.spark.sql.types.StructType.fromDDL
    for partition in numbers(f"{checkpoint}/state/{operator}"):
        store_id = states.StateStoreId(f"{checkpoint}/state", operator, partition, "default")
        run_id = states.StateStoreProviderId(store_id, jvm.java.util.UUID.randomUUID())
        provider = create(run_id, kind(_KEY), kind(_VALUE), 0, of_store, hadoop)
        try:
            store = provider.getReadStore(last + 1)
            rows = store.iterator()
            while rows.hasNext():
                pair = rows.next()
                state = pair.value().getStruct(0, 1).getBinary(0)
                yield pair.key().getInt(0), bytes(state)
            store.abort()
        finally:
            provider.close()
