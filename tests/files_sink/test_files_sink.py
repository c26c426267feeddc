"""Tasks and driver of the sink on a local disk and on S3: each micro-batch exactly once."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest

from dedup.errors import CatalogError, ConfigError, DataError, DedupError, SinkError
from dedup.sinks import batch_folders, published_files
from dedup.sinks.batch_folders import published_batches
from dedup.sinks.files import output_files, output_root, outputs, slice_files
from dedup.sinks.files.options import FilesOptions, files_options
from dedup.sinks.files.outputs import output_of
from dedup.sinks.files.plans import BatchPlan, BatchPlans
from dedup.storage import localfile
from dedup.storage.document import to_document
from dedup.storage.root import Root
from dedup.testing import faults
from tests.files_sink.folder_sink import FolderSink, batch_of, left, once
from tests.support.object_store import ObjectStore
from tests.support.small_disk import DISK_BYTES, small_disk


def test_a_micro_batch_without_rows_has_no_folder(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "out", tmp_path / "checkpoint")
    sink.batch("run1", 0, [0])
    sink.batch("run1", 1, [], [])
    sink.batch("run2", 1, [], [])
    sink.batch("run2", 2, [1])
    assert published_batches(tmp_path / "out") == [0, 2]
    assert BatchPlans(Root(tmp_path / "out")).numbers() == [0, 1, 2]


def test_missing_and_damaged_plans_are_refused(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "out", tmp_path / "checkpoint")
    sink.batch("run1", 0, [0])
    (plan,) = (tmp_path / "out" / "_batches").iterdir()
    good = plan.read_bytes()
    other = to_document({"x": 1}, version=9)
    damaged = good.replace(b'"rows":1', b'"rows":2')
    for data, why in ((damaged, "is damaged"), (other, "written by another release")):
        plan.write_bytes(data)
        with pytest.raises(SinkError, match=why):
            sink.batch("run2", 0, [0])
    plan.unlink()
    with pytest.raises(SinkError, match="Markers of this sink are lost"):
        sink.batch("run2", 0, [0])
    assert sink.numbers() == once(1)


@pytest.mark.parametrize("inside", ["", ".keep"])
def test_a_folder_that_was_not_planned_is_refused(inside: str, tmp_path: Path) -> None:
    """The sink once took it for its micro-batch, deleted the rows, and continued."""
    sink = FolderSink(tmp_path / "out", tmp_path / "checkpoint")
    sink.batch("run1", 0, [0])
    foreign = tmp_path / "out" / "batch=1"
    foreign.mkdir()
    if inside:
        (foreign / inside).touch()
    with pytest.raises(SinkError, match="batch=1 exists already") as refused:
        sink.batch("run1", 1, [1], [2])
    assert refused.value.remedy == "sink-markers"
    assert sink.numbers() == once(1)
    foreign.rename(tmp_path / "elsewhere")
    sink.batch("run2", 1, [1], [2])
    assert sink.numbers() == once(3)


def test_a_folder_that_appears_while_a_plan_waits_is_refused(tmp_path: Path, armed: Path) -> None:
    sink = FolderSink(tmp_path / "out", tmp_path / "checkpoint")
    sink.batch("run1", 0, [0])
    faults.arm(armed, "files.planned", "raise")
    with pytest.raises(faults.FaultInjected):
        sink.batch("run1", 1, [1], [2])
    foreign = tmp_path / "out/batch=1"
    foreign.mkdir()
    with pytest.raises(SinkError, match=r"Somebody else made .*batch=1 while") as refused:
        sink.batch("run2", 1, [1], [2])
    assert refused.value.remedy == "sink-markers"
    foreign.rmdir()
    sink.batch("run3", 1, [1], [2])
    assert sink.numbers() == once(3)


@pytest.mark.parametrize(
    "options", [{"file_format": "json"}, {"file_format": "csv"}, {"partition_by": "day"}]
)
@pytest.mark.parametrize("text", [b'\xff"\xfe', b"\x80"])
def test_a_text_that_is_not_utf_8_is_refused(
    options: dict[str, str], text: bytes, tmp_path: Path
) -> None:
    sink = FolderSink(tmp_path / "out", tmp_path / "checkpoint", **options)
    day = pa.array([b"ok", text, "\u00e9".encode()], pa.binary()).view(pa.string())
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2, 3], pa.int64()), day], names=["n", "day"])
    with pytest.raises(DataError, match=r"not UTF-8.*does not take: b'.*x(ff|80).*make_valid_utf8"):
        sink.send("run1", 0, 0, [rows])
    assert sink.numbers() == once(0)


def test_an_output_belongs_to_one_sink_of_one_query(sink: FolderSink, tmp_path: Path) -> None:
    sink.batch("run1", 0, [0])
    other = FolderSink(sink.path, tmp_path / "other", query="99999999-0000-0000-0000-000000000000")
    with pytest.raises(ConfigError, match="holds micro-batches of query 1111") as refused:
        other.batch("run1", 0, [1])
    assert refused.value.remedy == "output-folder"
    named = FolderSink(sink.path, tmp_path / "checkpoint", name="copies")
    with pytest.raises(ConfigError, match=r"sink files, and this is .*, sink copies"):
        named.batch("run1", 0, [1])
    moved = FolderSink(f"{tmp_path}/elsewhere", tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match="Option path is"):
        moved.batch("run1", 0, [0])
    # Also at a second try, when the folder would be the query's if the first had made it so.
    with pytest.raises(ConfigError, match="Option path is"):
        moved.batch("run2", 0, [0])
    assert sink.numbers() == once(1)


def test_a_new_checkpoint_needs_a_new_name_and_folder_of_the_sink(
    sink: FolderSink, tmp_path: Path
) -> None:
    for number in range(3):
        sink.batch("run1", number, [number])
    with pytest.raises(SinkError, match="the query is at micro-batch 0, and the sink holds micro"):
        FolderSink(sink.path, tmp_path / "new").batch("run1", 0, [3])
    path = sink.path.replace("/out", "/again")
    with pytest.raises(ConfigError, match="holds micro-batches of query"):
        FolderSink(sink.path, tmp_path / "new", name="again").batch("run1", 0, [3])
    again = FolderSink(path, tmp_path / "new", name="again")
    again.batch("run1", 0, [3])
    assert (sink.numbers(), again.numbers()) == (once(3), Counter([3]))


def move(sink: FolderSink, tmp_path: Path) -> FolderSink:
    """Give an output another name; return the sink that writes to it."""
    to = sink.path.replace("/out", "/moved")
    if "://" in to:
        (fs, place), (_, target) = map(pafs.FileSystem.from_uri, (sink.path, to))
        pafs.copy_files(place, target, source_filesystem=fs, destination_filesystem=fs)
        fs.delete_dir(place)
    else:
        Path(sink.path).rename(to)
    return FolderSink(to, tmp_path / "checkpoint")


@pytest.mark.parametrize("step", ["", "files.laid.out", "files.planned"])
def test_an_output_may_be_moved_even_within_a_micro_batch(
    sink: FolderSink, tmp_path: Path, armed: Path, step: str
) -> None:
    sink.batch("run1", 0, [0])
    answers = [sink.task("run1", 1, 0, [1, 2])]
    if step:
        faults.arm(armed, step, "raise")
        with pytest.raises(faults.FaultInjected):
            sink.work.complete(answers)
    else:
        sink.work.complete(answers)
    moved = move(sink, tmp_path)
    moved.batch("run2", 1, [2], [1])
    moved.batch("run2", 2, [3])
    assert moved.numbers() == once(4)
    assert left(moved) == []
    with pytest.raises((ConfigError, SinkError)):
        sink.batch("run3", 2, [3])


def test_an_older_copy_in_place_of_the_output_is_refused(sink: FolderSink, tmp_path: Path) -> None:
    """The copy lacks the plan of a micro-batch that is known to be published."""
    sink.batch("run1", 0, [0])
    sink.batch("run1", 1, [1])
    moved = move(sink, tmp_path)
    output_of(moved.work.options).root.delete([f"_batches/{1:012d}.plan"])
    with pytest.raises(SinkError, match="Markers of this sink are lost"):
        moved.batch("run2", 2, [2])


@pytest.mark.parametrize(
    ("made", "whose"),
    [
        ("_dedup.json", "`dedup run`"),
        ("batch=7/x.parquet", "another program"),
        ("batch=007/x.parquet", "another program"),
        # Spark reads what is in this list, and nothing else in the folder.
        ("_spark_metadata/0", "Spark's own file sink, whose list in _spark_metadata leaves out"),
        ("_delta_log/0.json", "a table of Delta Lake"),
    ],
)
def test_the_output_of_another_program_is_refused_at_the_start(
    tmp_path: Path, made: str, whose: str
) -> None:
    path = tmp_path / "out" / made
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(ConfigError, match=f"holds micro-batches of {whose}"):
        FolderSink(tmp_path / "out", tmp_path / "checkpoint")


@pytest.mark.parametrize("point", ["files.laid.out", "files.planned", "files.copied"])
def test_two_drivers_publish_the_same(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The first driver pauses, the second runs, and then the first continues."""
    if "://" not in place:
        point = point.replace("copied", "published")
    sink = FolderSink(place, tmp_path / "checkpoint")
    sink.batch("run1", 0, [0])
    answers = [sink.task("run1", 1, n, [n + 1]) for n in range(2)]
    visited: list[str] = []

    def others(here: str, path: object = None) -> None:
        if here == point and not visited:
            visited.append(here)
            sink.batch("run2", 1, [2], [1])
            assert sink.numbers() == once(3)
            sink.batch("run2", 2, [3])

    monkeypatch.setattr("dedup.errors.faults.point", others)
    if point == "files.laid.out":
        with pytest.raises(SinkError, match="decided already"):
            sink.finish(answers)
    else:
        sink.finish(answers)
    assert visited
    assert sink.numbers() == once(4)
    with pytest.raises(SinkError, match="older than the sink"):
        sink.work.complete(answers)
    assert sink.numbers() == once(4)


def test_missing_staged_files_are_staged_again_or_named(
    sink: FolderSink, tmp_path: Path, armed: Path
) -> None:
    sink.batch("run1", 0, [0])
    faults.arm(armed, "files.planned", "raise")
    with pytest.raises(faults.FaultInjected):
        sink.batch("run1", 1, [1, 2])
    output_of(sink.work.options).clean(1)
    with pytest.raises(SinkError, match="which is gone, and so is batch=1") as refused:
        sink.batch("run2", 1, [1, 3])  # other rows
    assert refused.value.remedy == "files-gone"
    if "://" in sink.path:
        with pytest.raises(SinkError, match="which is gone, and so is batch=1"):
            sink.batch("run2", 1, [1, 2])
        assert sink.numbers() == once(1)
    else:
        sink.batch("run2", 1, [2], [1])
        sink.batch("run2", 2, [3])
        assert sink.numbers() == once(4)
        assert left(sink) == []
    assert [name for name, _, _ in faults.fired(armed)] == ["files.planned"]


@pytest.mark.parametrize("place", ["local", "s3"])
def test_nothing_is_published_beside_a_micro_batch_whose_plan_is_lost(
    place: str, store: ObjectStore, tmp_path: Path
) -> None:
    path = tmp_path / "out" if place == "local" else store.uri(f"beside-{tmp_path.name}")
    sink = FolderSink(path, tmp_path / "checkpoint")
    sink.batch("run1", 0, [0])
    sink.batch("run1", 1, [1], [2])
    root = output_of(sink.work.options).root
    root.delete_folder("_batches")
    accepting = FolderSink(sink.path, tmp_path / "checkpoint", accept_lost_markers="true")
    with pytest.raises(SinkError, match="batch=1 exists already") as refused:
        accepting.batch("run2", 1, [1], [2])
    assert refused.value.remedy == "sink-markers"
    assert sink.numbers() == once(3)
    root.delete_folder("batch=1")
    accepting.batch("run3", 1, [1], [2])
    accepting.batch("run3", 2, [3])
    assert sink.numbers() == once(4)


def test_a_failed_copy_in_the_store_is_detected_and_made_again(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = FolderSink(store.uri(f"copy-{tmp_path.name}"), tmp_path / "checkpoint")
    monkeypatch.setattr(output_root.OutputRoot, "copy", lambda root, _, to: root.put_bytes(to, b""))
    with pytest.raises(CatalogError, match=r"has 0 bytes instead of .* after a copy"):
        sink.batch("run1", 0, [0])
    monkeypatch.undo()
    assert left(sink) != []
    sink.batch("run2", 0, [0])
    assert sink.numbers() == once(1)
    assert left(sink) == []


def test_folders_that_a_plan_names_are_synced_before_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = FolderSink(tmp_path / "out", tmp_path / "checkpoint", partition_by="day")
    done: list[str] = []
    create, sync = BatchPlans.create, localfile.sync

    def noted(path: Path) -> None:
        done.append(str(path.relative_to(tmp_path / "out")))
        sync(path)

    def planned(plans: BatchPlans, plan: BatchPlan) -> bool:
        folder = plan.folder
        assert {folder, "_staging", "."} <= set(done)
        assert {f"{folder}/day=d0", f"{folder}/day=d1"} <= set(done)
        done.append("plan")
        return create(plans, plan)

    for module in (batch_folders, outputs):
        monkeypatch.setattr(module, "sync", noted)
    monkeypatch.setattr(BatchPlans, "create", planned)
    sink.batch("run1", 0, [0, 1])
    assert "plan" in done
    assert sink.numbers() == once(2)


def test_a_published_micro_batch_that_was_removed_is_not_published_again(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "out", tmp_path / "checkpoint")
    sink.batch("run1", 0, [0])
    shutil.rmtree(tmp_path / "out" / "batch=0")  # as a loader does with what it has taken
    with pytest.raises(SinkError, match="which is gone, and so is batch=0"):
        sink.batch("run2", 0, [0])
    assert sink.numbers() == Counter()
    accepting = FolderSink(sink.path, tmp_path / "checkpoint", accept_lost_markers="true")
    accepting.batch("run3", 0, [0])
    assert sink.numbers() == once(1)


def test_a_staged_file_that_the_driver_does_not_see_stops_the_micro_batch(tmp_path: Path) -> None:
    """This happens on a cluster whose machines share no disk."""
    sink = FolderSink(tmp_path / "out", tmp_path / "checkpoint")
    answer = sink.task("run1", 0, 0, [0])
    (file,) = (tmp_path / "out" / "_staging").rglob("*.parquet")
    file.unlink()
    with pytest.raises(DedupError, match="must be the same on all machines"):
        sink.work.complete([answer])
    assert sink.numbers() == Counter()


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
def test_a_full_disk_fails_the_task_and_its_files_are_removed(
    tmp_path: Path, file_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_files, "GROUP_BYTES", 1 << 20)
    with small_disk(tmp_path / "disk") as disk:
        head = {"header": "true"} if file_format == "csv" else {}
        sink = FolderSink(disk / "out", tmp_path / "checkpoint", file_format=file_format, **head)
        sink.batch("run1", 0, [0])
        many = (batch_of(range(n, n + 20_000)) for n in range(0, 20_000 * 99, 20_000))
        wide = (rows.set_column(1, "day", _noise(len(rows))) for rows in many)
        with pytest.raises(DedupError, match=r"cannot be written: .*Free space") as refused:
            sink.send("run1", 1, 0, wide)
        assert refused.value.remedy == "local-disk"
        # The attempt has taken its files with it, so that others have room.
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        assert free > DISK_BYTES - (1 << 20)
        sink.batch("run2", 1, [1])
        assert sink.numbers() == once(2)


def _noise(count: int) -> pa.Array:
    return pa.array([os.urandom(32).hex() for _ in range(count)])


def test_a_task_starts_another_file_at_the_target_size(tmp_path: Path) -> None:
    sizes = {}
    for file_format in ("parquet", "json"):
        place = tmp_path / file_format
        sink = FolderSink(place, tmp_path / "checkpoint", file_format=file_format,
                          target_file_size="64KB", name=file_format)  # fmt: skip
        rows = [batch_of(range(n, n + 1000)) for n in range(0, 60_000, 1000)]
        noisy = (each.set_column(1, "day", _noise(1000)) for each in rows)
        sink.work.complete([sink.send("run1", 0, 0, noisy)])
        assert sink.numbers() == once(60_000)
        sizes[file_format] = sorted(p.stat().st_size for p in (place / "batch=0").iterdir())[1:]
    for each in sizes.values():
        assert len(each) > 10
        assert 50 << 10 < min(each) < max(each) < 256 << 10


def test_many_folders_are_not_all_open_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_files, "_OPEN_FILES", 4)
    sink = FolderSink(tmp_path / "out", tmp_path / "checkpoint", partition_by="day")
    rows = [
        pa.record_batch({"n": range(b * 9, b * 9 + 9), "day": [f"d{i}" for i in range(9)]})
        for b in range(2)
    ]
    sink.work.complete([sink.send("run1", 0, 0, iter(rows))])
    assert sink.numbers() == once(18)
    folders = list((tmp_path / "out" / "batch=0").iterdir())
    assert len(folders) == 9
    assert sum(len(list(folder.iterdir())) for folder in folders) == 18


def test_published_files_lists_only_whole_micro_batches(
    sink: FolderSink, place: str, tmp_path: Path, armed: Path
) -> None:
    sink.batch("run1", 0, [0], [1])
    faults.arm(armed, "files.planned", "raise")
    with pytest.raises(faults.FaultInjected):
        sink.batch("run1", 1, [2], [3])
    names = [name.rpartition("/out/")[2] for name in published_files(place)]
    assert [name.partition("/")[0] for name in names] == ["batch=0"] * 2
    sink.batch("run2", 1, [2], [3])
    assert len(published_files(place)) == 4
    assert all("any:any" not in name for name in published_files(place))


def test_s3_needs_boto3(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3.session", None)
    with pytest.raises(DedupError, match="Writing files to S3 needs the extra 's3'"):
        FolderSink(store.uri("nowhere"), tmp_path / "checkpoint")


def test_only_the_first_of_several_writers_creates_an_object(
    store: ObjectStore, tmp_path: Path
) -> None:
    root = output_of(_options(store.uri(f"create-{tmp_path.name}"), tmp_path)).root
    assert root.create_bytes("x", b"first")
    assert not root.create_bytes("x", b"second")
    assert root.create_bytes("x", b"first"), "an answer that was lost: it is our own"
    assert root.read_bytes("x") == b"first"
    away = output_of(_options("s3://k:s@bucket/x?endpoint_override=127.0.0.1:9&scheme=http&region=r",
                              tmp_path)).root  # fmt: skip
    with pytest.raises(DedupError, match=r"Cannot write s3://bucket/x/y: .*"):
        away.create_bytes("y", b"")


def test_a_store_that_ignores_conditions_is_refused(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    class Unheeding:
        def __init__(self, client: Any) -> None:
            self._client = client

        def put_object(self, **request: Any) -> Any:
            sent.append(request.pop("IfNoneMatch"))
            return self._client.put_object(**request)

    client = output_root._client
    monkeypatch.setattr(output_root, "_client", lambda *where: Unheeding(client(*where)))
    with pytest.raises(ConfigError, match="and ignores the condition") as refused:
        FolderSink(store.uri(f"unheeding-{tmp_path.name}"), tmp_path / "checkpoint")
    assert "any:any" not in str(refused.value)
    assert sent == ["*", "*"]
    monkeypatch.undo()
    # What another has proven is proven; and the owner is not written a second time.
    sink = FolderSink(store.uri(f"unheeding-{tmp_path.name}"), tmp_path / "checkpoint")
    sink.batch("run1", 0, [0])
    monkeypatch.setattr(output_root, "_client", lambda *where: Unheeding(client(*where)))
    other = FolderSink(sink.path, tmp_path / "other", query="99999999-0000-0000-0000-000000000000")
    with pytest.raises(ConfigError, match="holds micro-batches of query 1111"):
        other.batch("run1", 1, [1])
    assert sent == ["*", "*"]


def _options(path: str, folder: Path) -> FilesOptions:
    return files_options({"path": path, "checkpointLocation": str(folder / "checkpoint")})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "option path is missing"),
        ({"path": "gs://b/x"}, "cannot be used: the sink writes to a local"),
        ({"path": "s3://b/a#b?region=r"}, "Write %23 where it is part of it"),
        ({"path": "/o", "file.format": "orc"}, "must be one of parquet, json, csv"),
        ({"path": "/o", "compression": "lzo"}, "must be one of snappy, zstd, gzip, none"),
        ({"path": "/o", "header": "true"}, "Option header is for file.format csv"),
        ({"path": "/o", "target.file.size": "1TB"}, "must be .*1.0 KiB to 4.0 GiB"),
        ({"path": "/o", "partitionBy": "a"}, "Did you mean partition.by"),
        ({"path": "/o", "name": "a b"}, "Option name='a b' must be"),
        ({"path": "/o", "partition.by": "a, b,a"}, "must name each column only once"),
        ({"path": "/c"}, "checkpointLocation /c/d is in the output /c"),
        ({"path": "s3://k:s@b/x", "checkpointLocation": "s3a://b/x/c"}, "in the output s3://b/x,"),
        ({"path": "s3://b/a%20b", "checkpointLocation": "s3a://b/a b/c"}, "in the output s3://b"),
    ],
)
def test_options_that_cannot_work_are_rejected(options: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        files_options({"checkpointLocation": "/c/d"} | options)


def test_options_are_normalised() -> None:
    made = files_options(
        {"PATH": "s3a://b/x/", "checkpointLocation": "/c", "target.file.size": "128MB",
         "partition.by": "a, b", "compression": "ZSTD"}
    )  # fmt: skip
    assert (made.path, made.target_bytes, made.partition_by) == ("s3://b/x", 128 << 20, ("a", "b"))
    assert made.compression == "zstd"
    for uri in ("file:/o", "file:///o", "file://localhost/o"):
        assert files_options({"path": uri, "checkpointLocation": "/c"}).path == "/o"
    hidden = files_options({"path": "/o", "checkpointLocation": "/o/_checkpoint"})
    assert (hidden.target_bytes, hidden.ledger) == (None, "/o/_checkpoint/dedup-sinks/files")
    for apart in ("s3a://b/x/_c", "s3a://b/xc", "s3a://b2/x/c", "/x/c"):
        assert files_options({"path": "s3://b/x", "checkpointLocation": apart}).is_on_s3
    assert "path" not in repr(made)


def test_names_that_must_be_encoded_in_uris_are_kept(store: ObjectStore, tmp_path: Path) -> None:
    """In a request to copy, in folders, and in the keys that `published_files` returns."""
    sink = FolderSink(store.uri(f"my%20names%23{tmp_path.name}%2Fout"), tmp_path / "checkpoint",
                      partition_by="day")  # fmt: skip
    rows = pa.record_batch({"n": [0, 1], "day": ["a b/c 1%", "\u00e9%=+"]})
    for run in ("run1", "run2"):
        sink.work.complete([sink.send(run, 0, 0, iter([rows]))])
        assert sink.numbers() == once(2)
    fs, base = pafs.FileSystem.from_uri(sink.path)
    assert base.endswith(f"/my names#{tmp_path.name}/out")
    found = fs.get_file_info(pafs.FileSelector(f"{base}/batch=0", recursive=False))
    assert sorted(each.base_name for each in found) == ["day=a b%2Fc 1%25", "day=\u00e9%25%3D+"]
    both = fs.get_file_info([f"{base}/_batches/000000000000.plan", f"{base}/_dedup.query"])
    assert [each.type for each in both] == [pafs.FileType.File] * 2
    keys = [name.removeprefix("s3://") for name in published_files(sink.path)]
    table = ds.dataset(keys, filesystem=store.file_system(), partitioning="hive").to_table()
    assert sorted(table["day"].to_pylist()) == rows["day"].to_pylist()
