"""Values at the edges, through the sink of Kafka, read back by confluent-kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dedup.errors import ConfigError, DataError
from dedup.sinks.batch import new_batch
from dedup.sinks.kafka.options import kafka_options
from dedup.sinks.kafka.records import record_shape
from tests.kafka.records import make_topic, read_topic
from tests.kafka.slots import QUERY, work_of
from tests.support.edge_values import SCALARS, TEXTS

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
[BYTES] = [edge.values for edge in SCALARS if edge.spark == "binary"]
#: Milliseconds, from the first that Kafka takes as the record's own.
TIMES = [1, 1_582_000_000_000, None]


@pytest.mark.parametrize("mode", ["exactly-once", "atomic", "at-least-once"])
def test_edge_values_are_read_back_unchanged(broker: str, tmp_path: Path, mode: str) -> None:
    topic = make_topic(broker, f"edges-{mode}")
    make_topic(broker, f"{topic}-markers", cleanup_policy="compact")
    texts = [*TEXTS, None]
    headers = [
        None if number % 7 == 0 else
        [] if number % 7 == 1 else
        [(text or "", each) for each in (*BYTES, None)] if text is None or "\0" not in text else
        [("", text.encode()), ("", None)]
        for number, text in enumerate(texts)
    ]  # fmt: skip
    times = [TIMES[number % 3] for number in range(len(texts))]
    rows = pa.record_batch(
        {
            "key": pa.array([None if t is None else t.encode() for t in reversed(texts)]),
            "value": pa.array(texts, pa.string()),
            "headers": pa.array([None if one is None else
                                 [{"key": k, "value": v} for k, v in one]
                                 for one in headers], HEADERS),
            "timestamp": pa.array([None if t is None else t * 1000 for t in times],
                                  pa.timestamp("us", "UTC")),
        }
    )  # fmt: skip
    staging, markers = str(tmp_path), f"{topic}-markers"
    sink = work_of(broker, rows, topic=topic, mode=mode, staging=staging, markers=markers)
    for batch_id in range(2):  # staged by the driver, and sent by a task
        batch = new_batch(QUERY, sink.name, "run", batch_id)
        parts = [rows.slice(0, 5), rows.slice(5)]
        sink.complete([sink.write(batch, 0, parts)])
    found = read_topic(broker, topic)
    assert len(found) == 2 * len(texts)
    for number, record in enumerate(found):
        place = number % len(texts)
        wanted: Any = texts[place]
        assert record.value == (None if wanted is None else wanted.encode())
        assert record.key == rows["key"][place].as_py()
        assert list(record.headers) == (headers[place] or [])
        if times[place] is not None:
            assert record.timestamp_ms == times[place]


@pytest.mark.parametrize(
    "header", [None, {"key": None, "value": b"x"}, {"key": "a\0b", "value": b"x"}]
)
def test_a_header_that_kafka_cannot_hold_is_refused(
    broker: str, header: dict[str, Any] | None
) -> None:
    """Its key would be `None`, or end at the NUL."""
    one = {"key": "k", "value": None}
    headers = pa.array([None, [one], [], [one, header]], HEADERS)
    rows = pa.record_batch({"value": [b"0", b"1", b"2", b"3"], "headers": headers}).slice(1)
    sink = work_of(broker, rows, topic="none", mode="at-least-once")
    with pytest.raises(DataError, match=r"row 2.* has a null header, or a header whose key"):
        sink.write(new_batch(QUERY, sink.name, "run", 0), 0, [rows])


@pytest.mark.parametrize("name", ["topic", "headers"])
def test_a_name_that_is_not_utf8_is_refused(broker: str, name: str) -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"]).buffers())
    values: dict[str, Any] = {"value": [b"0"], "topic": broken}
    if name == "headers":
        inner = pa.StructArray.from_arrays([broken, pa.array([b"x"])], names=["key", "value"])
        values = {"value": [b"0"], "headers": pa.ListArray.from_arrays([0, 1], inner)}
    rows = pa.record_batch(values)
    topic = "none" if name == "headers" else None
    sink = work_of(broker, rows, topic=topic, mode="at-least-once")
    with pytest.raises(DataError, match="not UTF-8, which Kafka"):
        sink.write(new_batch(QUERY, sink.name, "run", 0), 0, [rows])


def test_a_record_without_a_topic_is_named(broker: str) -> None:
    topics = pa.array(["none", None], pa.string())
    rows = pa.record_batch({"key": [b"a", b"b"], "value": [b"x", b"y"], "topic": topics})
    sink = work_of(broker, rows, mode="at-least-once")
    with pytest.raises(DataError, match=r"key b'b'.* has a null topic"):
        sink.write(new_batch(QUERY, sink.name, "run", 0), 0, [rows])


@pytest.mark.parametrize(
    ("columns", "topic", "why"),
    [
        (["key"], "t", "needs a column `value`"),
        (["value", "VALUE"], "t", "two columns of the name"),
        (["value"], "", "The sink knows no topic"),
    ],
)
def test_columns_that_make_no_record_are_rejected(columns: list[str], topic: str, why: str) -> None:
    given = {"kafka.bootstrap.servers": "localhost:9", "mode": "at-least-once"}
    made = kafka_options(given | ({"topic": topic} if topic else {}))
    with pytest.raises(ConfigError, match=why):
        record_shape([(name, "binary") for name in columns], made)
