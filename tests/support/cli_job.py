"""Helpers of the tests that run Spark."""

from __future__ import annotations

import gzip
import json
import os
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyarrow.csv import write_csv
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from dedup.cli.app import app
from dedup.cli.failures import Failure, explain
from dedup.cli.run.drain import RunOutcome
from dedup.cli.run.options import RunOptions
from dedup.cli.run.progress import Reporter
from dedup.cli.run.work import run
from dedup.cli.session import stream_settings
from dedup.cli.stop import StopRequest


class FileDrop:
    """Writes files into a folder, each a second younger than the one before.

    Spark's file source orders by modification time; without distinct ones the micro-batches
    of a test would depend on luck.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        folder.mkdir(parents=True, exist_ok=True)

    def stamp(self, path: Path) -> Path:
        self.count += 1
        seconds = 1_700_000_000 + self.count
        os.utime(path, (seconds, seconds))
        return path

    def text(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return self.stamp(path)

    def table(self, name: str, rows: pa.Table) -> Path:
        """As Parquet, ORC, CSV or JSON lines, by the name; ``.gz`` is zipped."""
        path = self.folder / name
        if ".parquet" in name:
            pq.write_table(rows, path)
            return self.stamp(path)
        if ".orc" in name:
            orc.write_table(rows, path)
            return self.stamp(path)
        if ".csv" in name:
            text = BytesIO()
            write_csv(rows, text)
            data = text.getvalue()
        else:
            data = "\n".join(map(json.dumps, rows.to_pylist())).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return self.stamp(path)


class Notes(Reporter):
    """Keeps what a run says."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


class Job:
    """`dedup run` over one input and one output, in the tests' session.

    `notes` is what the last run said.
    """

    def __init__(self, spark: SparkSession, files: FileDrop, folder: Path) -> None:
        for key, value in stream_settings(2).items():
            spark.conf.set(key, value)
        self.spark = spark
        self.files = files
        self.output = folder / "out"
        self.duplicates = folder / "dup"
        self.notes: list[str] = []
        self.options: dict[str, Any] = {
            "input": files.folder,
            "id": ("id",),
            "horizon": "1 day",
            "output": self.output,
            "files_per_trigger": 1,
            "master": "local[2]",
        }

    def made(self, **changes: Any) -> RunOptions:
        return RunOptions.make(**(self.options | changes))

    def __call__(self, stop: StopRequest | None = None, **changes: Any) -> RunOutcome:
        notes = Notes()
        self.notes = notes.said
        return run(self.made(**changes), notes, stop=stop, spark=self.spark)

    def fails(self, **changes: Any) -> Failure:
        with pytest.raises(Exception) as failed:  # noqa: PT011
            self(**changes)
        return explain(failed.value)

    def rows(self, file_format: str = "csv", folder: Path | None = None) -> list[tuple[Any, ...]]:
        reader = self.spark.read.format(file_format).option("header", "true").option("escape", '"')
        frame = reader.load(str(folder or self.output)).drop("batch")
        return sorted((tuple(row) for row in frame.collect()), key=repr)

    def lose_last_commit(self) -> None:
        """As if the process had been killed between the rename and Spark's commit."""
        commits = self.output / "_checkpoint" / "commits"
        last = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink()

    def visible(self) -> list[str]:
        return sorted(p.name for p in self.output.iterdir() if not p.name.startswith("_"))


def catalog_command(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run `dedup catalog`; its exit code, and what it says to programs."""
    done = CliRunner().invoke(app, ["catalog", *arguments, "--json"])
    return done.exit_code, json.loads(done.stdout)
