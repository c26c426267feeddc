"""Queries of the newest release, and of older PySparks, continue with this code.

They go back to the release where DESIGN.md allows it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from dedup.core.version import VERSION
from dedup.storage.root import Root
from dedup.tools import read_checkpoint, rebuild, rescale
from tests.golden import make_golden, release_query
from tests.support.needs import needs_rescale
from tests.support.oracle import Oracle
from tests.support.pages import releases
from tests.support.processes import ROOT, python
from tests.support.quick_spark import QUICK_SESSION
from tests.support.sequence_model import SequenceModel
from tests.support.small_state import HORIZON_S, LATENESS_S, OPTIONS, tables
from tests.support.spark_query import ARROW, BASE, SCHEMA, Run
from tests.support.state_stores import ROCKSDB

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Release:
    """A release of this package, as somebody has installed it."""

    version: str
    path: Path


NEW = Release(VERSION, ROOT)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The newest release, built from the commit that CHANGELOG.md names."""
    version, commit = releases()[0]
    folder = tmp_path_factory.mktemp("release")
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"this copy of the repository has no commit {commit} of release {version}")
    (folder / "source").mkdir()
    subprocess.run(["tar", "-x", "-C", folder / "source"], input=packed.stdout, check=True)
    install = ["-m", "pip", "install", "--no-deps", "--target", folder / "installed"]
    built = python(*install, folder / "source")
    assert built.returncode == 0, built.stderr
    return Release(version, folder / "installed")


@dataclass
class Story:
    """A query that several releases run, one after another, and what they let through."""

    folder: Path
    given: list[pa.Table]
    options: dict[str, Any] = field(default_factory=lambda: dict(OPTIONS))
    columns: tuple[str, ...] = ("id",)
    settings: dict[str, str] = field(default_factory=dict)
    #: The Python of an environment with another PySpark.
    python: str = sys.executable
    rows: list[list[dict[str, Any]]] = field(default_factory=list)

    def start(self, release: Release, micro_batches: int) -> subprocess.CompletedProcess[str]:
        """Start with so many new files. The query may fail."""
        (self.folder / "input").mkdir(parents=True, exist_ok=True)
        first = len(self.rows)
        for number in range(first, first + micro_batches):
            path = self.folder / f"input/{number:05d}.parquet"
            pq.write_table(self.given[number], path)
            os.utime(path, (1_700_000_000 + number,) * 2)  # Spark's order of files
        catalog = {"catalog": str(self.folder / "catalog")} if len(self.columns) == 1 else {}
        job = {
            "folder": str(self.folder),
            "settings": {**QUICK_SESSION, **self.settings},
            "schema": SCHEMA,
            "operator": "dedup_by_id" if catalog else "dedup_by_sequence",
            "columns": self.columns,
            "options": self.options | catalog,
        }
        paths = {"PYTHONPATH": str(release.path), "PYSPARK_PYTHON": self.python}
        return subprocess.run(
            [self.python, release_query.__file__, json.dumps(job)],
            cwd=self.folder,  # workers import from the working directory first
            env={**os.environ, **paths}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def run(self, release: Release, micro_batches: int) -> None:
        done = self.start(release, micro_batches)
        assert done.returncode == 0, done.stderr[-6000:]
        version, rows = json.loads(done.stdout.splitlines()[-1])
        assert version == release.version
        assert len(rows) == micro_batches
        self.rows += [each for _, each in sorted(rows.items(), key=lambda item: int(item[0]))]

    def check(self) -> None:
        assert len(self.rows) == len(self.given)
        Oracle(HORIZON_S, LATENESS_S).check(self.given, Run(dict(enumerate(self.rows))))


def test_a_query_continues_and_goes_back(old: Release, tmp_path: Path) -> None:
    story = Story(tmp_path / "query", tables(8))
    for release in (old, NEW, old, NEW):
        story.run(release, 2)
    story.check()


def test_a_query_with_more_ids_than_its_limit_goes_back_to_a_copy(
    old: Release, spark: SparkSession, tmp_path: Path
) -> None:
    """The limit raises the version of state rows, which the release rejects."""
    story = Story(tmp_path / "query", tables(6))
    story.run(old, 2)
    places = {story.folder / name: tmp_path / name for name in ("checkpoint", "catalog")}
    for place, copied in places.items():
        shutil.copytree(place, copied)
    limited = replace(story, options=story.options | {"max_live_ids": 500}, rows=[*story.rows])
    limited.run(NEW, 2)
    states = read_checkpoint(
        Root(story.folder / "catalog"), str(story.folder / "checkpoint"), spark
    )
    assert all(state.capped_before_ms > 0 for state in states.states.values())
    refused = replace(story, rows=limited.rows).start(old, 1)
    assert refused.returncode != 0
    assert "Install the release that wrote it" in refused.stderr
    for place, copied in places.items():
        shutil.rmtree(place)
        copied.rename(place)
    story.run(old, 4)
    story.check()


@needs_rescale
def test_a_query_gets_other_partitions(old: Release, spark: SparkSession, tmp_path: Path) -> None:
    story = Story(
        tmp_path / "query", tables(8), settings={**ROCKSDB, "spark.sql.shuffle.partitions": "4"}
    )
    story.run(old, 2)
    for release, partitions in ((NEW, 2), (old, 8), (NEW, 1)):
        rescale(story.folder / "checkpoint", partitions, spark)
        story.run(release, 2)
    story.check()


def test_a_query_is_rebuilt(old: Release, spark: SparkSession, tmp_path: Path) -> None:
    story = Story(tmp_path / "0", tables(8))
    story.run(old, 2)
    for release, shards in ((NEW, 3), (old, 4), (NEW, 2)):
        story = rebuilt(story, shards, spark)
        story.run(release, 2)
    story.check()


def rebuilt(story: Story, shards: int, spark: SparkSession, **changes: Any) -> Story:
    folder = story.folder.with_name(str(len(story.rows)))
    places = (each / name for each in (story.folder, folder) for name in ("catalog", "checkpoint"))
    rebuild(*places, shards=shards, spark=spark)
    options = story.options | {"shards": shards}
    return replace(story, folder=folder, options=options, **changes)


@pytest.mark.parametrize("pyspark", ["3.5", "4.0"])
@pytest.mark.parametrize("stores", [({}, ROCKSDB), (ROCKSDB, {})], ids=["to RocksDB", "back"])
def test_a_query_of_an_older_pyspark_is_rebuilt(
    spark: SparkSession, tmp_path: Path, pyspark: str, stores: Sequence[dict[str, str]]
) -> None:
    older = ROOT / f".venv-{pyspark}" / "bin" / "python"
    if not older.exists():
        pytest.skip(f"make test-{pyspark} makes an environment with PySpark {pyspark}")
    story = Story(tmp_path / "0", tables(6), settings=stores[0], python=str(older))
    story.run(NEW, 3)
    story = rebuilt(story, 3, spark, settings=stores[1], python=sys.executable)
    story.run(NEW, 3)
    story.check()


def test_a_query_of_numbered_records_continues_and_goes_back(old: Release, tmp_path: Path) -> None:
    records = [make_golden.numbered_records(batch) for batch in range(4)]
    hours = [timedelta(hours=batch) for batch in range(4)]
    given = [
        pa.Table.from_pylist(
            [{"ts": BASE + hour, "src": name, "n": number} for name, _, number in each], ARROW
        )
        for hour, each in zip(hours, records, strict=True)
    ]
    options = {"timestamp": "ts", "expire_after": "3 hours", "verdict": "verdict"}
    story = Story(tmp_path / "query", given, options, ("src", "n"))
    for release in (old, NEW, old, NEW):
        story.run(release, 1)
    model = SequenceModel()
    for rows, each in zip(story.rows, records, strict=True):
        told = Counter((row["src"], 0, row["n"], row["verdict"]) for row in rows)
        assert told == model.batch(each)
