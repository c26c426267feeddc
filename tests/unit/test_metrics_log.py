"""The metrics log: what is written is read again, whatever happens to the file in between."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from metrics_support import QUERY, RUN, START_MS, batch

from dedup.core.health import TOLD_SILENCE_MS
from dedup.core.metrics import BatchMetrics
from dedup.errors import ConfigError
from dedup.monitor import metrics_log
from dedup.monitor.metrics_log import IDLE_EVERY_MS, SUFFIX, MetricsLog, read_logs
from dedup.monitor.runs import Runs


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "new" / "folder")
    made = [batch(n, slowest_sources=(("p1", n, False),)) for n in range(3)]
    for n, one in enumerate(made):
        log.batch(one, START_MS + n)
    (read,) = read_logs(tmp_path / "new" / "folder")
    assert read.batches == [(START_MS + n, one) for n, one in enumerate(made)]
    assert (read.query_id, read.name, read.heard_ms) == (QUERY, "orders", START_MS + 2)
    assert (read.ended, read.unreadable) == (None, 0)


def test_every_line_is_an_object_that_says_whose_it_is(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.batch(batch(0), START_MS)
    log.ended(QUERY, RUN, "Boom: first line", START_MS + 1)
    lines = [json.loads(line) for line in (tmp_path / (QUERY + SUFFIX)).read_text().splitlines()]
    assert [line["event"] for line in lines] == ["started", "batch", "ended"]
    assert {(line["format"], line["query_id"], line["run_id"]) for line in lines} == {
        (1, QUERY, RUN)
    }
    assert lines[2]["error"] == "Boom: first line"


def test_an_end_is_read_until_the_next_run(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.batch(batch(0), START_MS)
    log.ended(QUERY, RUN, None, START_MS + 1)
    assert read_logs(tmp_path)[0].ended == "the run has ended"
    log.ended(QUERY, RUN, "CatalogError: gone", START_MS + 2)
    assert read_logs(tmp_path)[0].ended == "CatalogError: gone"
    log.started(QUERY, "another", START_MS + 3)
    assert read_logs(tmp_path)[0].ended is None
    # A new process goes on in the same file.
    MetricsLog(tmp_path).batch(batch(1), START_MS + 4)
    assert [b.batch_id for _, b in read_logs(tmp_path)[0].batches] == [0, 1]
    log.ended(QUERY, RUN, None, START_MS + 5)
    assert not log._writers, "its file is closed"


def test_an_idle_query_says_so_now_and_then(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.idle(QUERY, RUN, START_MS)
    assert not list(tmp_path.iterdir()), "a query without this operator has no log"
    log.batch(batch(0), START_MS)
    for ms in range(0, 3 * IDLE_EVERY_MS, 10_000):
        log.idle(QUERY, RUN, START_MS + ms)
    (read,) = read_logs(tmp_path)
    assert read.heard_ms == START_MS + 2 * IDLE_EVERY_MS
    text = (tmp_path / (QUERY + SUFFIX)).read_text()
    assert text.count('"idle"') == 3
    # Else it would be taken for one whose driver is gone.
    assert IDLE_EVERY_MS < TOLD_SILENCE_MS
    log.started("a query of another kind", RUN, START_MS)
    log.ended("a query of another kind", RUN, None, START_MS)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_log_is_bounded_and_its_end_is_read_across_files(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, files=3, file_bytes=20_000)
    for n in range(200):
        log.batch(batch(n), START_MS + n)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 3
    assert max(sizes) <= 20_000
    (read,) = read_logs(tmp_path)
    numbers = [b.batch_id for _, b in read.batches]
    assert numbers == list(range(numbers[0], 200))
    current = (tmp_path / (QUERY + SUFFIX)).read_text()
    assert len(numbers) > current.count('"batch"'), "the file before is read as well"


def test_only_the_end_of_a_long_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MetricsLog(tmp_path)
    for n in range(50):
        log.batch(batch(n), START_MS + n)
    line_bytes = (tmp_path / (QUERY + SUFFIX)).stat().st_size // 50
    monkeypatch.setattr(metrics_log, "READ_BYTES", 10 * line_bytes + 50)
    (read,) = read_logs(tmp_path)
    numbers = [b.batch_id for _, b in read.batches]
    assert 8 <= len(numbers) <= 10
    assert numbers[-1] == 49
    assert read.unreadable == 0, "the line that the window cuts is none"


def test_a_line_that_a_crash_cut_short_is_passed_over(tmp_path: Path) -> None:
    MetricsLog(tmp_path).batch(batch(0), START_MS)
    path = tmp_path / (QUERY + SUFFIX)
    path.write_bytes(path.read_bytes() + b'{"format":1,"event":"bat')
    assert len(read_logs(tmp_path)[0].batches) == 1
    # The next process writes behind it, first of all that its run began.
    Runs(MetricsLog(tmp_path)).batch(batch(1), START_MS + 1)
    (read,) = read_logs(tmp_path)
    assert [b.batch_id for _, b in read.batches] == [0, 1]
    assert read.unreadable == 1


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"7",
        b"{}",
        b"\xff\xfe",
        b'{"format":2,"event":"idle","at_ms":1,"name":null}',
        b'{"format":1,"event":"batch","at_ms":1,"name":null,"batch":{}}',
        b'{"format":1,"event":"batch","at_ms":1,"name":null,"batch":7}',
        b'{"format":1,"event":"ended","at_ms":"x","name":null}',
    ],
)
def test_foreign_lines_are_counted(tmp_path: Path, line: bytes) -> None:
    MetricsLog(tmp_path).batch(batch(0), START_MS)
    path = tmp_path / (QUERY + SUFFIX)
    path.write_bytes(line + b"\n" + path.read_bytes())
    (read,) = read_logs(tmp_path)
    assert len(read.batches) == 1
    assert read.unreadable == (line != b"")


def test_fields_of_a_later_release_are_passed_over() -> None:
    one = batch(0)
    assert BatchMetrics.from_json({**one.to_json(), "beauty": 11}) == one
    with pytest.raises(ValueError, match="it lacks unique"):
        BatchMetrics.from_json({k: v for k, v in one.to_json().items() if k != "unique"})


def test_every_query_has_a_log_of_its_own(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.batch(batch(0), START_MS)
    log.batch(batch(0, query_id="other", query_name=None), START_MS)
    assert [(read.query_id, read.name) for read in read_logs(tmp_path)] == [
        (QUERY, "orders"), ("other", None),
    ]  # fmt: skip


def test_a_log_that_cannot_be_written_harms_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = MetricsLog(tmp_path)
    (tmp_path / (QUERY + SUFFIX)).mkdir()
    for n in range(3):
        log.batch(batch(n), START_MS)
    told = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(told) == 1
    assert "cannot be written" in told[0].getMessage()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="give a folder on this machine's disk"):
        MetricsLog(tmp_path / "file")
    with pytest.raises(ConfigError, match="no folder of metrics logs"):
        read_logs(tmp_path / "nowhere")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_at_the_end_harms_nothing(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    (tmp_path / (QUERY + SUFFIX)).symlink_to("/dev/full")
    log.batch(batch(0), START_MS)
    log.ended(QUERY, RUN, None, START_MS)
    assert not log._writers


def test_a_weekend_without_input_leaves_the_last_micro_batches_in_sight(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for n in range(20):
        log.batch(batch(n), START_MS + n)
    for ms in range(0, 3 * 86_400_000, 10_000):
        log.idle(QUERY, RUN, START_MS + ms)
    assert len(read_logs(tmp_path)[0].batches) == 20
