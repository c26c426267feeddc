"""Every checkpoint and catalog that a release wrote is read, and goes on, in this one."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from dedup.catalog.repair.inspect import verify_segment
from dedup.catalog.root import Root
from dedup.spark.driver.state_reader import read_snapshot

GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = sorted(path.parent.name for path in GOLDEN.glob("v*/checkpoint"))


def recipe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_golden", GOLDEN / "make_golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def committed_ids(folder: Path) -> list[str]:
    """IDs in the files that the sink's log names; the log itself began before the copy."""
    files = [
        json.loads(line)["path"].removeprefix("file://")
        for log in (folder / "_spark_metadata").glob("[0-9]*")
        for line in log.read_text().splitlines()[1:]
    ]
    return [i for file in files for i in pq.read_table(file, columns=["id"])["id"].to_pylist()]


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    copied = tmp_path / str(request.param)
    shutil.copytree(GOLDEN / request.param, copied)
    return copied


def test_there_are_some() -> None:
    assert VERSIONS == ["v2", "v3"]


def test_state_and_catalog_are_read(spark: SparkSession, golden: Path) -> None:
    made = json.loads((golden / "made.json").read_text())
    root = Root(str(golden / "catalog"))
    snapshot = read_snapshot(spark, str(golden / "checkpoint"), root)
    states = snapshot.states.values()
    assert sorted(snapshot.states) == [0, 1]
    assert {state.epoch for state in states} == {made["last_batch"]}
    assert all(state.filters and state.manifest.expired for state in states)
    live = [(shard, s) for shard, st in snapshot.states.items() for s in st.manifest.segments()]
    assert live
    for shard, segment in live:
        report = verify_segment(root, snapshot.query_id, shard, segment.name, segment)
        assert report.ok, report.problems
        assert report.count == segment.count


def test_the_query_goes_on(spark: SparkSession, golden: Path, tmp_path: Path) -> None:
    """The repeats of the last golden hour are known from the golden memory."""
    first = json.loads((golden / "made.json").read_text())["last_batch"] + 1
    make = recipe()
    last = make.run(spark, golden, str(tmp_path / "out"), first)
    out = committed_ids(tmp_path / "out")
    assert sorted(out) == sorted(make.new_ids(first, last))
