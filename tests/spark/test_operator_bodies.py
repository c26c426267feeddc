"""Rows that go from the first pass to the last by a file, past Spark: nothing is lost with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from dedup import dedup_by_id
from dedup.errors import DedupError, cause
from dedup.spark.driver import build, checks, plans
from dedup.spark.executor.bodies import FOLDER
from dedup.spark.versions import to_arrow
from tests.support.oracle import Oracle
from tests.support.small_disk import fill, small_disk
from tests.support.small_state import HORIZON_S, LATENESS_S, query, tables
from tests.support.spark_query import Query, Run


@pytest.fixture(params=["pack", "group"])
def writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which pass writes the files: on one machine, or on a cluster."""
    name: str = request.param
    monkeypatch.setattr(plans, "who_writes_bodies", lambda _: name)
    return name


def files(spark: SparkSession) -> list[Path]:
    """The files of all queries of the session."""
    roots = Path(str(spark.conf.get("spark.local.dir"))).glob(f"*/{FOLDER}")
    return [path for root in roots for path in root.rglob("*") if path.is_file()]


def of_query(spark: SparkSession, made: Query) -> list[Path]:
    query_id = next(p.name for p in made.catalog.iterdir() if p.is_dir() and "-" in p.name)
    return [path for path in files(spark) if query_id in path.parts]


def test_rows_pass_through_a_file_that_is_gone_in_the_next_micro_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    given = tables(3)
    made = query(spark, tmp_path, given)
    seen: list[tuple[set[str], int]] = []

    def look(df: DataFrame) -> list[Any]:
        rows = to_arrow(df).to_pylist()
        found = of_query(spark, made)
        epochs = {path.parent.name.partition("-")[0] for path in found}
        seen.append((epochs, sum(path.stat().st_size for path in found)))
        return rows

    Oracle(HORIZON_S, LATENESS_S).check(given, made.run(look))
    assert [epochs for epochs, _ in seen] == [{f"{number:012d}"} for number in range(3)]
    assert all(size > 800 * 8 for _, size in seen)


def test_a_cluster_keeps_no_file(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "who_writes_bodies", lambda _: "group")
    seen = str(tmp_path / "seen")
    monkeypatch.setattr(build, "unpack", acting(lambda _: open(seen, "w").close()))
    given = tables(2)
    made = query(spark, tmp_path / "query", given)
    Oracle(HORIZON_S, LATENESS_S).check(given, made.run())
    assert of_query(spark, made) == []
    assert (tmp_path / "seen").exists(), "the bodies came without places"


def acting(act: Callable[[str], None]) -> Callable[..., Any]:
    """Unpack, which acts on each file that holds bodies of a batch."""

    def acted(plan: Any, batches: Any) -> Iterator[Any]:
        from dedup.spark.executor import bodies, unpack

        def looked_at() -> Iterator[Any]:
            for batch in batches:
                for body in batch.column("body"):
                    if body.is_valid and body.as_py()[:4] == bodies._MAGIC:
                        act(body.as_py()[bodies._PLACE.size :].decode())
                yield batch

        yield from unpack.unpack(plan, looked_at())

    return acted


def test_a_batch_leaves_no_file_however_much_of_it_is_read(spark: SparkSession) -> None:
    before = set(files(spark))
    frame = spark.range(1000).selectExpr("cast(id % 700 AS string) id", "id AS number")
    unique = frame.transform(dedup_by_id("id", horizon="1 day"))
    assert to_arrow(unique.limit(1)).num_rows == 1
    assert to_arrow(unique).num_rows == 700
    assert set(files(spark)) == before


def test_only_unencrypted_streams_write_bodies_to_files(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = spark.readStream.format("rate").load()
    assert plans.who_writes_bodies(stream) == "pack"
    assert plans.who_writes_bodies(spark.range(1).toDF("id")) == "none"
    # A master other than this session's changes nothing.
    spark.conf.set("spark.master", "spark://elsewhere:7077")
    assert plans.who_writes_bodies(stream) == "pack"
    # Only at the start of a session can it be set.
    monkeypatch.setattr(checks, "setting", lambda *_: "true")
    assert plans.who_writes_bodies(stream) == "none"


def damage(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(40)
        file.write(b"damage")


def remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize(("harm", "text"), [(damage, "is damaged"), (remove, "is gone")])
def test_a_damaged_or_missing_file_of_bodies_loses_no_row(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str,
    harm: Callable[[str], None], text: str,
) -> None:  # fmt: skip
    """On one machine the query stops. On a cluster the retried task sends rows through Spark."""
    if writer == "pack":
        stops_and_goes_on(spark, tmp_path, monkeypatch, "unpack", acting(harm), text)
        return
    monkeypatch.setattr(build, "unpack", acting(harm))
    given = tables(2)
    Oracle(HORIZON_S, LATENESS_S).check(given, query(spark, tmp_path, given).run())


def test_a_full_disk_stops_the_query_until_there_is_room(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        local = str(disk)

        def elsewhere(plan: Any, batches: Any) -> Iterator[Any]:
            import os
            from unittest.mock import patch

            from dedup.spark.executor import pack

            with patch.dict(os.environ, {"SPARK_LOCAL_DIRS": local}):
                yield from pack.pack(plan, batches)

        fill(disk)
        text = "No space left on device"
        stops_and_goes_on(spark, tmp_path, monkeypatch, "pack", elsewhere, text)


def stops_and_goes_on(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str,
    faulty: Callable[..., Any], text: str,
) -> None:  # fmt: skip
    """A pass fails for good in the second micro-batch; without the fault the query completes."""
    given: list[pa.Table] = tables(2)
    made = query(spark, folder / "query", given[:1])
    run: Run = made.run()
    made.add_table(given[1])
    with monkeypatch.context() as patched:
        patched.setattr(build, name, faulty)
        with pytest.raises(StreamingQueryException) as failure:
            made.run()
    found = cause(failure.value)
    assert type(found) is DedupError
    assert text in str(found)
    assert found.remedy == "local-disk"
    run.rows |= made.run().rows
    Oracle(HORIZON_S, LATENESS_S).check(given, run)


def test_two_actions_have_the_same_rows(spark: SparkSession, tmp_path: Path, writer: str) -> None:
    given = tables(2)
    made = query(spark, tmp_path, given)
    left: list[tuple[int, bool]] = []

    def twice(df: DataFrame) -> list[Any]:
        first = to_arrow(df)
        before = of_query(spark, made)
        second = to_arrow(df)
        left.append((len(before), set(before) <= set(of_query(spark, made))))
        assert first.sort_by("n").equals(second.sort_by("n"))
        return second.to_pylist()

    Oracle(HORIZON_S, LATENESS_S).check(given, made.run(twice))
    assert [(count > 0, stay) for count, stay in left] == [(writer == "pack", True)] * 2


@pytest.mark.slow
def test_a_restart_deletes_the_files_of_failed_starts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One copy of the micro-batch's rows remains after any number of failed starts."""
    given: list[pa.Table] = tables(1)
    made = query(spark, tmp_path, given)

    def broken(plan: Any, batches: Any) -> Iterator[Any]:
        yield from ()
        raise RuntimeError("made to fail for good")

    with monkeypatch.context() as patched:
        patched.setattr(build, "unpack", broken)
        for _ in range(2):
            with pytest.raises(StreamingQueryException, match="made to fail for good"):
                made.run()
    assert len({path.parent for path in of_query(spark, made)}) == 1
    Oracle(HORIZON_S, LATENESS_S).check(given, made.run())
    assert len({path.parent for path in of_query(spark, made)}) == 1
