"""A step that deletes what it has read loses records where it runs twice; staged input does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from dedup import dedup_by_id, record_id
from tests.support.spark_query import finish

LINES = Counter({f"{name}{line}": 1 for name in "abc" for line in range(3)})
_CLEANER = "spark.sql.streaming.fileSource.cleaner.numThreads"


class Pipeline:
    """Three files of three lines, one a micro-batch, through the operator."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.landing = spark, folder, folder / "landing"
        self.landing.mkdir()
        for name in "abc":
            (self.landing / name).write_text("".join(f"{name}{line}\n" for line in range(3)))
        self.emitted = Counter[str]()

    def once(self, act: Callable[[], object]) -> Callable[[str], None]:
        """Return a function that strikes when it first sees file b, in any process."""
        struck = str(self.folder / "struck")

        def strike(name: str) -> None:
            if name.endswith("b") and not Path(struck).exists():
                Path(struck).touch()
                act()

        return strike

    def run(self, records: DataFrame) -> None:
        """Run the query; Spark runs the task again that fails."""
        operator = dedup_by_id(
            record_id.from_file("file", "line"), horizon="1 day", shards=2,
            catalog=str(self.folder / "catalog"),
        )  # fmt: skip

        def take(rows: DataFrame, _: int) -> None:
            self.emitted.update(row.value for row in rows.collect())

        writer = records.transform(operator).writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        finish(writer.foreachBatch(take).start())
        assert (self.folder / "struck").exists()


def fail() -> None:
    raise RuntimeError("made to fail")


@pytest.mark.slow
def test_a_step_that_deletes_what_it_read(spark: SparkSession, tmp_path: Path) -> None:
    """The danger itself: the task runs again, the file is gone, and no one says anything."""
    pipeline = Pipeline(spark, tmp_path)
    (tmp_path / "names").mkdir()
    for name in "abc":
        (tmp_path / "names" / name).write_text(str(pipeline.landing / name))
    strike = pipeline.once(fail)

    def read_and_delete(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for name in batch.column("value").to_pylist():
                if not Path(name).exists():
                    continue  # somebody has done it already
                lines = Path(name).read_text().splitlines()
                Path(name).unlink()
                strike(name)
                numbers = list(range(1, len(lines) + 1))
                yield pa.RecordBatch.from_pydict(
                    {"file": [name] * len(lines), "line": numbers, "value": lines}
                )

    names = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "names"))
    pipeline.run(names.mapInArrow(read_and_delete, "file string, line bigint, value string"))
    assert LINES - pipeline.emitted == Counter(["b0", "b1", "b2"])


def test_staged_input(spark: SparkSession, tmp_path: Path) -> None:
    """The same failure, where Spark deletes files, of micro-batches that are committed."""
    pipeline = Pipeline(spark, tmp_path)
    strike = pipeline.once(fail)

    def process(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for name in batch.column("file").to_pylist():
                strike(name)
            yield batch

    spark.conf.set(_CLEANER, 0)  # in the query's own thread
    try:
        reader = spark.readStream.option("cleanSource", "delete").option("maxFilesPerTrigger", 1)
        lines = record_id.read_lines(reader, str(pipeline.landing))
        pipeline.run(lines.mapInArrow(process, lines.schema))
    finally:
        spark.conf.unset(_CLEANER)
    assert pipeline.emitted == LINES
    left = [path.name for path in pipeline.landing.iterdir()]
    assert len(left) <= 1, "files of committed micro-batches are deleted"
