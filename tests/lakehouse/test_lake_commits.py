"""One commit holds rows and marker, and no other start, copy or writer makes it two or none."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dedup.errors import ConfigError, DataError, SinkError
from dedup.sinks.lakehouse.options import DELTA, ICEBERG
from tests.lakehouse.lakes import NUMBERS, QUERY, Lake, Sink, at_point, numbers_of, once


def test_a_micro_batch_is_one_commit(lake: Lake, sink: Sink, tmp_path: Path) -> None:
    """A replay with other slices, by a start that knows only the table, makes no commit."""
    before = lake.versions()
    sink.batch("run1", 0, range(10), range(10, 20))
    sink.batch("run1", 1, range(20, 30))
    again = Sink(lake, tmp_path / "checkpoint")
    again.batch("run2", 1, range(20, 25), range(25, 27), range(27, 30))
    assert lake.found() == once(30)
    assert lake.versions() == before + 2
    assert lake.data_files() == lake.named_files()


def test_a_new_checkpoint_is_a_new_query(lake: Lake, sink: Sink, tmp_path: Path) -> None:
    """A constant application ID would skip its micro-batches, whose numbers begin again."""
    for number in range(3):
        sink.batch("run1", number, [number])
    Sink(lake, tmp_path / "new", query="another").batch("run1", 0, [3])
    assert lake.found() == once(4)


def test_a_table_may_be_moved(lake: Lake, sink: Sink, tmp_path: Path) -> None:
    """To another folder in Delta Lake, to another name in Iceberg. An older copy is refused."""
    sink.batch("run1", 0, [0])
    if lake.format == DELTA:
        shutil.copytree(lake.folder / "numbers", lake.folder / "older")
    sink.batch("run1", 1, [1])
    if lake.format == DELTA:
        (lake.folder / "numbers").rename(lake.folder / "moved")
        with pytest.raises(SinkError, match="Markers of this sink are lost"):
            Sink(lake, tmp_path / "checkpoint", table="older").batch("run2", 2, [2])
    else:
        lake.iceberg().catalog.rename_table("shop.numbers", "shop.moved")
    moved = Sink(lake, tmp_path / "checkpoint", table="moved")
    moved.batch("run2", 1, [1])
    moved.batch("run2", 2, [2])
    assert lake.found("moved") == once(3)


def test_a_micro_batch_without_rows_makes_no_commit(lake: Lake, sink: Sink) -> None:
    before = lake.versions()
    sink.work.complete([sink.write("run1", 0, slot) for slot in range(2)])
    sink.work.complete([])
    assert lake.versions() == before
    sink.batch("run1", 1, range(5))
    sink.work.complete([sink.write("run1", 2, 0, numbers_of([]))])
    sink.batch("run1", 3, range(5, 10))
    assert lake.found() == once(10)


@pytest.mark.parametrize("same", [True, False], ids=["same rows", "other rows"])
def test_a_micro_batch_that_another_driver_commits_first_is_committed_once(
    lake: Lake, sink: Sink, tmp_path: Path, same: bool
) -> None:
    """A frozen start or a copied checkpoint: both drivers have found no such commit."""
    sink.batch("run1", 0, range(10))
    other = Sink(lake, tmp_path / "copy")
    rows = range(10, 20) if same else range(10, 19)
    with at_point("lakehouse.commit.before", lambda: other.batch("run2", 1, rows)):
        if same:
            sink.batch("run1", 1, range(10, 15), range(15, 20))
        else:
            with pytest.raises(SinkError, match="gives other rows"):
                sink.batch("run1", 1, range(10, 20))
    assert lake.found() == once(19 + same)
    assert not same or lake.data_files() == lake.named_files()


def test_a_frozen_driver_that_wakes_too_late_is_refused(
    lake: Lake, sink: Sink, tmp_path: Path
) -> None:
    other = Sink(lake, tmp_path / "copy")

    def meanwhile() -> None:
        other.batch("run2", 0, range(10))
        other.batch("run2", 1, range(10, 20))

    with (
        at_point("lakehouse.commit.before", meanwhile),
        pytest.raises(SinkError, match="The checkpoint is older than the sink"),
    ):
        sink.batch("run1", 0, range(10))
    assert lake.found() == once(20)


def test_commits_of_other_writers_in_between_do_no_harm(lake: Lake, sink: Sink) -> None:
    """The sink reads the marker again and commits the same files."""
    sink.batch("run1", 0, range(5))
    with at_point("lakehouse.commit.before", lambda: lake.add(10)):
        sink.batch("run1", 1, range(5, 10))
    assert lake.found() == once(11)


@pytest.mark.parametrize("more", [False, True], ids=["alone", "and others follow"])
def test_a_commit_whose_reply_is_lost_is_found(lake: Lake, sink: Sink, more: bool) -> None:
    """Its files stay even if another writer rewrites them before the sink looks."""

    def lost() -> None:
        if more:
            lake.add(10)
        raise OSError("no answer")

    before = lake.versions()
    with at_point("lakehouse.commit.after", lost):
        sink.batch("run1", 0, range(10))
    assert lake.versions() == before + 1 + more
    assert lake.found() == once(10 + more)
    assert lake.data_files() == lake.named_files()


@pytest.mark.parametrize("lake", [ICEBERG], indirect=True)
def test_a_commit_that_succeeded_but_is_reported_as_a_conflict_is_found(
    lake: Lake, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client or proxy that lost the reply repeats the commit, and the server refuses it."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException

    commit, told = SqlCatalog.commit_table, []

    def twice(*arguments: Any) -> Any:
        found = commit(*arguments)
        if not told:
            told.append("conflict")
            raise CommitFailedException("the version is another one")
        return found

    sink.batch("run1", 0, range(5))
    before = lake.versions()
    monkeypatch.setattr(SqlCatalog, "commit_table", twice)
    sink.batch("run1", 1, range(5, 10))
    assert told
    assert lake.versions() == before + 1
    assert lake.found() == once(10)


def test_an_unreachable_table_after_a_lost_reply_stops_the_query(
    lake: Lake, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome is unknown, so the error does not say that nothing was written."""

    def away(*_: object, **__: object) -> None:
        raise OSError("no route")

    where = "deltalake.DeltaTable.__init__"
    if lake.format == ICEBERG:
        where = "pyiceberg.catalog.sql.SqlCatalog.load_table"

    def lost() -> None:
        monkeypatch.setattr(where, away)
        raise OSError("no answer")

    with (
        at_point("lakehouse.commit.after", lost),
        pytest.raises(SinkError, match="It finds a commit that has become visible") as refused,
    ):
        sink.batch("run1", 0, range(10))
    assert "Nothing was written" not in str(refused.value)
    monkeypatch.undo()
    sink.batch("run2", 0, range(10))
    assert lake.found() == once(10)


def test_a_commit_that_always_fails_is_given_up_after_three_attempts(
    lake: Lake, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example if the disk is full or the catalog is unreachable."""
    calls: list[str] = []

    def fails(*_: object, **__: object) -> None:
        calls.append("called")
        raise OSError("no space left")

    where = "deltalake.DeltaTable.create_write_transaction"
    if lake.format == ICEBERG:
        where = "pyiceberg.table.Transaction.commit_transaction"
    monkeypatch.setattr(where, fails)
    with pytest.raises(SinkError, match="in 3 attempts, the last one because: no space left"):
        sink.batch("run1", 0, range(10))
    assert len(calls) == 3
    monkeypatch.undo()
    sink.batch("run1", 0, range(10))
    assert lake.found() == once(10)


def test_files_of_an_abandoned_start_do_not_count(lake: Lake, sink: Sink) -> None:
    """VACUUM or remove_orphan_files deletes the files of a killed run."""
    sink.batch("run1", 0, range(10))
    sink.tasks("run1", 1, range(10, 20))
    sink.batch("run2", 1, range(10, 20))
    assert lake.found() == once(20)
    assert len(lake.data_files()) == len(lake.named_files()) + 1


def test_files_that_a_version_names_are_not_deleted(lake: Lake, sink: Sink, tmp_path: Path) -> None:
    """A committed micro-batch whose marker is lost is committed again on request."""
    sink.batch("run1", 0, range(5))
    sink.batch("run1", 1, range(5, 10))
    lake.lose_markers()
    Sink(lake, tmp_path / "checkpoint", accept_lost_markers="true").batch("run2", 1, range(5, 10))
    assert lake.found() == once(10) + Counter(range(5, 10))


@pytest.mark.parametrize("more", [False, True], ids=["alone", "and written by others"])
def test_a_table_that_was_restored_to_an_older_version_is_refused(
    lake: Lake, sink: Sink, tmp_path: Path, more: bool
) -> None:
    """RESTORE and rollback remove rows, but neither transactions nor properties."""
    for number in range(3):
        sink.batch("run1", number, [number])
    put_back(lake, 1)
    if more:
        lake.add(100)
    rows = lake.found()
    for batch_id in (2, 3):
        with pytest.raises(SinkError, match="was restored to a version before") as refused:
            Sink(lake, tmp_path / "checkpoint").batch("run2", batch_id, [batch_id])
        assert refused.value.remedy == "sink-markers"
    assert lake.found() == rows
    accepting = Sink(lake, tmp_path / "checkpoint", accept_lost_markers="true")
    accepting.batch("run3", 2, [2])
    Sink(lake, tmp_path / "checkpoint").batch("run3", 2, [2])
    Sink(lake, tmp_path / "checkpoint").batch("run3", 3, [3])
    assert lake.found() == rows + Counter([2, 3])


def test_a_table_restored_to_a_version_that_has_the_rows_is_accepted(
    lake: Lake, sink: Sink
) -> None:
    sink.batch("run1", 0, [0])
    lake.add(100)
    put_back(lake, 1)
    sink.batch("run2", 0, [0])
    sink.batch("run2", 1, [1])
    assert lake.found() == once(2)


def test_a_restored_table_is_accepted_once_the_restore_is_undone(lake: Lake, sink: Sink) -> None:
    for number in range(3):
        sink.batch("run1", number, [number])
    put_back(lake, 2)
    with pytest.raises(SinkError, match="was restored to a version before"):
        sink.batch("run2", 2, [2])
    if lake.format == DELTA:
        put_back(lake, 1)
    else:
        table = lake.iceberg()
        last = table.metadata.snapshots[-1].snapshot_id
        table.manage_snapshots().set_current_snapshot(last).commit()
    sink.batch("run3", 2, [2])
    sink.batch("run3", 3, [3])
    assert lake.found() == once(4)


def put_back(lake: Lake, commits: int) -> None:
    """Take a table back to where it was so many commits before."""
    if lake.format == DELTA:
        from deltalake import DeltaTable

        table = DeltaTable(str(lake.folder / "numbers"))
        table.restore(table.version() - commits)
        return
    table = lake.iceberg()
    last = table.metadata.snapshots[-1 - commits].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(last).commit()


def test_a_recreated_table_is_refused_once_rows_were_committed(
    lake: Lake, sink: Sink, tmp_path: Path
) -> None:
    """Until then the table may be recreated."""
    sink.work.complete([sink.write("run1", 0, 0)])
    lake.drop()
    sink = Sink(lake, tmp_path / "checkpoint")
    sink.batch("run2", 1, range(10))
    lake.drop()
    with pytest.raises(ConfigError):
        sink.batch("run2", 2, range(10))
    for accepting in ({}, {"accept_lost_markers": "true"}):
        with pytest.raises(SinkError, match="another table than the one") as refused:
            Sink(lake, tmp_path / "checkpoint", **accepting).batch("run3", 2, range(10))
        assert refused.value.remedy == "sink-markers"
    Sink(lake, tmp_path / "checkpoint", name="again").batch("run4", 2, range(10))
    assert lake.found() == once(10)


def test_data_files_that_are_removed_before_the_commit_stop_it(
    lake: Lake, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After VACUUM without retention the commit would name missing files."""
    answers = sink.tasks("run1", 0, range(10))
    before = lake.versions()
    for path in lake.folder.rglob("*.parquet"):
        path.unlink()
    with pytest.raises(SinkError, match="is gone or changed before it was committed"):
        sink.work.complete(answers)
    assert lake.versions() == before
    sink.batch("run2", 0, range(10))
    assert lake.found() == once(10)


def test_a_column_added_while_the_query_runs_stops_it(lake: Lake, sink: Sink) -> None:
    answers = sink.tasks("run1", 0, range(10))
    if lake.format == DELTA:
        from deltalake import DeltaTable, Field
        from deltalake.schema import PrimitiveType

        DeltaTable(str(lake.folder / "numbers")).alter.add_columns(
            Field("more", PrimitiveType("string"))
        )
    else:
        from pyiceberg.types import StringType

        with lake.iceberg().update_schema() as update:
            update.add_column("more", StringType())
    with pytest.raises(ConfigError, match="than when the query started"):
        sink.work.complete(answers)
    assert not lake.found()


@pytest.mark.parametrize("lake", [DELTA], indirect=True)
def test_a_retention_of_markers_that_is_set_while_the_query_runs_stops_it(
    lake: Lake, sink: Sink
) -> None:
    """Otherwise nothing would show that the first micro-batch is already committed."""
    from deltalake import DeltaTable

    sink.batch("run1", 0, range(10))
    table = DeltaTable(str(lake.folder / "numbers"))
    table.alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 days"})
    with pytest.raises(ConfigError, match="other columns, partitions, properties or features"):
        sink.batch("run1", 1, range(10, 20))
    assert lake.found() == once(10)


@pytest.mark.parametrize("lake", [ICEBERG], indirect=True)
def test_a_replay_after_expired_snapshots_repeats_nothing(
    sink: Sink, lake: Lake, tmp_path: Path
) -> None:
    """Spark's own Iceberg marker expires with its snapshot."""
    sink.batch("run1", 0, range(10))
    sink.batch("run1", 1, range(10, 20))
    lake.add(20)
    table = lake.iceberg()
    current = table.current_snapshot().snapshot_id
    old = [s.snapshot_id for s in table.snapshots() if s.snapshot_id != current]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    assert len(lake.iceberg().snapshots()) == 1
    Sink(lake, tmp_path / "checkpoint").batch("run2", 1, range(10, 20))
    assert lake.found() == once(21)


@pytest.mark.parametrize("lake", [DELTA], indirect=True)
def test_a_replay_after_cleanup_and_compaction_repeats_nothing(
    sink: Sink, lake: Lake, tmp_path: Path
) -> None:
    """Only the checkpoint of the log is left, and no data file of the sink."""
    from deltalake import DeltaTable

    sink.batch("run1", 0, range(10))
    sink.batch("run1", 1, range(10, 20))
    lake.add(20)
    where = str(lake.folder / "numbers")
    DeltaTable(where).optimize.compact()
    table = DeltaTable(where)
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    table.create_checkpoint()
    for path in sorted((lake.folder / "numbers/_delta_log").glob("*.json"))[:-1]:
        path.unlink()
    # The history is gone too, by which an inspection without a checkpoint finds the query.
    with pytest.raises(ConfigError, match="names no query of this sink"):
        sink.inspected(None)
    Sink(lake, tmp_path / "checkpoint").batch("run2", 1, range(10, 20))
    assert lake.found() == once(21)
    Sink(lake, tmp_path / "checkpoint").batch("run2", 2, [21])
    assert lake.found() == once(22)


def test_a_null_in_a_required_column_is_rejected_and_nothing_is_written(
    lake: Lake, tmp_path: Path
) -> None:
    lake.create(pa.schema([pa.field("n", pa.int64(), False), pa.field("text", pa.string())]))
    sink = Sink(lake, tmp_path / "checkpoint")
    rows = pa.RecordBatch.from_pydict(
        {"n": pa.array([1, None], pa.int64()), "text": pa.array(["a", "b"])}
    )
    with pytest.raises(DataError, match="requires a value in column 'n'"):
        sink.write("run1", 0, 0, rows)
    sink.batch("run1", 0, range(10))
    assert lake.found() == once(10)
    with pytest.raises(ConfigError, match="must have a value, and the stream has no"):
        Sink(lake, tmp_path / "checkpoint", NUMBERS[1:])


def test_markers_name_query_and_sink(sink: Sink, lake: Lake) -> None:
    """People who inspect the table can read them."""
    sink.batch("run1", 0, range(10))
    if lake.format == DELTA:
        from deltalake import DeltaTable

        table = DeltaTable(str(lake.folder / "numbers"))
        assert table.transaction_version(f"dedup/{QUERY}/delta") == 0
        assert table.transaction_version(f"dedup/{QUERY}/delta/rows") == 10
        assert '"rows"' in str(table.history(1)[0]["dedup"])
        return
    summary = lake.iceberg().current_snapshot().summary
    assert summary["dedup.batch-id"] == "0"
    assert summary["dedup.query-id"] == QUERY
    assert f"dedup.marker.{QUERY}.iceberg" in lake.iceberg().properties


@pytest.mark.parametrize("wrong", [b"\xff\xfe", b"\x80"])
def test_a_text_that_is_not_utf_8_is_refused(sink: Sink, wrong: bytes) -> None:
    text = pa.array([b"ok", wrong, "\u00e9".encode()], pa.binary()).view(pa.string())
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2, 3], pa.int64()), text], names=["n", "text"])
    with pytest.raises(DataError, match=r"not UTF-8.*does not take: b'.x(ff|80).*make_valid_utf8"):
        sink.write("run1", 0, 0, rows)


def test_a_data_file_that_cannot_be_written_is_reported_with_its_table(
    lake: Lake, sink: Sink
) -> None:
    """For example if the disk is full."""
    sink.batch("run1", 0, [0])
    (folder,) = {path.parent for path in lake.folder.rglob("0*.parquet")}
    blocked = folder.parent if lake.format == DELTA else folder
    blocked.rename(f"{blocked}-away")
    blocked.write_text("no folder")
    shown = sink.work.table.columns.shown
    with pytest.raises(SinkError, match=f"data file of table {shown} could not be written"):
        sink.batch("run1", 1, [1])
    blocked.unlink()
    Path(f"{blocked}-away").rename(blocked)
    sink.batch("run1", 1, [1])
    assert lake.found() == once(2)
