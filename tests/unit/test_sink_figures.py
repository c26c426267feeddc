"""Figures of sinks: what is counted, and how listeners in other processes get it."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from dedup import DedupListener
from dedup.cli.watch_screen import screen
from dedup.errors import SinkError
from dedup.sinks.batch import Batch
from dedup.sinks.content import Content
from dedup.sinks.figures import SinkMetrics, figures_of, record, reported
from dedup.sinks.protocol import Fenced, PublishedSlice, StagedSlice
from dedup.sinks.work import SinkWork, TaskResult
from dedup.tools.watch import listener as listener_module
from dedup.tools.watch.metrics_log import MetricsLog
from dedup.tools.watch.query_log import QueryLog, read_logs
from tests.support.batch_metrics import QUERY, START_MS, Session, batch, samples

BATCH = Batch(query_id=QUERY, sink="kafka", run_id="run", batch_id=7)
ROWS = pa.record_batch({"n": pa.array(range(10), pa.int64())})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of this machine."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"dedup-sinks-{os.getuid()}"


def metrics(batch_id: int, **more: Any) -> SinkMetrics:
    counts = dict.fromkeys(("bytes", "retries", "fenced", "undelivered", "task_us", "driver_us"), 0)
    given: dict[str, Any] = {"sink": "kafka", "rows": 10, **counts, **more}
    return SinkMetrics(query_id=QUERY, run_id="run", batch_id=batch_id, **given)


class Work(SinkWork):
    """A sink that only counts, and whose driver may be fenced."""

    room = "kafka"
    settle: Any = None
    publish: Any = None

    def __init__(self, ledger: str | None = None) -> None:
        self.options: Any = SimpleNamespace(
            name="kafka", ledger=ledger, accept_lost_markers=True, accept_difference=None
        )

    def write(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        content = Content(sum(one.num_rows for one in rows))
        made: PublishedSlice | StagedSlice = PublishedSlice(slot, content)
        if self.options.ledger is not None:
            made = StagedSlice(slot, content, "file")
        return TaskResult(batch, made, undelivered=slot)


def test_figures_count_rows_bytes_and_time_of_a_micro_batch() -> None:
    work = Work()
    results = [work.run_task(BATCH, slot, iter([ROWS, ROWS])) for slot in range(3)]
    work.run_driver(results)
    [found] = figures_of(QUERY, 7)
    assert (found.rows, found.bytes, found.undelivered) == (60, 6 * ROWS.nbytes, 0 + 1 + 2)
    assert found.task_us == sum(result.figures.us for result in results)
    assert (found.query_id, found.run_id, found.sink) == (QUERY, "run", "kafka")
    assert figures_of(QUERY, 6) == figures_of("other", 7) == []


def test_a_driver_that_was_fenced_counts_once_the_micro_batch_succeeds(tmp_path: Path) -> None:
    work = Work(str(tmp_path / "ledger"))

    def fenced(staged: Any) -> Any:
        raise Fenced("by another start")

    work.settle, work.publish = lambda *_: None, fenced
    results = [work.run_task(BATCH, 0, iter([ROWS]))]
    for _ in range(2):
        with pytest.raises(SinkError, match="Another start"):
            work.run_driver(results)
        assert figures_of(QUERY, 7) == []
    work.publish = lambda staged: None
    work.run_driver(results)
    [found] = figures_of(QUERY, 7)
    assert (found.fenced, found.retries, found.rows) == (2, 0, 10)
    work.run_driver(results)  # a replay counts for itself
    assert figures_of(QUERY, 7)[0].fenced == 0


def test_figures_that_a_sink_does_not_count_are_unknown() -> None:
    """For example if Spark's own tasks write: the second micro-batch states no rows."""
    for n, rows in enumerate((30, None)):
        with reported(replace(BATCH, batch_id=n)) as figures:
            figures.rows, figures.bytes = rows, 2048
    first, second = figures_of(QUERY, 0) + figures_of(QUERY, 1)
    assert (first.rows, first.bytes, first.retries, first.task_us) == (30, 2048, None, None)
    assert (second.rows, second.fenced, second.undelivered) == (None, None, 0)
    log, shown = QueryLog(QUERY), list[str]()
    for n, one in enumerate((first, second)):
        log.batch(batch(n), START_MS + 10_000 * n, [one])
        lines = (line.plain for line in screen([log.watched(START_MS)]))
        shown.append(next(line for line in lines if line.startswith("sink kafka")))
    assert re.search("kafka +30 rows, 2.0 KiB +driver 0.0", shown[0])
    assert re.search("kafka +2.0 KiB +driver 0.0", shown[1])
    assert log.watched(START_MS).to_json()["sinks"]["kafka"]["rows"] is None


def test_figures_are_kept_per_sink_and_old_ones_are_removed(folder: Path) -> None:
    for n in range(30):
        record(metrics(n))
        record(metrics(n, sink="a.b"))
    assert [one.sink for one in figures_of(QUERY, 29)] == ["a.b", "kafka"]
    assert figures_of(QUERY, 9) == []
    assert len(figures_of(QUERY, 10)) == 2
    assert folder.stat().st_mode & 0o777 == 0o700
    old = folder / "gone.kafka.json"
    old.write_text("{}")
    os.utime(old, (0, 0))
    record(replace(metrics(0), query_id="new"))
    assert not old.exists()
    assert len(list(folder.iterdir())) == 3


def test_damaged_or_unwritable_figures_raise_no_error(folder: Path) -> None:
    record(metrics(1))
    [file] = folder.iterdir()
    for broken in ("", "{", "{}", "[1]", '[{"batch_id": 1, "rows": "x"}]'):
        file.write_text(broken)
        assert figures_of(QUERY, 1) == []
    file.write_text("{")
    record(metrics(2))
    assert figures_of(QUERY, 2) == [metrics(2)]
    file.unlink()
    folder.rmdir()
    folder.symlink_to(folder.parent)  # by another user
    record(metrics(3))
    assert figures_of(QUERY, 3) == []


def test_a_listener_reports_sinks_of_any_query_once(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[SinkMetrics] = []
    listener = DedupListener(on_sink=heard.append)
    for name in ("from_progress", "sequences_from_progress"):
        monkeypatch.setattr(listener_module, name, lambda progress, name: None)
    for n in (0, 0, 1):
        record(metrics(n))
        progress = SimpleNamespace(id=QUERY, runId="r", name=None, batchId=n)
        listener.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]
    assert heard == [metrics(0), metrics(1)]
    assert listener.watched() == []


def test_sinks_appear_in_the_log_the_endpoint_and_on_the_screen(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    sinks = [metrics(n, bytes=2048, fenced=n, task_us=5_000, driver_us=3_000) for n in range(3)]
    for n in range(3):
        log.batch(batch(n), START_MS + 10_000 * n, [sinks[n], metrics(n, sink="files")])
    [read] = read_logs(tmp_path)
    assert (len(read.batches), read.unreadable) == (3, 0)
    assert [one for one in read.sinks if one.sink == "kafka"] == sinks
    again = QueryLog.from_json(json.loads(json.dumps(read.to_json())))
    assert again.sinks == read.sinks
    watched = read.watched(START_MS + 30_000)
    assert watched.to_json()["sinks"]["kafka"] == {
        "batches": 3, "rows": 30, "bytes": 6144, "retries": 0, "fenced": 3, "undelivered": 0,
        "task_us": 15_000, "driver_us": 9_000,
    }  # fmt: skip
    lines = [line.plain for line in screen([watched])]
    assert any(
        line.startswith("sink kafka") and "10 rows" in line and "3 fenced" in line for line in lines
    )
    assert max(map(len, lines)) <= 80
    damaged = read.to_json()
    damaged["lines"][2]["sinks"][0]["rows"] = "x"
    with pytest.raises(ValueError, match="rows cannot be"):
        QueryLog.from_json(damaged)


def test_prometheus_counts_sinks() -> None:
    session = Session()
    for n in range(2):
        session.sinks("orders", "run", [metrics(n, retries=1, driver_us=500_000)])
    told = samples(session)
    assert told["dedup_sink_rows_total", ("orders", "kafka")] == 20
    assert told["dedup_sink_retries_total", ("orders", "kafka")] == 2
    assert told["dedup_sink_seconds_total", ("orders", "driver", "kafka")] == pytest.approx(1)
