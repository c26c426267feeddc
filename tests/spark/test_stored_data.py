"""What files hold of a record, who may read them and for how long, as the page says."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import DedupListener, dedup_by_id
from dedup.errors import faults
from dedup.sinks import custom_sink, files_sink, stable
from dedup.sinks.fan_out import BatchFunction
from dedup.sinks.slice_store import SliceStore
from tests.kit.sqlite_sink import SqliteSink
from tests.support.pages import PACKAGE, snippets
from tests.support.processes import run_python
from tests.support.quick_spark import QUICK_JAVA, QUICK_SESSION
from tests.support.spark_query import Query, collected, finish
from tests.support.state_stores import ROCKSDB

#: Texts that no compression changes: every character occurs once.
ID, PAYLOAD = ("".join(chr(first + 37 * n) for n in range(16)) for first in (0x4E00, 0x6001))
#: Not 022, which both have by default.
UMASK, HADOOP_UMASK = 0o027, 0o007
#: What Spark and its libraries unpack below TEMP and LOCAL.
LIBRARIES = ("TEMP/*.so*", "TEMP/hsperfdata*")


class Place(NamedTuple):
    """A line of the page's table."""

    pattern: str
    content: str
    readable: str


def places() -> list[Place]:
    lines = (PACKAGE / "STORED-DATA.md").read_text(encoding="utf-8").splitlines()
    cells = (re.split(r" *\| *", line) for line in lines if line.startswith("| `"))
    return [
        Place(pattern, content.partition(":")[0], readable)
        for _, shown, content, readable, *_ in cells
        for pattern in re.findall("`([^`]+)`", shown)
    ]


class Found(NamedTuple):
    """A file: its mode, or 0 if it or a folder above it is its owner's alone, and what it holds."""

    others: int
    held: list[str]


class StagedAlone(SqliteSink):  # type: ignore[misc, valid-type]
    """It lets the kit stage rows, and keeps none of them."""

    def write_rows(self, db: sqlite3.Connection, rows: pa.RecordBatch) -> None:
        pass


def look_at(folder: Path) -> dict[str, Found]:
    """Files in the folders below the folder. Any of them may vanish while it looks."""
    found = {}
    names = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    for path in names:
        with suppress(FileNotFoundError):
            if path.parent != folder and "INPUT" not in path.parts:
                content = path.read_bytes()
                chain = (path, *path.parents[: -len(folder.parts)])
                modes = [stat.S_IMODE(each.stat().st_mode) for each in chain]
                others = modes[0] if all(mode & 0o077 for mode in modes) else 0
                held = [text for text in (ID, PAYLOAD) if text.encode() in content]
                found[str(path.relative_to(folder))] = Found(others, held)
    return found


def write_everywhere(folder: Path) -> None:
    """Run a query that writes to every place of the page, and print what files there were."""
    os.umask(UMASK)
    for name in ("TEMP", "LOCAL", "INPUT"):
        (folder / name).mkdir()
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "TEMP")
    found: dict[str, Found] = {}

    def look(name: str = "", path: object = None) -> None:
        found.update(look_at(folder))

    def staged() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [ID], "payload": [PAYLOAD]})
        yield pa.record_batch({"id": ["more than a file's buffer" * 100_000], "payload": [""]})
        look()

    SliceStore(str(folder / "AT"), "of-a-task", "test").write(0, 0, staged())
    faults.point = look
    settings: dict[str, Any] = {
        **QUICK_SESSION,
        **ROCKSDB,
        "spark.driver.extraJavaOptions": f"{QUICK_JAVA} -Djava.io.tmpdir={folder}/TEMP",
        "spark.hadoop.fs.permissions.umask-mode": f"{HADOOP_UMASK:03o}",
        "spark.local.dir": str(folder / "LOCAL"),
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.stateStore.maintenanceInterval": "100ms",
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.streams.addListener(DedupListener(log=str(folder / "LOG")))
    checkpoint = str(folder / "CHECKPOINT")
    functions: list[BatchFunction] = [
        stable(lambda rows, batch_id: look(), at=str(folder / "AT")),
        files_sink(str(folder / "OUTPUT"), checkpoint=checkpoint),
        custom_sink(StagedAlone(str(folder / "sink.db")), checkpoint=checkpoint),
    ]

    def publish(rows: DataFrame, batch_id: int) -> None:
        for function in functions:
            function(rows, batch_id)

    query = query_in(folder, spark)
    finish(query.writer().foreachBatch(publish).start())
    look()
    faults.point = lambda name, path=None: None
    rocksdb = after_its_time(query)
    spark.conf.unset(next(iter(ROCKSDB)))
    query = query_in(folder / "other store", spark)
    query.run()
    print(json.dumps([found, {"rocksdb": rocksdb, "files": after_its_time(query)}]))


def query_in(folder: Path, spark: SparkSession) -> Query:
    """A query with the ID in Spark state, in segments and in copies of segments."""
    options = {
        "horizon": "1 day", "lateness": "1 hour", "bucket_length": "3 hours", "timestamp": "ts",
        "source_partition": "src", "state_budget_bytes": "16 KiB", "filter_state_bytes": 0,
        "keep_expired": "1 second", "cache_dir": str(folder / "CACHE"),
    }  # fmt: skip
    query = Query(
        spark, folder / "INPUT", options,
        before=lambda rows: rows.withColumn("payload", F.lit(PAYLOAD)),
    )  # fmt: skip
    query.catalog, query.checkpoint = folder / "CATALOG", folder / "CHECKPOINT"
    crowd = [f"{number}@{number % 90}" for number in range(2_000)]
    return query.add(f"{ID}@0", *crowd).add(f"{ID}@1", *crowd[::7]).add(f"{ID}, newest@300")


def after_its_time(query: Query) -> dict[str, list[str]]:
    """Where the ID still is, before, a second before the end of its time, and after it."""

    def holding(*folders: str) -> list[str]:
        files = look_at(query.checkpoint.parent).items()
        return [name for name, file in files if ID in file.held and name.startswith(folders)]

    def run(at_s: int) -> list[str]:
        for _ in range(4):
            query.add(f"later@{at_s}")
        query.run()
        time.sleep(1.1)
        query.add(f"later@{at_s}").run()
        return holding("CATALOG")

    end_s = (24 + 1 + 3) * 3600
    held = {
        "state": holding("CHECKPOINT/state"),
        "catalog": holding("CATALOG"),
        "just before": run(end_s - 1),
        "after": run(end_s),
    }
    for _ in range(30):
        if not holding("CHECKPOINT/state"):
            break
        query.add(f"later@{end_s}").run()  # Spark deletes in portions, while the query runs
    return held | {"after": holding("CATALOG", "CHECKPOINT/state", "CACHE")}


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    code = (
        "import sys; from pathlib import Path; from tests.spark.test_stored_data import *; "
        "write_everywhere(Path(sys.argv[1]))"
    )
    return run_python(code, tmp_path_factory.mktemp("stored"))


@pytest.fixture(scope="module")
def written(looked: Any) -> dict[Place, dict[str, Found]]:
    """Files by the first line of the page that names them."""
    listed: dict[Place, dict[str, Found]] = {place: {} for place in places()}
    for file, (readable, held) in looked[0].items():
        # An unfinished file, and Hadoop's checksum of a file, are as the file.
        name = re.sub(r"/\.([^/]+?)(\.crc|\.\d+-[0-9a-f]{8}\.tmp)$", r"/\1", file)
        if any(fnmatch(name, each) for each in LIBRARIES):
            continue
        line = next((place for place in listed if fnmatch(name, place.pattern)), None)
        assert line, f"the page does not name {file}"
        listed[line][file] = Found(readable, held)
    return listed


def test_every_place_of_the_page_was_looked_at(written: dict[Place, dict[str, Found]]) -> None:
    assert not [place.pattern for place, found in written.items() if not found]


def test_files_can_be_read_by_whom_the_page_says(written: dict[Place, dict[str, Found]]) -> None:
    modes = {"umask": 0o666 & ~UMASK, "Hadoop": 0o666 & ~HADOOP_UMASK, "owner": 0}
    for place, found in written.items():
        wrong = {name for name, each in found.items() if each.others != modes[place.readable]}
        assert not wrong, place


def test_files_hold_of_a_record_what_the_page_says(written: dict[Place, dict[str, Found]]) -> None:
    content = {"nothing": set(), "ID": {ID}, "row": {ID, PAYLOAD}}
    for place, found in written.items():
        held = {text for each in found.values() for text in each.held}
        # Bodies lack the ID, because unpack takes it from the keys.
        assert held == content[place.content] - ({ID} if "bodies" in place.pattern else set()), (
            place
        )


@pytest.mark.parametrize(("store", "suffix"), [("rocksdb", ".sst"), ("files", ".delta")])
def test_state_and_catalog_lose_an_id_after_its_time(store: str, suffix: str, looked: Any) -> None:
    held = looked[1][store]
    assert any(name.endswith(suffix) for name in held["state"])
    assert held["catalog"]
    assert held["just before"]
    assert held["after"] == []


def test_the_three_recipes_work(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ID_SECRET", "never told")
    rows = [
        ("a@example.org", "red", 1, "o1", 1),
        ("a@example.org", "red", 1, "o1", 1),
        ("a@example.org", "blue", 1, "o1", 2),
        ("b@example.org", "red", 2, "o1", 2),
    ]
    made = spark.createDataFrame(
        rows, "email string, tenant string, replay int, order_id string, version int"
    )
    made.withColumn("at", F.timestamp_seconds(F.lit(1_700_000_000))).write.parquet(
        str(tmp_path / "in")
    )
    passed = []
    for number, snippet in enumerate(snippets("STORED-DATA.md")):
        events = spark.readStream.schema(spark.read.parquet(str(tmp_path / "in")).schema).parquet(
            str(tmp_path / "in")
        )
        catalog = tmp_path / f"catalog-{number}"
        names: dict[str, Any] = {"F": F, "os": os, "dedup_by_id": dedup_by_id, "events": events}
        exec(snippet.replace('"catalog"', repr(str(catalog))), names)
        passed.append(collected(names["unique"], tmp_path / f"checkpoint-{number}"))
    assert len({row.person for row in passed[0]}) == len(passed[0]) == 2
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("c*-0/**/*") if path.is_file())
    assert b"person" in stored
    assert b"example.org" not in stored
    assert b"never told" not in stored
    assert sorted((row.tenant, row.replay) for row in passed[1]) == [
        ("blue", 1),
        ("red", 1),
        ("red", 2),
    ]
    assert sorted(row.version for row in passed[2]) == [1, 2]
