"""Every checkpoint and catalog that a release wrote is read, and continues, in this one."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from dedup.core import state_row
from dedup.core.state import MAGIC
from dedup.errors import StateError
from dedup.storage.root import Root
from dedup.tools.repair.opening import has_state, read_checkpoint
from dedup.tools.repair.segment_check import verify_segment
from tests.golden import make_golden
from tests.support.sequence_model import SequenceModel

GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = sorted(path.parent.name for path in GOLDEN.glob("v*/checkpoint"))
SEQUENCES = sorted(path.parent.name for path in GOLDEN.glob("sequences-*/checkpoint"))


def committed(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    """Rows of the files that the sink's log names; the log itself began before the copy."""
    files = [
        json.loads(line)["path"].removeprefix("file://")
        for log in (folder / "_spark_metadata").glob("[0-9]*")
        for line in log.read_text().splitlines()[1:]
    ]
    tables = [pq.read_table(file, columns=list(columns)) for file in files]
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    copied = tmp_path / str(request.param)
    shutil.copytree(GOLDEN / request.param, copied)
    return copied


def test_golden_data_exists_for_each_format() -> None:
    assert VERSIONS == ["v1"]
    assert SEQUENCES == ["sequences-v1"]


@pytest.mark.parametrize("golden", VERSIONS, indirect=True)
def test_state_and_catalog_are_read(spark: SparkSession, golden: Path) -> None:
    made = json.loads((golden / "made.json").read_text())
    root = Root(str(golden / "catalog"))
    snapshot = read_checkpoint(root, str(golden / "checkpoint"), spark)
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


@pytest.mark.parametrize("golden", VERSIONS, indirect=True)
def test_a_state_from_before_the_first_release_is_reported_without_its_catalog(
    spark: SparkSession, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_row, "_BEFORE_RELEASE", MAGIC)
    (certificate,) = (golden / "catalog").glob("*/certificate.json")
    certificate.unlink()
    with pytest.raises(StateError, match=r"before 0\.1\.0"):
        has_state(spark, str(golden / "checkpoint"))
    with pytest.raises(StateError, match=r"before 0\.1\.0"):
        read_checkpoint(Root(str(golden / "catalog")), str(golden / "checkpoint"), spark)


@pytest.mark.parametrize("golden", VERSIONS, indirect=True)
def test_a_golden_query_continues(spark: SparkSession, golden: Path, tmp_path: Path) -> None:
    """It drops the repeats of the last golden hour."""
    first = json.loads((golden / "made.json").read_text())["last_batch"] + 1
    last = make_golden.run(spark, golden, str(tmp_path / "out"), first)
    out = committed(tmp_path / "out", "id")
    assert sorted(out) == sorted((i,) for i in make_golden.new_ids(first, last))


@pytest.mark.parametrize("golden", SEQUENCES, indirect=True)
def test_a_golden_query_of_numbered_records_continues(
    spark: SparkSession, golden: Path, tmp_path: Path
) -> None:
    """It knows the records of the last golden hour, and which numbers are missing."""
    first = json.loads((golden / "made.json").read_text())["last_batch"] + 1
    last = make_golden.run_sequences(spark, golden, str(tmp_path / "out"), first)
    model = SequenceModel()
    judged = [model.batch(make_golden.numbered_records(batch)) for batch in range(last + 1)]
    right = sum(judged[first:], Counter())
    assert {verdict for *_, verdict in right} == {"accept", "duplicate", "gap"}
    out = Counter(committed(tmp_path / "out", "producer", "number", "verdict"))
    assert out == {(name, number, verdict): n for (name, _, number, verdict), n in right.items()}
