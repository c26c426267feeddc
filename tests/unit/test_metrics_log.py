"""The metrics log: what is written is read again, despite damage in between."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from dedup.core.metrics import BatchMetrics
from dedup.errors import ConfigError
from dedup.tools.watch import query_log
from dedup.tools.watch.health import REPORTED_SILENCE_MS
from dedup.tools.watch.live_runs import Runs
from dedup.tools.watch.metrics_log import IDLE_EVERY_MS, SUFFIX, MetricsLog
from dedup.tools.watch.query_log import LogFolder, QueryLog, _read, read_logs
from tests.support.batch_metrics import QUERY, RUN, START_MS, batch, sequence_batch


def test_micro_batches_are_read_as_they_were_written(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "new" / "folder")
    made = [batch(n, slowest_sources=(("p1", n, False),)) for n in range(3)]
    for n, one in enumerate(made):
        log.batch(one, START_MS + n)
    (read,) = read_logs(tmp_path / "new" / "folder")
    assert read.batches == [(START_MS + n, one) for n, one in enumerate(made)]
    assert (read.query_id, read.name, read.heard_ms) == (QUERY, "orders", START_MS + 2)
    assert (read.ended, read.unreadable) == (None, 0)


def test_numbered_records_are_read_again(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    made = [sequence_batch(n, fenced=n, newest_ms=None) for n in range(3)]
    for n, one in enumerate(made):
        log.batch(one, START_MS + n)
    (read,) = read_logs(tmp_path)
    assert read.batches == [(START_MS + n, one) for n, one in enumerate(made)]
    assert (read.name, read.of_ids, read.unreadable) == ("pumps", [], 0)
    # A query has one operator: figures of another one are never added to these.
    log.batch(batch(3), START_MS + 3)
    (read,) = read_logs(tmp_path)
    assert [type(one) for _, one in read.batches] == [BatchMetrics]


def test_a_log_of_an_older_release_is_read(tmp_path: Path) -> None:
    """It continues in the same file after an upgrade."""
    log = MetricsLog(tmp_path)
    log.batch(batch(0, untimed=0), START_MS)
    path = tmp_path / (QUERY + SUFFIX)
    older = path.read_text().replace('"untimed":0,', "")
    assert "untimed" not in older
    path.write_text(older)
    MetricsLog(tmp_path).batch(batch(1, untimed=5), START_MS + 1)
    (read,) = read_logs(tmp_path)
    assert [(b.batch_id, b.untimed) for _, b in read.batches] == [(0, 0), (1, 5)]
    assert read.unreadable == 0


def test_every_line_is_an_object_that_names_its_query_and_run(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.batch(batch(0), START_MS)
    log.event("ended", QUERY, RUN, START_MS + 1, "Boom: first line")
    lines = [json.loads(line) for line in (tmp_path / (QUERY + SUFFIX)).read_text().splitlines()]
    assert [line["event"] for line in lines] == ["started", "batch", "ended"]
    assert {(line["format"], line["query_id"], line["run_id"]) for line in lines} == {
        (1, QUERY, RUN)
    }
    assert lines[2]["error"] == "Boom: first line"


def test_an_end_is_read_until_the_next_run(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.batch(batch(0), START_MS)
    log.event("ended", QUERY, RUN, START_MS + 1, None)
    assert read_logs(tmp_path)[0].ended == "the run has ended"
    log.event("ended", QUERY, RUN, START_MS + 2, "CatalogError: gone")
    assert read_logs(tmp_path)[0].ended == "CatalogError: gone"
    log.event("started", QUERY, "another", START_MS + 3)
    assert read_logs(tmp_path)[0].running
    # A new process continues in the same file.
    MetricsLog(tmp_path).batch(batch(1), START_MS + 4)
    assert [b.batch_id for _, b in read_logs(tmp_path)[0].batches] == [0, 1]
    log.event("ended", QUERY, RUN, START_MS + 5, None)
    assert not read_logs(tmp_path)[0].running


def test_an_idle_query_is_logged_at_intervals(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.event("idle", QUERY, RUN, START_MS)
    assert not list(tmp_path.iterdir()), "a query without this operator has no log"
    log.batch(batch(0), START_MS)
    for ms in range(0, 3 * IDLE_EVERY_MS, 10_000):
        log.event("idle", QUERY, RUN, START_MS + ms)
    (read,) = read_logs(tmp_path)
    assert read.heard_ms == START_MS + 2 * IDLE_EVERY_MS
    text = (tmp_path / (QUERY + SUFFIX)).read_text()
    assert text.count('"idle"') == 3
    # Else it would be taken for one whose driver is gone.
    assert IDLE_EVERY_MS < REPORTED_SILENCE_MS
    log.event("started", "a query of another kind", RUN, START_MS)
    log.event("ended", "a query of another kind", RUN, START_MS, None)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_log_is_bounded_and_its_end_is_read_across_files(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, files=3, file_bytes=21_000)
    for n in range(200):
        log.batch(batch(n), START_MS + n)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 3
    assert max(sizes) <= 21_000
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
    monkeypatch.setattr(query_log, "READ_BYTES", 10 * line_bytes + 50)
    (read,) = read_logs(tmp_path)
    numbers = [b.batch_id for _, b in read.batches]
    assert 8 <= len(numbers) <= 10
    assert numbers[-1] == 49
    assert read.unreadable == 0, "the line that the window cuts does not count"


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


def test_fields_of_a_later_release_are_passed_over() -> None:
    one = batch(0)
    assert BatchMetrics.from_json({**one.to_json(), "beauty": 11}) == one
    earlier = {k: v for k, v in one.to_json().items() if k != "other_queries"}
    assert BatchMetrics.from_json(earlier) == one
    with pytest.raises(ValueError, match="it lacks unique"):
        BatchMetrics.from_json({k: v for k, v in one.to_json().items() if k != "unique"})


def test_a_log_that_cannot_be_written_is_reported_once(
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
    with pytest.raises(ConfigError, match="Give a folder on this machine's disk"):
        MetricsLog(tmp_path / "file")
    with pytest.raises(ConfigError, match="not a folder of metrics logs"):
        read_logs(tmp_path / "nowhere")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device /dev/full of Linux")
def test_a_full_disk_at_the_end_raises_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = MetricsLog(tmp_path)
    (tmp_path / (QUERY + SUFFIX)).symlink_to("/dev/full")
    log.batch(batch(0), START_MS)
    log.event("ended", QUERY, RUN, START_MS, None)
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR] == [
        f"the metrics log {tmp_path / (QUERY + SUFFIX)} cannot be written"
    ]


def test_a_weekend_without_input_keeps_the_last_micro_batches_readable(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for n in range(20):
        log.batch(batch(n), START_MS + n)
    for ms in range(0, 3 * 86_400_000, 10_000):
        log.event("idle", QUERY, RUN, START_MS + ms)
    assert len(read_logs(tmp_path)[0].batches) == 20


def events(path: Path) -> list[str]:
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


def test_a_log_that_is_moved_or_deleted_is_started_again(tmp_path: Path) -> None:
    folder, moved = tmp_path / "metrics", tmp_path / "moved"
    path = folder / (QUERY + SUFFIX)
    log = MetricsLog(folder)
    log.batch(batch(0), START_MS)
    path.unlink()
    log.batch(batch(1), START_MS + 1)
    assert events(path) == ["started", "batch"]
    log.batch(batch(2), START_MS + 2)
    folder.rename(moved)
    log.event("idle", QUERY, RUN, START_MS + IDLE_EVERY_MS)
    log.batch(batch(3), START_MS + IDLE_EVERY_MS)
    assert events(path) == ["started", "idle", "batch"]
    (before,) = read_logs(moved)
    assert [one.batch_id for _, one in before.batches] == [1, 2]
    path.rename(tmp_path / "away")
    path.touch()  # as logrotate does
    log.batch(batch(4), START_MS + IDLE_EVERY_MS)
    assert events(path) == ["started", "batch"]
    assert [one.batch_id for _, one in read_logs(folder)[0].batches] == [4]
    folder.rename(tmp_path / "elsewhere")
    log.event("ended", QUERY, RUN, START_MS + IDLE_EVERY_MS + 1, "boom")
    (read,) = read_logs(folder)
    assert (read.name, read.ended) == ("orders", "boom"), "its name is known without a micro-batch"


def test_a_log_that_was_deleted_is_rotated_as_before(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, files=3, file_bytes=20_000)
    for n in range(100):
        if n == 50:
            for path in tmp_path.iterdir():
                path.unlink()
        log.batch(batch(n), START_MS + n)
    assert len(list(tmp_path.iterdir())) == 3
    assert events(tmp_path / (QUERY + SUFFIX)).count("started") == 0, "a rotation starts nothing"
    numbers = [one.batch_id for _, one in read_logs(tmp_path)[0].batches]
    assert numbers == list(range(numbers[0], 100))


def test_a_folder_that_becomes_inaccessible_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MetricsLog(tmp_path)
    log.batch(batch(0), START_MS)

    def refuse(path: str | Path, *args: object, **more: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    # Permissions do not stop root.
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", refuse)
        log.batch(batch(1), START_MS + 1)
        log.event("idle", QUERY, RUN, START_MS + IDLE_EVERY_MS)
        log.event("started", "not ours", RUN, START_MS + 1)
        log.event("ended", "not ours", RUN, START_MS + 1, None)
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert told == [f"the metrics log {tmp_path / (QUERY + SUFFIX)} cannot be written"]
    log.batch(batch(2), START_MS + 2)
    assert [one.batch_id for _, one in read_logs(tmp_path)[0].batches] == [0, 2]


def line(event: str, **fields: object) -> bytes:
    about = {"format": 1, "event": event, "at_ms": START_MS, "run_id": RUN, "name": "orders"}
    return json.dumps(about | fields).encode()


@pytest.mark.parametrize(
    "damaged",
    [
        *(b"[]", b"7", b"{}", b"\xff\xfe", b"[" * 100_000),
        line("idle", format=2),
        line("batch", batch={}),
        line("batch", batch=7),
        line("ended", at_ms="x"),
        line("idle", at_ms=float("inf")),
        line("idle", at_ms=10**30),
        line("idle", name=7),
        line("idle", run_id=[]),
        line("ended", error=7),
        *(
            line("batch", batch={**batch(7).to_json(), **fields})
            for fields in (
                {"newest_ms": "abc"},
                {"newest_ms": float("nan")},
                {"batch_id": True},
                {"live_ids": 10**400},
                {"live_ids": 1.5},
                {"shards": 0},
                {"target_fpr": float("inf")},
                {"expiring": [[1, 2]]},
                {"slowest_sources": [["a", 1, 0]]},
                {"stage_us": {"pack": "x"}},
            )
        ),
        *(
            line("sequences", sequences={**sequence_batch(7).to_json(), **fields})
            for fields in ({"fenced": "1"}, {"shards": 0}, {"newest_ms": 0.5}, {"stage_us": 1})
        ),
        line("sequences", sequences=batch(7).to_json()),
        line("batch", batch=sequence_batch(7).to_json()),
    ],
    ids=lambda damaged: damaged[-40:].decode(errors="replace"),
)
def test_damaged_and_foreign_lines_are_counted(tmp_path: Path, damaged: bytes) -> None:
    """An empty line does not count."""
    MetricsLog(tmp_path).batch(batch(0), START_MS)
    with open(tmp_path / (QUERY + SUFFIX), "ab") as file:
        file.write(b"\n" + damaged + b"\n")
    (read,) = read_logs(tmp_path)
    assert (read.unreadable, read.name, len(read.batches)) == (1, "orders", 1)


def test_one_file_that_cannot_be_read_leaves_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    MetricsLog(tmp_path).batch(batch(0), START_MS)
    (tmp_path / f"folder{SUFFIX}").mkdir()
    logs = LogFolder(tmp_path)
    assert [log.query_id for log in logs.look()] == [QUERY]
    unread = f"{tmp_path}/folder{SUFFIX} cannot be read (Is a directory) and is skipped"
    assert logs.trouble == unread
    assert len(read_logs(tmp_path)) == 1
    assert caplog.messages == [unread]
    (tmp_path / f"folder{SUFFIX}").rmdir()
    logs.look()
    assert logs.trouble is None


def test_a_file_that_was_only_rotated_or_removed_is_not_reported(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.batch(batch(0), START_MS)
    path, gone = tmp_path / (QUERY + SUFFIX), tmp_path / f"gone{SUFFIX}"
    path.rename(f"{path}.1")
    # A link to nothing is listed, but cannot be opened: like a file that goes after the listing.
    for listed in (path, gone):
        listed.symlink_to(tmp_path / "nowhere")
    logs = LogFolder(tmp_path)
    (found,) = logs.look()
    assert (found.query_id, len(found.batches), logs.trouble) == (QUERY, 1, None)


def test_a_log_is_parsed_again_only_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MetricsLog(tmp_path, file_bytes=20_000)
    log.batch(batch(0), START_MS)
    log.batch(batch(0, query_id="other"), START_MS)
    read: list[str] = []

    def count(path: Path) -> QueryLog:
        read.append(path.name.removesuffix(SUFFIX))
        return _read(path)

    monkeypatch.setattr(query_log, "_read", count)
    logs = LogFolder(tmp_path)
    assert logs.look() == logs.look()
    assert sorted(read) == [QUERY, "other"]
    for n in range(1, 20):
        log.batch(batch(n), START_MS + n)
        assert logs.look()[0].batches[-1] == (START_MS + n, batch(n)), "rotation is seen as well"
    assert read.count("other") == 1


def test_the_log_stays_where_it_is_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = MetricsLog("metrics")
    for n in range(3):
        log.batch(batch(n), START_MS + n)
        monkeypatch.chdir("/")
    path = tmp_path / "metrics" / (QUERY + SUFFIX)
    assert events(path) == ["started", "batch", "batch", "batch"]
