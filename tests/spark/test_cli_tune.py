"""`dedup tune` on real Spark: what a sample and a catalog tell is what the operator does."""

from __future__ import annotations

import inspect
import json
import os
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from dedup.cli import tune as tune_sample
from dedup.errors import ConfigError, DataError
from dedup.spark.driver.operator import dedup_by_id
from dedup.spark.options import BY_ID
from dedup.tools.check.facts import SHARE_BYTES
from dedup.tools.tuning import sample as reading
from dedup.tools.tuning.demand import Demand, Sizing
from dedup.tools.tuning.sample import Sample, of_sample, without_future
from dedup.values.duration import duration_ms
from tests.support.cli_job import FileDrop, Job
from tests.support.needs import needs_spark_4
from tests.support.processes import dedup

START = datetime(2026, 5, 1, tzinfo=UTC)


def events(files: int = 12, per_file: int = 500) -> list[list[tuple[str, datetime]]]:
    """Two hours a file; repeats of all ages, with their own times."""
    rng = np.random.default_rng(3)
    made: list[list[tuple[str, datetime]]] = []
    for number in range(files):
        rows = []
        for n in range(per_file):
            at = START + timedelta(hours=2 * number, seconds=7200 * n / per_file)
            old = number and n % 10 == 0
            name = f"id-{rng.integers(0, number * per_file) if old else number * per_file + n:06d}"
            rows.append((name, at))
        made.append(rows)
    return made


def base(**fields: Any) -> Demand:
    return Demand(
        **{"origin": "", "ids_per_day": 0.0, "horizon_ms": 36_000_000, "lateness_ms": 3_600_000,
           "shards": 2, "cores": 2} | fields
    )  # fmt: skip


def table(rows: list[tuple[str, datetime]]) -> pa.Table:
    return pa.table({"id": [name for name, _ in rows], "at": [at for _, at in rows]})


def read(job: Job, **options: Any) -> Sample:
    given = {"input": job.files.folder, "id": ("id",), "timestamp": "at", **options}
    return tune_sample.read_sample(**given, spark=job.spark)


@pytest.mark.slow
def test_a_sample_predicts_the_repeats_that_the_operator_emits(job: Job, tmp_path: Path) -> None:
    samples = []
    for file_format in ("csv.gz", "json", "parquet"):
        files = FileDrop(tmp_path / file_format)
        for number, rows in enumerate(events()):
            written = rows if file_format == "parquet" else [(i, at.isoformat()) for i, at in rows]
            files.table(f"{number:02d}.{file_format}", table(written))
        samples.append(read(job, input=files.folder))
    assert {tuple(sample.times_ms) for sample in samples} == {tuple(samples[0].times_ms)}
    assert len({tuple(sample.keys[i] for i in range(6000)) for sample in samples}) == 1
    sample = samples[0]
    found = of_sample(base(), sample, None)
    assert found.repeats is not None
    outcome = job(
        input=files.folder, horizon="10 hours", timestamp="at", lateness="1 hour",
        files_per_trigger=4,
    )  # fmt: skip
    counts = outcome.figures.counts
    assert found.repeats.records == counts["records_in"] == 6000
    repeated = len(found.repeats.apart_ms)
    again = int((found.repeats.apart_ms > found.horizon_ms).sum())
    # Distances count from the first copy; the operator counts from the last one that passed.
    assert 0 < counts["unique"] - (6000 - repeated) <= again
    assert again < 1.3 * (counts["unique"] - (6000 - repeated))
    assert found.ids_per_day == pytest.approx(6000 - repeated, rel=0.02)
    assert found.duplicates == pytest.approx(repeated / 6000)
    assert found.key_bytes == 1 + len("id-000000")


@needs_spark_4
def test_parquet_that_spark_cannot_read_is_sampled(job: Job) -> None:
    names = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(100)]
    raw = pa.array([UUID(name).bytes for name in names], pa.binary(16))
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), raw)
    times = [START + timedelta(minutes=number) for number in range(100)]
    micros = pa.table({"id": pa.array(names), "at": pa.array(times, pa.timestamp("us"))})
    for folder in ("day=0", "day=1"):
        (job.files.folder / folder).mkdir()
    job.files.table("day=1/1.parquet", micros)
    plain = read(job)
    nanos = pa.table({"id": uuids, "at": pa.array(times, pa.timestamp("ns"))})
    job.files.table("day=0/2.parquet", nanos)
    os.utime(job.files.folder / "day=1/1.parquet", (2, 2))
    os.utime(job.files.folder / "day=0/2.parquet", (1, 1))
    both = read(job)
    assert 30 < plain.row_bytes < 90
    assert both.row_bytes == pytest.approx(plain.row_bytes, rel=0.1)
    assert list(both.times_ms) == 2 * list(plain.times_ms)
    assert [both.keys[i] for i in range(200)] == 2 * [plain.keys[i] for i in range(100)]
    assert list(both.files) == [0] * 100 + [1] * 100
    with pytest.raises(ConfigError, match=r"no such column; its columns, .*'at'"):
        read(job, id=("other",))
    assert len(read(job, input=job.files.folder / "day=0/2.parquet")) == 100
    cut = nanos["at"].cast(pa.int64()).to_numpy() + 1
    odd = micros.set_column(1, "at", pa.array(cut).cast(pa.timestamp("ns")))
    job.files.table("day=0/3.parquet", odd)
    with pytest.raises(DataError, match=r"day=0/3.parquet: its column 'at' .*nanoseconds"):
        read(job)


@pytest.mark.slow
def test_tune_runs_from_the_shell_with_its_own_session(tmp_path: Path) -> None:
    """It reads, measures, and writes only JSON to stdout."""
    files = FileDrop(tmp_path / "in")
    for number, rows in enumerate(events(files=4)):
        lines = [f"{name};{at:%d.%m.%Y %H:%M:%S}" for name, at in rows]
        files.text(f"{number}.csv", "\n".join(["id;at", *lines]))
    arguments = [
        "tune", "--sample", str(files.folder), "--id", "id", "--timestamp", "at",
        "--timestamp-format", "dd.MM.yyyy HH:mm:ss", "--read-option", "sep=;",
        "--horizon", "5 hours", "--json", "--quiet",
    ]  # fmt: skip
    done = dedup(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    body = json.loads(done.stdout)
    assert body["origin"] == f"2,000 records of {files.folder}"
    assert body["false_negatives"] == 0
    horizon = next(f for f in body["findings"] if f["rule"] == "horizon")
    assert horizon["level"] == "breaks the guarantee"


def test_tune_assumes_the_defaults_of_the_operator() -> None:
    default = {name: p.default for name, p in inspect.signature(dedup_by_id).parameters.items()}
    taken = {**asdict(Sizing()), "cache_bytes": None, "max_shard_batch_bytes": SHARE_BYTES}
    assert taken == {
        name: BY_ID[name].check(default[name]) if name.endswith("bytes") else default[name]
        for name in taken
    }
    now_ms, future_ms = 1_000, duration_ms(default["max_future"], option="max_future")
    times_ms = np.array([0, now_ms + future_ms, now_ms + future_ms + 1])
    held_ms = without_future(times_ms, np.zeros(3, np.int64), now_ms)
    assert held_ms.tolist() == [0, now_ms + future_ms, now_ms + future_ms]


def test_a_large_sample_is_thinned_by_id(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, rows in enumerate(events()):
        job.files.table(f"{number:02d}.parquet", table(rows))
    whole = read(job)
    monkeypatch.setattr(reading, "MAX_RECORDS", 2000)
    thin = read(job)
    assert thin.one_in == 3
    assert len(thin) == pytest.approx(2000, rel=0.15)
    all_keys = [whole.keys[i] for i in range(len(whole))]
    kept = {thin.keys[i] for i in range(len(thin))}
    # All copies of an ID that stays are there.
    assert len(thin) == sum(key in kept for key in all_keys)
    one, third = (of_sample(base(), s, None) for s in (whole, thin))
    assert third.ids_per_day == pytest.approx(one.ids_per_day, rel=0.1)


def test_a_sample_skips_nulls_and_rejects_unsuitable_columns(job: Job) -> None:
    rows = {"id": ["a", None, "b", "a"], "at": [START, START, None, START + timedelta(hours=1)],
            "x": [1.0, 2.0, 3.0, 4.0]}  # fmt: skip
    job.files.table("1.parquet", pa.table(rows))
    assert len(read(job)) == 2
    timeless = read(job, timestamp=None)
    assert (len(timeless), timeless.times_ms) == (3, None)
    assert len(read(job, id=("id", "at"), timestamp=None)) == 4
    for wrong, said in (
        ({"id": ("nope",)}, "--id nope: INPUT has no such column"),
        ({"id": ("x",)}, "ID column 'x' is double"),
        ({"timestamp": "x"}, "--timestamp x is a column of numbers .double."),
    ):
        with pytest.raises(ConfigError, match=said):
            read(job, **wrong)


@pytest.mark.parametrize("timestamp_format", [None, "dd.MM.yyyy", "seconds"])
def test_an_invalid_time_in_a_sample_is_reported_with_its_line(
    job: Job, timestamp_format: str | None
) -> None:
    job.files.text("1.csv", "id,at\na,2024-01-01 00:00:00\nb,soon")
    with pytest.raises(DataError) as refused:
        read(job, timestamp_format=timestamp_format)
    said = refused.value.text
    line = 3 if timestamp_format is None else 2
    assert f"1.csv cannot be read: at is not a time. It is line {line}: " in said
    assert said.endswith("Fix it, or take its file out of the sample, and run again.")


def test_a_sample_may_hold_any_column_and_future_timestamps(job: Job) -> None:
    """A column `batch` is allowed, and one stray timestamp makes no other record late."""
    for number in range(3):
        times = [START.replace(year=2024, hour=number), START.replace(year=2099)]
        names = [f"{number}", f"{number} stray"]
        job.files.table(f"{number}.parquet", pa.table({"id": names, "at": times, "batch": [1, 2]}))
    found = of_sample(base(), read(job), None)
    assert found.repeats is not None
    assert found.repeats.span_ms == 2 * 3_600_000
    assert not found.repeats.behind_ms.any()


@needs_spark_4
def test_a_sample_with_a_type_that_python_lacks_shows_no_size_of_rows(job: Job) -> None:
    rows = job.spark.range(3).selectExpr("string(id) AS id", "interval '1' year AS span")
    rows.write.parquet(str(job.files.folder / "rows"))
    frame = job.spark.read.parquet(str(job.files.folder / "rows"))
    sample = reading.read_sample(frame, "id")
    assert (len(sample), sample.row_bytes) == (3, 0)


def test_a_sample_of_one_file_excludes_the_other_files_of_its_folder(
    job: Job, tmp_path: Path
) -> None:
    files = FileDrop(tmp_path / "of [may] {1}")
    for name in ("a", "b"):
        files.table(f"{name}.parquet", table([(name, START)]))
    sample = read(job, input=files.folder / "b.parquet")
    assert [key[1:] for key in [sample.keys[i] for i in range(len(sample.files))]] == [b"b"]
    assert len(read(job, input=files.folder).files) == 2


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("1.json", b'{"id": "a", "id": "b"}\n', "a key occurs twice in an object"),
        ("1.json", b'{"id": "a"}\n{"id": "b"} x\n', "It is line 2"),
        ("1.csv", b"id,v\na,1\nb,1.5\n", "v does not fit int. It is line 3: b,1.5."),
        ("1.csv", b"id,v\ncaf\xe9,1\n", "It is not valid UTF-8. It is line 2: caf"),
    ],
    ids=["key twice", "behind the value", "type", "bytes"],
)
def test_a_sample_is_read_as_strictly_as_the_input_of_a_run(
    job: Job, name: str, text: bytes, fault: str
) -> None:
    (job.files.folder / name).write_bytes(text)
    with pytest.raises(DataError) as failed:
        read(job, timestamp=None, schema="id STRING, v INT")
    assert fault in str(failed.value)
    assert "--bad-records" not in str(failed.value)
