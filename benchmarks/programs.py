"""The whole processes that `benchmarks.runs` sets side by side, from files to files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import flink, oneoff
from benchmarks.harness import HORIZON

#: The least that a pipeline must do to bring equal IDs together.
BASE = "Spark: scan + repartition(id) + write"
OURS = "dedup run"
FLINK = f"Flink {flink.VERSION}, keyed state with TTL"
_SPARK_SCRIPT = """
import sys
from pyspark.sql import SparkSession
source, output, cores, memory, kind, schema = sys.argv[1:]
builder = SparkSession.builder.master(f"local[{cores}]").config("spark.driver.memory", memory)
builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
spark = builder.config("spark.sql.shuffle.partitions", cores).getOrCreate()
reader = spark.read.format(kind).option("header", kind == "csv")
reader = reader.schema(schema) if schema else reader.option("inferSchema", "true")
writer = reader.load(source).STEP.write.option("header", kind == "csv")
writer.format(kind).save(output)
"""


@dataclass(frozen=True)
class Job:
    """Arguments of a program.

    Parameters
    ----------
    source : Path
        The folder that it reads.
    folder : Path
        It writes to ``out`` in there; what else it writes goes to ``own``.
    cores : int
    memory : str
        Of a JVM's heap.
    schema : str
        Spark's columns.
    file_format : {"parquet", "csv", "json"}
        Of input and output.
    infer : bool
        Whether programs find the columns of text.
    """

    source: Path
    folder: Path
    cores: int
    memory: str
    schema: str
    file_format: str = "parquet"
    infer: bool = False

    @property
    def given_schema(self) -> str:
        """The columns that programs are told, or "" if they find them."""
        return "" if self.infer or self.file_format == "parquet" else self.schema

    @property
    def output(self) -> str:
        return str(self.folder / "out")

    @property
    def own(self) -> str:
        return str(self.folder / "own")


@dataclass(frozen=True)
class Program:
    """One contender: the arguments of Python for a job, and the settings that tune it.

    One that is prepared uses what `dedup prepare` made. One that is for Parquet reads nothing else.
    """

    arguments: Callable[[Job], list[str]]
    settings: Mapping[str, object] = field(default_factory=dict)
    unique: bool = True
    prepared: bool = False
    for_parquet: bool = False

    def command(self, job: Job) -> list[str]:
        return [sys.executable, *self.arguments(job)]

    def environment(self, job: Job) -> dict[str, str]:
        """The process's, in which only one that is prepared finds an archive of Java's classes."""
        return {**os.environ} if self.prepared else {**os.environ, "XDG_CACHE_HOME": job.own}


def spark_batch(step: str) -> Callable[[Job], list[str]]:
    """A script that takes one step between reading and writing."""
    code = _SPARK_SCRIPT.replace("STEP", step)
    return lambda job: [
        "-c", code, str(job.source), job.output, str(job.cores), job.memory, job.file_format,
        job.given_schema,
    ]  # fmt: skip


def dedup_run(*flags: str) -> Callable[[Job], list[str]]:
    """The command of this project."""
    return lambda job: [
        "-m", "dedup.cli.main", "run", str(job.source), "--id", "event_id", "--horizon", HORIZON,
        "--timestamp", "ts", "--output", job.output, "--master", f"local[{job.cores}]",
        "--driver-memory", job.memory, "--quiet", *_of_text(job), *flags,
    ]  # fmt: skip


def _of_text(job: Job) -> list[str]:
    if job.given_schema:
        return ["--schema", job.given_schema]
    return ["--infer"] if job.file_format == "csv" else []


def one_off(engine: str) -> Callable[[Job], list[str]]:
    """See `benchmarks.oneoff`."""
    where = ["-m", "benchmarks.oneoff", engine]
    return lambda job: [
        *where, str(job.source), job.output, job.own, str(job.cores), job.file_format
    ]  # fmt: skip


def flink_job(job: Job) -> list[str]:
    """See `benchmarks.flink`."""
    where = ["-m", "benchmarks.flink", str(job.source), job.output, job.own]
    return [*where, str(job.cores), job.memory, job.schema]


PROGRAMS = {
    BASE: Program(spark_batch('repartition(int(cores), "event_id")'), unique=False),
    OURS: Program(dedup_run()),
    "dedup run, prepared": Program(dedup_run(), prepared=True),
    "dedup run --parquet spark": Program(dedup_run("--parquet", "spark"), for_parquet=True),
    FLINK: Program(flink_job, flink.SETTINGS, for_parquet=True),
    "Spark batch: dropDuplicates": Program(spark_batch('dropDuplicates(["event_id"])')),
    "DuckDB: DISTINCT ON": Program(one_off("duckdb"), oneoff.DUCKDB),
    "Polars: unique": Program(one_off("polars"), oneoff.POLARS, for_parquet=True),
}
