"""Rows in files beside Spark: what is written is read, and any damage is reported."""

from __future__ import annotations

import datetime as dt
import resource
import stat
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from dedup.errors import DedupError
from dedup.spark.executor import bodies, wire
from dedup.spark.executor.bodies import BodyFile, BodyReader
from dedup.spark.executor.task import Task
from dedup.spark.plan import Plan
from tests.support.small_disk import fill, small_disk

RUN = "5f0f6b2e-8f52-4a1e-9a52-0a6a4d7b7c11"


def task(epoch: int = 7, *, attempt: int = 3, partition: int = 0, query: str = "orders") -> Task:
    return Task(query, RUN, epoch, attempt, 2, partition)


#: What `bodies` asks of a plan.
PACK, GROUP, NOBODY = (
    cast(Plan, SimpleNamespace(bodies=name)) for name in ("pack", "group", "none")
)


def of_map_task(at: Task) -> BodyFile:
    made = bodies.packed_bodies(PACK, at)
    assert isinstance(made, BodyFile)
    return made


def handed_on(at: Task, shard: int = 0) -> BodyFile:
    made = bodies.handed_on(GROUP, at, shard)
    assert made is not None
    return made


@pytest.fixture(autouse=True)
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two local folders of Spark's."""
    folders = [tmp_path / "one", tmp_path / "two"]
    monkeypatch.setenv("SPARK_LOCAL_DIRS", ",".join(map(str, folders)))
    return folders


def rows(count: int, seed: int = 0) -> pa.RecordBatch:
    """Rows of many types, with nulls."""
    rng = np.random.default_rng(seed)
    number = rng.integers(0, 1 << 40, count).tolist()
    kinds: dict[str, pa.Array] = {
        "text": pa.array([None if n % 7 == 0 else f"text {n}" for n in number], pa.string()),
        "raw": pa.array([bytes([n % 256]) * (n % 50) for n in number], pa.binary()),
        "flag": pa.array([n % 3 == 0 for n in number], pa.bool_()),
        "money": pa.array([Decimal(n % 10_000) / 100 for n in number], pa.decimal128(12, 2)),
        "at": pa.array([dt.datetime(2026, 1, 1, 0, n % 60) for n in number], pa.timestamp("us")),
        "list": pa.array([[n, None] if n % 2 else None for n in number], pa.list_(pa.int64())),
        "map": pa.array([[("k", n)] for n in number], pa.map_(pa.string(), pa.int64())),
        "nested": pa.array([{"a": n, "b": str(n)} for n in number],
                           pa.struct([("a", pa.int64()), ("b", pa.string())])),
        "nothing": pa.nulls(count),
    }  # fmt: skip
    return pa.record_batch(kinds)


def test_bodies_are_read_as_they_were_written() -> None:
    given = [rows(1000, 1), rows(0), rows(1, 2), rows(5000, 3), rows(20, 4)]
    file = of_map_task(task())
    places = [file.write(body) for body in given]
    file.close()
    reader = BodyReader()
    for body, place in zip(given, places, strict=True):
        assert place.size < 300
        found = reader.read(place, body.schema)
        found.validate(full=True)
        assert found.equals(body)
    # Rows that were read survive the file.
    found = reader.read(places[3], given[3].schema)
    file.path.unlink()
    assert found.equals(given[3])


def test_rows_are_read_without_copying_the_file() -> None:
    file = of_map_task(task())
    body = pa.record_batch({"number": pa.array(range(100_000), pa.int64())})
    places = [file.write(body) for _ in range(3)]
    file.close()
    before = pa.total_allocated_bytes()
    reader = BodyReader()
    found = [reader.read(place, body.schema) for place in places]
    assert pa.total_allocated_bytes() - before < body.nbytes / 10
    assert all(one.column(0).buffers()[1].address % 8 == 0 for one in found)


def test_bodies_that_came_through_spark_are_written_to_the_file_unchanged() -> None:
    """Wide bodies are compressed."""
    narrow = pa.record_batch({"number": pa.array(range(1000), pa.int64())})
    wide = pa.record_batch({"text": pa.array(["the same text again and again " * 9] * 1000)})
    file, reader = handed_on(task(), 4), BodyReader()
    places = []
    for body in (narrow, wide):
        data = wire.write_body(body)
        assert reader.read(data, body.schema).equals(body)
        places.append(file.append(np.frombuffer(data, np.uint8)))
    file.close()
    assert file.path.stat().st_size < wide.nbytes / 5
    for body, place in zip((narrow, wide), places, strict=True):
        assert reader.read(place, body.schema).equals(body)


def test_the_reader_removes_a_tasks_own_file_and_keeps_a_shared_one() -> None:
    """No other task reads a task's own file; others may read a shared file again."""
    body = rows(10)
    own, shared = handed_on(task()), of_map_task(task())
    reader = BodyReader()
    for file in (own, shared):
        places = [file.write(body), file.write(body)]
        file.close()
        for place in places:
            assert reader.read(place, body.schema).equals(body)
    assert (own.path.exists(), shared.path.exists()) == (False, True)
    reader.close()


def test_a_pass_writes_no_files_unless_the_plan_names_it() -> None:
    for plan in (GROUP, NOBODY):
        assert bodies.packed_bodies(plan, task()) is None
    for plan in (PACK, NOBODY):
        assert bodies.handed_on(plan, task(), 0) is None


def test_no_two_attempts_write_to_one_file() -> None:
    files = [
        make(task(attempt=attempt, partition=partition))
        for make in (of_map_task, handed_on)
        for attempt in (1, 2)
        for partition in (0, 1)
        for _ in range(2)  # a plan may hold the passes twice
    ]
    assert len({file.path for file in files}) == len(files)


def test_a_file_is_made_only_for_rows_and_only_for_this_user(disks: list[Path]) -> None:
    file = of_map_task(task())
    file.close()
    assert not any(disk.exists() for disk in disks)
    file.write(rows(3))
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_files_of_earlier_micro_batches_are_removed(disks: list[Path]) -> None:
    kept, gone = [], []
    for partition in (0, 1):
        for epoch, query, into in (
            (5, "orders", gone), (6, "orders", gone), (7, "orders", kept),
            (8, "orders", kept),  # a task may outlive its micro-batch
            (5, "others", kept),
        ):  # fmt: skip
            file = of_map_task(task(epoch, partition=partition, query=query))
            file.write(rows(3))
            file.close()
            into.append(file.path)
    stranger = disks[0] / bodies.FOLDER / "orders" / "no-number"
    stranger.mkdir()
    bodies.drop_earlier(task(7))
    assert [path.exists() for path in (*kept, stranger, *gone)] == [True] * 7 + [False] * 4
    # A later run removes all files of the run before, with any numbers.
    bodies.drop_earlier(replace(task(7), run_id="6" + RUN[1:]))
    assert [path.exists() for path in kept if "orders" in path.parts] == [False] * 4
    assert {path.is_relative_to(disks[0]) for path in kept} == {True, False}


def test_without_spark_local_folders_files_go_to_the_systems_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "system"))
    assert of_map_task(task()).path.is_relative_to(tmp_path / "system")


@pytest.mark.parametrize("where", ["first byte", "middle", "last byte"])
def test_damage_anywhere_in_a_body_is_detected(where: str) -> None:
    body = rows(3000)
    file = of_map_task(task())
    file.write(body)
    place = file.write(body)
    length = file.path.stat().st_size // 2
    file.write(body)
    file.close()
    data = bytearray(file.path.read_bytes())
    _, start, size, _ = bodies._PLACE.unpack(bytes(place)[: bodies._PLACE.size])
    assert abs(size - length) < length / 2
    at = {"first byte": start, "middle": start + size // 2, "last byte": start + size - 1}[where]
    data[at] ^= 4
    file.path.write_bytes(data)
    with pytest.raises(DedupError, match=r"is damaged.*recomputes the micro-batch") as error:
        BodyReader().read(place, body.schema)
    assert error.value.remedy == "local-disk"


def test_a_truncated_or_missing_file_is_an_error() -> None:
    body = rows(300)
    file = of_map_task(task())
    place = file.write(body)
    file.close()
    for left in (2000, 100, 1, 0):
        with file.path.open("r+b") as handle:
            handle.truncate(left)
        with pytest.raises(DedupError, match=r"is damaged|cannot be read"):
            BodyReader().read(place, body.schema)
    file.path.unlink()
    with pytest.raises(DedupError, match=r"is gone.*cannot return the rows of a") as error:
        BodyReader().read(place, body.schema)
    assert error.value.remedy == "local-disk"


def test_a_full_disk_is_an_error_and_the_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(disk))
        file = of_map_task(task())
        place = file.write(rows(3))
        fill(disk)
        many = rows(1 << 16)
        with pytest.raises(DedupError, match=r"No space left on device.*Nothing is lost") as error:
            file.write(many)
        assert error.value.remedy == "local-disk"
        # It has made room for the next attempt.
        assert not file.path.exists()
        with pytest.raises(DedupError, match="is gone"):
            BodyReader().read(place, rows(3).schema)


def test_a_folder_that_cannot_be_written_is_an_error(disks: list[Path]) -> None:
    disks[0].write_text("a file is in its way")
    with pytest.raises(DedupError, match=r"Cannot write rows.*Not a directory"):
        of_map_task(task()).write(rows(3))


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 1 << 20])
def test_the_checksum_covers_all_bytes(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    whole = bodies.checksum(data)
    for at in {0, size // 2, size - 1}:
        data[at] ^= 1
        assert bodies.checksum(data) != whole
        data[at] ^= 1
    assert bodies.checksum(data) == whole


def test_a_body_never_looks_like_a_place() -> None:
    for body in (rows(0), rows(5), pa.record_batch({"DBP1": pa.array([1])})):
        assert bytes(wire.write_body(body))[:4] != bodies._MAGIC


def test_only_the_part_that_is_read_takes_address_space() -> None:
    """Spark limits the memory of a worker if `spark.executor.pyspark.memory` is set."""
    body = pa.record_batch({"number": pa.array(range(1000), pa.int64())})
    file = of_map_task(task())
    place = file.write(body)
    with file.path.open("r+b") as handle:
        handle.truncate(1 << 36)
    before = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (1 << 30), before[1]))
    try:
        assert BodyReader().read(place, body.schema).equals(body)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_a_retried_task_and_later_tasks_send_bodies_through_spark() -> None:
    """In the first attempt unpack did not find the file: its process has another disk."""
    first = handed_on(task(partition=1))
    first.write(rows(10))
    first.close()
    assert bodies.handed_on(GROUP, replace(task(attempt=4, partition=1), retries=1), 0) is None
    assert bodies.handed_on(GROUP, task(epoch=8), 0) is None
    assert handed_on(replace(task(epoch=8), run_id="another-start"))
    assert handed_on(task(query="another"))
