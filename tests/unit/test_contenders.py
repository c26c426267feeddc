"""Benchmarks report only right answers, and which contenders were stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from benchmarks import lines, oneoff, pipelines, runs
from benchmarks.events import Events
from benchmarks.harness import Pipeline
from benchmarks.lines import Line
from benchmarks.programs import Job


class Scripted(Pipeline):
    """A contender whose micro-batches take a given time."""

    def __init__(self, name: str, *batch_ms: int) -> None:
        super().__init__(name, lambda events, folder: events)
        self._to_come = list(batch_ms)

    def feed(self, files: list[Path]) -> None:
        if not self._to_come:
            raise MemoryError("Java heap space\n at line 1")
        self.batch_ms.append(self._to_come.pop(0))


@pytest.mark.parametrize(
    ("engine", "file_format", "shape"),
    [
        (oneoff.duckdb, "parquet", "kafka"), (oneoff.polars, "parquet", "kafka"),
        (oneoff.duckdb, "csv", "narrow"), (oneoff.duckdb, "json", "narrow"),
    ],
)  # fmt: skip
def test_one_off_engines_write_each_record_once(
    tmp_path: Path, engine: Any, file_format: str, shape: str
) -> None:
    events = Events(rows=2000, duplicates=0.2, shape=shape)
    for number in range(2):
        events.write(tmp_path / "in", number, file_format=file_format)
    engine(tmp_path / "in", tmp_path / "out", tmp_path, 2, file_format)
    found, records = (
        ds.dataset(tmp_path / folder, format=file_format).to_table() for folder in ("out", "in")
    )
    ids = [record["event_id"] for record in found.to_pylist()]
    assert len(ids) == events.unique(2)
    assert set(ids) == {record["event_id"] for record in records.to_pylist()}
    if file_format == "parquet":
        rows = ({tuple(row.values()) for row in table.to_pylist()} for table in (found, records))
        assert next(rows) == next(rows)


def test_wrong_answers_end_a_benchmark(tmp_path: Path) -> None:
    events, contender = Events(rows=100), Scripted("theirs")
    contender.rows_out = events.unique(2)
    pipelines.check(contender, events, 2)
    contender.unique = False
    with pytest.raises(SystemExit, match="theirs: 190 rows, must be 200"):
        pipelines.check(contender, events, 2)
    oneoff.duckdb(
        events.write(tmp_path / "in", 0)[0].parent, tmp_path / "out", tmp_path, 1, "parquet"
    )
    with pytest.raises(SystemExit, match="theirs: 95 rows, must be 96"):
        runs.check("theirs", Job(tmp_path, tmp_path, 1, "1g", ""), 96)


def test_ours_counts_as_ahead_only_from_where_it_stays_ahead() -> None:
    ours = Line("narrow", "dedup_by_id", [(1e6, 5.0), (2e6, 3.0), (3e6, 3.0), (4e6, 3.0)])

    def against(*seconds: float) -> float | None:
        points = [(live, s) for (live, _), s in zip(ours.points, seconds, strict=False)]
        return lines.ahead_from(ours, Line("narrow", "theirs", points))

    assert against(9, 9, 9, 9) == 1e6
    assert against(9, 2, 9, 9) == 3e6
    assert against(9, 9, 9, 2) is None
    assert against(9, 2, 9) == 3e6  # stopped, or measured no further


def test_the_picture_is_drawn_from_results_alone(tmp_path: Path) -> None:
    stream = {
        "rows_per_batch": 1000,
        "duplicates": 0.05,
        "shape": "wide",
        "batch_ms": {"dedup_by_id": [900, 800, 50, 70, 60], "Delta MERGE of new IDs": [9, 9, 9]},
    }
    (tmp_path / "pipelines-x.json").write_text(json.dumps(stream))
    [streams] = lines.stream_runs(tmp_path)
    assert streams[0].points == [(2850.0, 50.0), (3800.0, 60.0), (4750.0, 60.0)]
    svg = lines.picture(streams)
    assert "dedup_by_id" in svg
    assert "Delta MERGE" not in svg, "four lines, and no more"
