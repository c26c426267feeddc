"""Avro through Spark: columns of Spark's types, a registry that fails, and workers that die."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import kafka_records
from dedup.errors import DataError, SourceError
from dedup.sinks import to_confluent_avro
from dedup.sources.kafka import (
    Avro,
    ConfluentAvro,
    Field,
    Json,
    Registry,
    poison_counts,
    quarantined_records,
)
from dedup.testing import faults
from tests.kafka.records import make_topic, send
from tests.kafka.sink_query import SinkQuery
from tests.kafka.source_query import failure, run, start, written
from tests.support.schema_registry import SchemaRegistry, running_registry

_numbers = itertools.count()
ORDER = json.dumps(
    {
        "type": "record", "name": "Order", "namespace": "shop",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal",
                                       "precision": 20, "scale": 3}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
            {"name": "tags", "type": {"type": "map", "values": ["null", "string"]}},
            {"name": "lines", "type": {"type": "array", "items": {
                "type": "record", "name": "Line", "fields": [
                    {"name": "n", "type": ["null", "long"]},
                    {"name": "sum", "type": "double"}]}}},
        ],
    }
)  # fmt: skip


def order(name: str) -> dict[str, Any]:
    return {
        "id": name, "at": datetime(2024, 5, 1, 12, tzinfo=UTC), "local": datetime(2024, 5, 1, 13),
        "day": date(2024, 5, 2), "price": Decimal("12345678901234567.891"), "kind": "B",
        "tags": {"x": None, "y": "z"}, "lines": [{"n": None, "sum": 0.5}, {"n": 7, "sum": 1.0}],
    }  # fmt: skip


def avro(value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(ORDER)), value)
    return out.getvalue()


@pytest.fixture
def topic(broker: str) -> str:
    return make_topic(broker, f"avro-{next(_numbers)}", 2)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with running_registry() as found:
        yield found


def test_records_have_columns_of_sparks_types(
    spark: SparkSession, broker: str, topic: str, tmp_path: Path
) -> None:
    send(broker, topic, [(b"k", avro(order("a"))), (b"k", None)])
    rows = kafka_records(spark, broker, topics=topic, value=Avro(ORDER), record_id=Field("id"))
    assert [f"{f.name} {f.dataType.simpleString()}" for f in rows.schema.fields[:8]] == [
        "id string", "at timestamp", "local timestamp_ntz", "day date", "price decimal(20,3)",
        "kind string", "tags map<string,string>", "lines array<struct<n:bigint,sum:double>>",
    ]  # fmt: skip
    one, tombstone = sorted(run(rows, tmp_path), key=lambda row: row.offset)
    assert one.asDict(recursive=True) | {"at": None} == one.asDict(recursive=True) | {
        **order("a"), "at": None,
    }  # fmt: skip
    assert one.at.timestamp() == datetime(2024, 5, 1, 12, tzinfo=UTC).timestamp()
    assert (one.record_id, one.key, one.topic) == ("a", b"k", topic)
    assert (tombstone.id, tombstone.lines, tombstone.key) == (None, None, b"k")


def test_the_source_reads_the_avro_that_the_sink_writes(
    sink: SinkQuery, registry: SchemaRegistry
) -> None:
    fields = [{"name": "n", "type": "long"}, {"name": "text", "type": "string"}]
    schema = {"type": "record", "name": "N", "fields": fields}
    value = F.when(F.col("n") != 7, F.struct(F.col("value").cast("string").alias("text"), "n"))
    avro = to_confluent_avro(registry.url, subject=f"{sink.topic}-value", schema=schema)
    sink.change = lambda rows: rows.select("key", value.alias("value")).transform(avro)
    sink.numbers(range(5), range(5, 10))
    sink.run()
    rows = kafka_records(
        sink.spark, sink.address, topics=sink.topic, value=ConfluentAvro(registry.url), stream=False
    ).collect()
    expected = {(b"%d" % n, n, f"v{n}") for n in range(10) if n != 7} | {(b"7", None, None)}
    assert {(bytes(row.key), row.n, row.text) for row in rows} == expected
    assert set(registry.asked) == {
        f"/subjects/{sink.topic}-value/versions", f"/subjects/{sink.topic}-value/versions/latest",
        "/schemas/ids/1",
    }  # fmt: skip


@pytest.mark.slow
def test_poison_records_are_quarantined_but_a_registry_failure_stops_the_query(
    spark: SparkSession, broker: str, topic: str, registry: SchemaRegistry, tmp_path: Path
) -> None:
    registry.require("u", "p")
    head = registry.add(7, ORDER, f"{topic}-value")
    key = registry.add(8, '"string"', f"{topic}-key") + b"\x02k"
    server = Registry(registry.url, user="u", password="p")
    aside = tmp_path / "aside"
    bad = [b"", b"{}", b"\0\0\0\0\x63abc", head, head + avro(order("x"))[:-3]]
    send(broker, topic, [{"key": key, "value": head + avro(order("a")), "partition": 0}])
    send(broker, topic, [{"value": value, "partition": 1} for value in bad])

    def rows(**given: Any) -> Any:
        return kafka_records(
            spark, broker, topics=topic, value=ConfluentAvro(server), key=ConfluentAvro(server),
            **{"on_error": "quarantine", "quarantine": aside, **given},
        )  # fmt: skip

    query = start(rows(), tmp_path)
    assert query.awaitTermination(120)
    assert [(row.id, row.key) for row in written(rows(), tmp_path)] == [("a", "k")]
    [progress] = [p for p in query.recentProgress if p.numInputRows]
    assert poison_counts(progress) == {topic: {1: len(bad)}}
    assert len(list(aside.rglob("*.json"))) == len(bad)
    error = failure(rows(on_error="fail", quarantine=None), tmp_path / "strict")
    assert isinstance(error, DataError)
    assert f"partition 1 of topic {topic}" in str(error)
    # A new writer's schema is to be asked for, and no one answers.
    send(broker, topic, [{"value": b"\0\0\0\0\x64abc", "partition": 0}])
    failing = rows()
    registry.failures += [503] * 50
    error = failure(failing, tmp_path)
    assert isinstance(error, SourceError)
    assert "503" in str(error)
    assert len(list(aside.rglob("*.json"))) == len(bad)
    registry.failures.clear()
    registry.by_id[100] = {"schema": ORDER}
    run(rows(), tmp_path)
    assert len(list(aside.rglob("*.json"))) == len(bad) + 1


def test_workers_that_die_while_they_quarantine_lose_and_repeat_nothing(
    spark: SparkSession, broker: str, topic: str, fault_folder: Path, tmp_path: Path
) -> None:
    aside = tmp_path / "aside"
    rows = kafka_records(
        spark, broker, topics=topic, value=Json("id string"), on_error="quarantine",
        quarantine=aside,
    )  # fmt: skip
    steps = ["quarantine.before", "publish.synced", "publish.named", "quarantine.after"]
    sent: list[tuple[int, int, bytes]] = []
    for number, step in enumerate(steps):
        bad = [(n % 2, number * 6 + n // 2, b"bad%d-%d" % (number, n)) for n in range(10)]
        send(broker, topic, [{"value": value, "partition": n} for n, _, value in bad])
        send(broker, topic, [{"value": b'{"id": "%d"}' % number, "partition": n} for n in (0, 1)])
        sent += bad
        faults.arm(fault_folder, step, "kill")
        got = run(rows, tmp_path)
        assert len(faults.fired(fault_folder)) == number + 1
        assert sorted(row.id for row in got) == sorted([str(n) for n in range(number + 1)] * 2)
    assert {point for point, _, _ in faults.fired(fault_folder)} == set(steps)
    kept = quarantined_records(spark, str(aside)).collect()
    found = sorted((row.partition, row.offset, bytes(row.value)) for row in kept)
    assert found == sorted(sent)
