"""Parts of the Kafka source that need neither Spark nor a broker."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from dedup.errors import ConfigError, SourceError, StateError
from dedup.sources.kafka.cluster import Topic
from dedup.sources.kafka.listeners import NewestJob, end_offsets
from dedup.sources.kafka.poison import Quarantine, poison_counts
from dedup.sources.kafka.start import matching
from dedup.sources.kafka.topic_ids import FILE, Checkpoint, checked_ids


@pytest.mark.parametrize(
    ("noted", "read", "told"),
    [
        ({}, {"a"}, {"a": "1", "b": "2"}),
        ({"a": "1"}, {"a"}, {"a": "1", "b": "2"}),
        ({"a": "0", "gone": "3"}, {"b"}, {"a": "1", "b": "2", "gone": "3"}),
        ({"b": "2", "elsewhere": "9"}, {"elsewhere"}, {"a": "1", "b": "2", "elsewhere": "9"}),
        ({"a": "0"}, {"a"}, "Topic a was deleted and created again .ID 0 then, 1 now"),
        ({"gone": "3"}, {"gone"}, "Topic gone does not exist any more"),
    ],
)
def test_a_topic_with_another_id_is_refused_where_it_was_read(
    noted: dict[str, str], read: set[str], told: dict[str, str] | str
) -> None:
    now = {"a": "1", "b": "2", "gone": None}
    if isinstance(told, str):
        with pytest.raises(SourceError, match=told):
            checked_ids(noted, now, read)
    else:
        assert checked_ids(noted, now, read) == told


def test_topics_are_read_from_the_newest_offsets_of_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path / "checkpoint"))
    assert checkpoint.topics_read() is None
    assert checkpoint.query_id() is None
    assert checkpoint.topic_ids() == {}
    log = tmp_path / "checkpoint" / "offsets"
    log.mkdir(parents=True)
    about = '{"batchWatermarkMs":0,"conf":{"a":"b"}}'
    (log / "9").write_text(f'v1\n{about}\n{{"old":{{"0":1}}}}')
    lines = ['{"a":{"0":1,"1":2},"b":{"0":3}}', "-", '{"logOffset":4}', "5"]
    (log / "10").write_text("\n".join(["v1", about, *lines]))
    (log / ".11.tmp").write_text("")
    assert checkpoint.topics_read() == {"a", "b"}
    (log / "11").write_text(f'v2\n{about}\nsource-0:{{"c":{{"0":1}}}}')
    assert checkpoint.topics_read() == {"c"}
    topic = Topic(name="c", partitions=1, replicas=1, id="1")
    for store, stored in ((False, {}), (True, {"c": "1"})):
        checkpoint.compare({"c": topic, "gone": None}, {"c"}, store=store)
        assert checkpoint.topic_ids() == stored
    whole = b'{"format": 1, "topics": {"a": "1\xff"}}'
    for damaged in (
        b"",
        b"[]",
        b'{"format": 2, "topics": {}}',
        b'{"format": 1}',
        whole,
        b"[" * 9999,
    ):
        (tmp_path / "checkpoint" / FILE).write_bytes(damaged)
        with pytest.raises(StateError, match=FILE):
            checkpoint.topic_ids()


def test_end_offsets_are_the_lowest_over_all_kafka_sources() -> None:
    def source(description: str, end: Any) -> Any:
        return SimpleNamespace(description=description, endOffset=end)

    progress = SimpleNamespace(
        sources=[
            source("KafkaV2[Subscribe[a]]", '{"a":{"0":5,"1":7}}'),
            source("KafkaV2[Subscribe[a,b]]", {"a": {"0": 3}, "b": {"2": 1}}),
            source("FileStreamSource[file:/x]", '{"logOffset":4}'),
            source("KafkaV2[Subscribe[c]]", None),
            source("KafkaV2[Subscribe[d]]", "null"),
        ]
    )
    assert end_offsets(progress) == {"a": {0: 3, 1: 7}, "b": {2: 1}}


def test_counts_of_poison_are_added_over_tasks() -> None:
    observed = {
        "records": 9,
        "poison": 6,
        "places": [
            {"place": {"topic": "t", "partition": 0}, "number": 1.0},
            {"place": {"topic": "t", "partition": 3}, "number": 2.0},
        ],
        "counts": [{"x": 1.0, "y": 2.0}, {"x": 2.0, "y": 1.0}, {"x": 1.0, "y": 3.0}],
    }
    progress = {"observedMetrics": {"kafka_source": observed}}
    assert poison_counts(progress) == {"t": {0: 5, 3: 1}}
    nothing = {"records": 0, "poison": 0, "places": None, "counts": None}
    assert poison_counts({"observedMetrics": {"kafka_source": nothing}}) == {}
    assert poison_counts({}) == {}


def poison(offset: int = 2, **fields: Any) -> str:
    """An object, as far as Python reads it."""
    return json.dumps({"topic": "t", "partition": 1, "offset": offset, "error": "why"} | fields)


def test_a_record_that_is_already_set_aside_is_kept(tmp_path: Path) -> None:
    kept = Quarantine(tmp_path / "aside")
    kept.check()
    assert list((tmp_path / "aside").rglob("*")) == []
    kept.write([poison(), poison(3)])
    kept.write([poison(error="another"), poison(4), poison(2**62, topic="_hidden")])
    found = sorted((tmp_path / "aside" / "topic=t" / "partition=1").iterdir())
    assert [int(path.stem) for path in found] == [2, 3, 4]
    assert found[0].read_text() == poison() + "\n"
    assert (tmp_path / "aside" / "topic=_hidden" / "partition=1" / f"0{2**62}.json").exists()


@pytest.mark.parametrize("part", ["key", "value", "timestamp_ms"])
def test_another_record_at_the_same_offset_is_rejected(tmp_path: Path, part: str) -> None:
    kept = Quarantine(tmp_path)
    kept.write([poison(**{part: 1})])
    with pytest.raises(SourceError, match=r"another record as .*02.json.* No record was skipped"):
        kept.write([poison(**{part: 2})])


@pytest.mark.parametrize("planted", ["", "[]", "{", "[" * 200_000, "\0"])
def test_a_damaged_object_is_not_taken_for_the_record(tmp_path: Path, planted: str) -> None:
    kept = Quarantine(tmp_path)
    kept.write([poison()])
    next(tmp_path.rglob("*.json")).write_text(planted)
    with pytest.raises(SourceError, match="or a damaged one"):
        kept.write([poison()])


def test_rows_without_a_cause_pass_through(tmp_path: Path) -> None:
    kept = Quarantine(tmp_path)
    assert kept.set_aside(pd.Series([None, poison(7), None])).tolist() == [True, False, True]
    assert kept.set_aside(pd.Series([None, None], dtype=object)).tolist() == [True, True]
    assert [path.name for path in tmp_path.rglob("*.json")] == [f"{7:020d}.json"]


def test_a_quarantine_that_fails_lets_no_record_pass(tmp_path: Path) -> None:
    kept = Quarantine(tmp_path / "aside")
    (tmp_path / "aside").mkdir()
    (tmp_path / "aside" / "topic=t").write_text("in the way")
    with pytest.raises(SourceError, match="No record was skipped"):
        kept.write([poison()])
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        Quarantine(tmp_path / "file").check()


def test_patterns_match_whole_names() -> None:
    assert matching("a.?", ["a", "ab", "abc", "ba"]) == ("a", "ab")
    with pytest.raises(ConfigError):
        matching("(", [])


def test_a_newer_job_replaces_one_that_waits(caplog: pytest.LogCaptureFixture) -> None:
    work, done = NewestJob("work"), []
    begun, go_on = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        go_on.wait(10)
        done.append("first")
        raise ValueError("no harm")

    work.submit(first)
    assert begun.wait(10)
    for name in ("second", "third"):
        work.submit(lambda name=name: done.append(name))  # type: ignore[misc]
    assert not work.drain(0.01)
    go_on.set()
    assert work.drain(10)
    assert done == ["first", "third"]
    assert "work: no harm" in caplog.text


def test_a_job_that_waits_does_not_delay_pythons_exit() -> None:
    code = (
        "import threading, dedup.sources.kafka.listeners as listeners\n"
        "begun = threading.Event()\n"
        "work = listeners.NewestJob('work')\n"
        "work.submit(lambda: (begun.set(), threading.Event().wait(120)))\n"
        "assert begun.wait(60)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
