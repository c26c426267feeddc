"""The write-ahead log of the sink kit: what is decided, sent, sent again and reported."""

from __future__ import annotations

import logging
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from pyspark.sql.types import StructType

from dedup.errors import SinkError
from dedup.sinks import WriteAheadSink
from dedup.sinks.content import Content
from dedup.sinks.kit.function import kind_of
from dedup.sinks.protocol import StagedSlice
from dedup.sinks.work import TaskResult
from dedup.testing import faults
from dedup.testing.custom_sinks import CustomSink
from dedup.testing.sinks import QUERY
from tests.kit.line_sink import FOLDER, LineHarness, LineSink, left, read_each_key
from tests.kit.sqlite_sink import rows


@pytest.fixture
def start(tmp_path: Path) -> Any:
    """Starts the query over a log file."""
    return partial(LineHarness, tmp_path / "log", tmp_path / "checkpoint")


def test_a_checkpoint_that_only_spark_can_reach_keeps_no_ledger(tmp_path: Path) -> None:
    """Then slices, markers and ledger are in the folder of the option `staging`."""
    for checkpoint in (str(tmp_path), "viewfs://cluster/checkpoint"):
        sink = LineSink(tmp_path / "log")
        kind = kind_of(sink, checkpoint)
        options = kind.parse({"checkpointLocation": str(tmp_path), "name": "lines"})
        ledger = kind.prepare(options, StructType()).ledger(f"{tmp_path}/staging", QUERY)
        ledger.note_published(7)
        assert ledger.published() == 7
    assert [*tmp_path.glob("dedup-begun/lines/*/published.json")]
    assert [*tmp_path.glob("staging/*/published.json")]


def test_keys_name_the_row_and_versions_grow_from_row_to_row(start: Any) -> None:
    """A key names query, sink, micro-batch, slice and row."""
    sink = start()
    sink.finish([
        sink.send("run1", 3, slot, [sink.rows(part) for part in parts])
        for slot, parts in enumerate([[[0, 1], [2]], [], [[3]]])
    ])  # fmt: skip
    sink.batch("run1", 4, [4])
    found = [(line["n"], line["key"], line["version"]) for line in sink.log.lines()]
    key = f"{QUERY}/custom"
    assert found == [
        (0, f"{key}/3/0/0", 3 << 32),
        (1, f"{key}/3/0/1", (3 << 32) + 1),
        (2, f"{key}/3/0/2", (3 << 32) + 2),
        (3, f"{key}/3/2/0", (3 << 32) + 3),
        (4, f"{key}/4/0/0", 4 << 32),
    ]


def test_rows_that_an_earlier_start_decided_are_sent_again_and_reported(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sink = start(calls_left=2)
    sink.batch("run1", 0, [0])
    with pytest.raises(ConnectionError, match="the log is away"):
        sink.finish(sink.tasks("run1", 1, [1, 2, 3]))
    assert [line["n"] for line in sink.log.lines()] == [0, 1]
    sink = start()
    sink.batch("run2", 1, [3], [2, 1])  # the order and the division of another run
    sink.batch("run2", 2, [4])
    lines = sink.log.lines()
    assert [line["n"] for line in lines] == [0, 1, 1, 2, 3, 4]
    assert lines[1] == lines[2], "a replay changes neither key nor version"
    sink.assert_once(5)
    assert sink.sink.rows_sent_again == 3
    (report,) = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert report == (
        "Sink 'custom' sends micro-batch 1 again: an earlier attempt may have sent some of its 3 "
        "rows, or all."
    )


def test_a_second_call_of_the_same_driver_is_reported(start: Any) -> None:
    sink = start(calls_left=1)
    results = sink.tasks("run1", 0, [0, 1])
    with pytest.raises(ConnectionError):
        sink.finish(results)
    sink.log.calls_left = None
    sink.finish(results)
    assert sink.sink.rows_sent_again == 2


def test_rows_that_differ_from_the_manifest_are_refused(start: Any) -> None:
    first = start(calls_left=1)
    with pytest.raises(ConnectionError):
        first.batch("run1", 0, [0, 1])
    with pytest.raises(SinkError, match="gives other rows than when it ran before") as refused:
        start().batch("run2", 0, [0, 2])
    assert refused.value.remedy == "sink-differs"
    sink = start(accept_difference="0")
    assert [line["n"] for line in sink.log.lines()] == [0]
    sink.batch("run3", 0, [0, 2])
    sink.assert_once(2)


@pytest.mark.parametrize("damage", ["remove", "flip", "shorten"])
def test_a_damaged_slice_is_found_before_anything_is_sent(
    start: Any, tmp_path: Path, damage: str
) -> None:
    sink = start()
    results = sink.tasks("run1", 0, [0], [1, 2])
    path = tmp_path / "checkpoint" / FOLDER / results[1].slice.file
    content = path.read_bytes()
    if damage == "remove":
        path.unlink()
    elif damage == "shorten":
        path.write_bytes(content[: len(content) // 2])
    else:
        with open(path, "wb") as file:
            file.write(content.replace((2).to_bytes(8, "little"), (7).to_bytes(8, "little")))
        assert path.read_bytes() != content
    with pytest.raises(SinkError, match="is missing or damaged") as refused:
        sink.finish(results)
    assert "manifests/0.json exists" in str(refused.value)
    assert not (tmp_path / "log").exists()
    with pytest.raises(SinkError, match="is missing or damaged"):
        start().batch("run2", 0, [0], [1, 2])
    (tmp_path / "checkpoint" / FOLDER / "manifests/0.json").unlink()
    sink = start()
    sink.batch("run3", 0, [0], [1, 2])
    sink.assert_once(3)


def test_more_rows_than_versions_are_refused(start: Any, tmp_path: Path) -> None:
    sink = start()
    (result,) = sink.tasks("run1", 0, [0])
    many = replace(result.slice, content=Content((1 << 32) + 1))
    with pytest.raises(SinkError, match="more than 2\\^32 rows"):
        sink.finish([TaskResult(result.batch, many)])
    assert not (tmp_path / "log").exists()


def test_a_driver_that_was_frozen_before_its_decision_sends_nothing(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor has sent the micro-batch and deleted the manifest."""
    late = start()
    results = late.tasks("run1", 0, [0], [1])
    decide = type(late.work)._send

    def thaw(work: Any, *given: Any) -> None:
        monkeypatch.undo()
        start().batch("run2", 0, [0], [1])
        decide(work, *given)

    monkeypatch.setattr(type(late.work), "_send", thaw)
    with pytest.raises(SinkError, match=r"it has sent micro-batch 0\. Let only one start run"):
        late.finish(results)
    assert len(late.log.lines()) == 2
    sink = start()
    sink.batch("run3", 1, [2])
    sink.assert_once(3)


def test_a_driver_that_was_frozen_in_send_stops_after_sending(start: Any) -> None:
    late = start()
    results = late.tasks("run1", 0, [0, 1, 2])
    send, lock = late.log.send, Lock()

    def thaw(*given: Any) -> None:
        if lock.acquire(blocking=False):
            successor = start()
            successor.batch("run2", 0, [0, 1, 2])
            successor.batch("run2", 1, [3])
            assert successor.sink.rows_sent_again == 3
        send(*given)

    late.log.send = thaw
    with pytest.raises(SinkError, match="it has sent micro-batch 1"):
        late.finish(results)
    assert [line["n"] for line in late.log.lines()] == [0, 1, 2, 3, 0]
    late.assert_once(4)


@pytest.mark.parametrize(
    ("point", "sent"),
    [("kit.manifest.before", 0), ("kit.manifest.after", 0), ("kit.send.before", 0),
     ("kit.send.part", 1), ("kit.send.after", 2), ("kit.driver.published", 2),
     ("kit.driver.after", 2)],
)  # fmt: skip
def test_a_start_after_a_failure_at_any_step_publishes_each_row_once(
    start: Any, armed: Path, point: str, sent: int
) -> None:
    """The next start reports repeated rows only if some may have been sent."""
    faults.arm(armed, point, "raise")
    sink = start()
    with pytest.raises(faults.FaultInjected):
        sink.batch("run1", 0, [0, 1])
    assert [name for name, *_ in faults.fired(armed)] == [point]
    assert len(sink.log.lines()) == sent
    sink = start()
    sink.batch("run2", 0, [0, 1])
    is_known = point.startswith("kit.driver")
    assert sink.sink.rows_sent_again == (0 if is_known or point == "kit.manifest.before" else 2)
    sink.assert_once(2)
    sink.batch("run2", 1, [2])
    sink.assert_once(3)


def test_inspect_reports_sent_and_decided_micro_batches(start: Any, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    for name, entries in (("offsets", "01"), ("commits", "0")):
        (checkpoint / name).mkdir(parents=True)
        for entry in entries:
            (checkpoint / name / entry).write_text("v1\n{}")
    (checkpoint / "metadata").write_text(f'{{"id": "{QUERY}"}}')
    sink = start(calls_left=2)
    assert sink.inspected(checkpoint) == []
    sink.batch("run1", 0, [0], [1])
    (found,) = sink.inspected(checkpoint)
    assert (found["batch_id"], found["slots"][0]["rows"]) == (0, 2)
    assert "runs micro-batch 1 again, of which nothing is published yet" in found["restart"]
    with pytest.raises(ConnectionError):
        sink.batch("run1", 1, [2])
    (found,) = sink.inspected(checkpoint)
    assert (found["batch_id"], found["slots"][0]["attempted"]) == (0, 1)
    assert "runs micro-batch 1 again. Its rows are decided, and some" in found["restart"]
    other = start(calls_left=0)
    other.query = "another"
    with pytest.raises(ConnectionError):
        other.batch("run1", 0, [2])
    states = {each["query_id"]: each for each in sink.inspected(checkpoint)}
    assert states["another"]["slots"][0]["attempted"] == 0
    assert states["another"]["restart"].startswith("A checkpoint whose next micro-batch is 0 runs")


def test_files_left_behind_by_a_kill_are_ignored_and_deleted(start: Any, tmp_path: Path) -> None:
    start().batch("run1", 0, [0])
    folder = tmp_path / "checkpoint" / FOLDER
    for name in ("sent/.1.json.tmp", "manifests/.1.json.tmp"):
        (folder / name).write_text("half")
    sink = start()
    for batch_id in (1, 2):
        sink.batch("run2", batch_id, [batch_id])
    assert sink.sink.rows_sent_again == 0
    sink.assert_once(3)
    assert [path.name for path in (folder / "sent").iterdir()] == ["2.json"]
    assert left(tmp_path / "checkpoint") == []


def test_tasks_receive_the_work_without_the_users_object(start: Any) -> None:
    """The object may hold a connection, and tasks only stage."""
    sink = start()
    sink.log.connection = Lock()
    work = pickle.loads(pickle.dumps(sink.work))
    result = work.write(sink.batch_of("run1", 0), 0, iter([sink.rows([0])]))
    assert isinstance(result.slice, StagedSlice)
    sink.finish([result])
    sink.assert_once(1)


def test_a_sink_that_is_a_frozen_dataclass_sends_rows_again(tmp_path: Path) -> None:
    """Its attributes cannot be set."""

    @dataclass(frozen=True)
    class Frozen(WriteAheadSink):
        log: LineSink

        def send(self, *given: Any) -> None:
            self.log.send(*given)

    def harness(calls_left: int | None) -> CustomSink:
        sink = Frozen(LineSink(tmp_path / "log", calls_left=calls_left))
        return CustomSink(sink, rows, lambda sink: read_each_key(sink.log), tmp_path / "checkpoint")

    with pytest.raises(ConnectionError):
        harness(0).batch("run1", 0, [0, 1])
    again = harness(None)
    again.batch("run2", 0, [0, 1])
    again.assert_once(2)
    assert again.sink.rows_sent_again == 2


# --- a folder that loses files


def lose_all(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint / "dedup-sinks")


def lose_all_files(checkpoint: Path) -> None:
    for path in (checkpoint / FOLDER).rglob("*.*"):
        path.unlink()


def lose_the_newest(checkpoint: Path) -> None:
    for path in (checkpoint / FOLDER).rglob("1*.*"):
        path.unlink()


LOSSES = [lose_all, lose_all_files, lose_the_newest]


@pytest.mark.parametrize("lose", LOSSES[:2])
def test_a_folder_that_lost_its_record_of_sent_rows_stops_the_query(
    start: Any, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    sink = start()
    sink.batch("run1", 0, [0])
    sink.batch("run1", 1, [1, 2])
    lose(tmp_path / "checkpoint")
    for batch_id, numbers in ((1, [1, 2]), (2, [3])):
        with pytest.raises(SinkError, match="it has published micro-batch 1, at least in") as lost:
            start().batch("run2", batch_id, numbers)
        assert lost.value.remedy == "sink-markers"
    sink = start(accept_lost_markers="true")
    sink.batch("run3", 1, [1, 2])
    assert sink.sink.rows_sent_again == 2
    sink = start()
    sink.batch("run4", 2, [3])
    sink.assert_once(4)


@pytest.mark.parametrize("lose", LOSSES)
def test_a_folder_that_lost_a_partly_sent_micro_batch_stops_the_query(
    start: Any, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    """Otherwise the next start would send other rows with the same keys and versions."""
    sink = start(calls_left=2)
    sink.batch("run1", 0, [0])
    with pytest.raises(ConnectionError):
        sink.batch("run1", 1, [1, 2])
    assert [line["n"] for line in sink.log.lines()] == [0, 1]
    marker = tmp_path / "checkpoint" / FOLDER / "sent/0.json"
    kept = marker.read_bytes()
    lose(tmp_path / "checkpoint")
    if lose is lose_the_newest:
        marker.write_bytes(kept)
    with pytest.raises(SinkError, match="Markers of this sink are lost"):
        start().batch("run2", 1, [1, 2])
    sink = start(accept_lost_markers="true")
    sink.batch("run3", 1, [1, 2])
    assert sink.sink.rows_sent_again == 2
    sink.assert_once(3)


def test_losing_the_folder_of_the_option_staging_stops_the_query(
    start: Any, tmp_path: Path
) -> None:
    staging = str(tmp_path / "staging")
    start(staging=staging).batch("run1", 0, [0])
    shutil.rmtree(staging)
    with pytest.raises(SinkError, match="Markers of this sink are lost"):
        start(staging=staging).batch("run2", 0, [0])


def test_a_sink_that_is_added_to_a_query_later_is_accepted(start: Any) -> None:
    """It is accepted under another name, too, and in a replayed micro-batch."""
    start().batch("run1", 6, [0])
    other = start(name="other")
    other.batch("run2", 6, [1])
    other.assert_once(2)
