"""In which order `dedup run` takes files, and what it does if most of their records are late."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from dedup.cli.run.options import RunOptions
from dedup.cli.run.progress import Reporter
from dedup.cli.run.work import plan, run
from dedup.cli.tune import read_sample
from dedup.sources.files import file_order
from tests.support.cli_job import FileDrop, Job
from tests.support.needs import long

#: Names that a glob, a URI or Java could misread, in the order of their days.
NAMES = ("a b.csv", "a!,{x}.csv", "a%20b.csv", "b/[1]*.csv", "c\\d.csv", "d,é.csv", "e/f.csv")
TIMED = {"timestamp": "t", "lateness": "1 hour", "horizon": "9 days"}


class Notes(Reporter):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def days(job: Job, names: tuple[str, ...] = NAMES) -> list[str]:
    """One record a file, each a day later than the one before; later files are written first."""
    names = tuple(sorted(names))
    for day, name in enumerate(names, start=1):
        path = job.files.text(name, f"id,t\nk{day},2024-01-{day:02}\n")
        os.utime(path, ns=(0, 1_700_000_000_900_000_000 - day * 7_000_000))
    return list(names)


def taken(job: Job) -> list[str]:
    """Files in the order in which micro-batches took them."""
    names = []
    for folder in sorted(job.output.glob("batch=*"), key=lambda f: int(f.name[6:])):
        for path in folder.glob("*.csv"):
            names += [line.partition(",")[0] for line in path.read_text().split("\n")[1:] if line]
    return names


def run_with_notes(job: Job, **changes: Any) -> tuple[list[str], dict[str, int]]:
    notes = Notes()
    done = run(job.made(**changes), notes, spark=job.spark)
    return notes.said, done.figures.counts


@pytest.mark.parametrize("folder", [long("events"), "events [1], {a,b}/c?*"])
@pytest.mark.slow
def test_files_of_one_moment_are_taken_by_name(job: Job, tmp_path: Path, folder: str) -> None:
    job.files = FileDrop(tmp_path / folder)
    job.options["input"] = job.files.folder
    days(job)
    said, counts = run_with_notes(job, **TIMED)
    assert taken(job) == [f"k{day}" for day in range(1, len(NAMES) + 1)]
    assert (said, counts["late"], counts["unique"]) == ([], 0, len(NAMES))


def test_files_of_one_time_are_taken_by_name_in_one_query(job: Job) -> None:
    names = [f"{n:02}.csv" for n in range(1, 41)]
    for day, name in sorted(enumerate(names), key=lambda one: hash(one[1])):
        path = job.files.text(name, f"id,t\nk{day:02},2024-01-01 {day % 24}:00:00\n")
        os.utime(path, (1_700_000_000,) * 2)
    assert len(list(file_order.FileOrder().stretches(dict.fromkeys(names, 0), 10))) == 1
    job(files_per_trigger=10)
    found = taken(job)
    assert [sorted(found[at : at + 10]) for at in range(0, 40, 10)] == [
        [f"k{n:02}" for n in range(at, at + 10)] for at in range(0, 40, 10)
    ]


@pytest.mark.slow
def test_names_go_before_times_if_the_user_says_so(job: Job) -> None:
    names = days(job, ("1.csv", "2.csv", "3.csv"))
    for at, name in enumerate(names):
        os.utime(job.files.folder / name, (1_700_000_000 - at,) * 2)
    said, counts = run_with_notes(job, **TIMED)
    assert (counts["late"], taken(job)) == (2, ["k3", "k2", "k1"])
    (told,) = said
    assert told.startswith("66.7% of this run's records are late (2 of 3): their t is further ")
    assert "--order-files name" in told
    shutil.rmtree(job.output)
    said, counts = run_with_notes(job, **TIMED, order_files="name")
    assert (said, counts["late"], taken(job)) == ([], 0, ["k1", "k2", "k3"])
    planned = plan(job.made(**TIMED, order_files="name"), spark=job.spark)
    assert (planned["files"], planned["files_taken_before"]) == (3, 3)


@pytest.mark.slow
def test_a_checkpoint_of_the_other_order_goes_on(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    names = days(job, ("1.csv", "2.csv", "3.csv"))
    job(order_files="name")
    # Killed between publication and commit: the micro-batch runs again with the files that it had.
    job.lose_last_commit()
    (job.files.folder / names[0]).rename(job.files.folder / "0.csv")
    assert job().figures.counts["duplicate"] == 1
    assert sorted(taken(job)) == ["k1", "k2", "k3"]
    assert job().figures.batches == 0


def test_late_records_are_not_dropped_by_the_hundred(job: Job) -> None:
    names = days(job, ("1.csv", "2.csv", "3.csv"))
    for at, name in enumerate(names):
        os.utime(job.files.folder / name, (1_700_000_000 - at,) * 2)
    failure = job.fails(**TIMED, late="drop")
    assert failure.message.startswith("50.0% of this run's records are late (1 of 2)")
    assert "Nothing of micro-batch 1 is published" in failure.message
    assert failure.remedy == "late"
    assert (job.visible(), taken(job)) == (["batch=0"], ["k3"])
    done = job(**TIMED, late="drop", max_late=100)
    assert (done.figures.counts["late"], taken(job)) == (2, ["k3"])


@pytest.mark.slow
def test_a_micro_batch_that_is_published_is_not_stopped_for_late_records(job: Job) -> None:
    names = days(job, ("1.csv", "2.csv"))
    os.utime(job.files.folder / names[1], (1_600_000_000,) * 2)
    job(**TIMED, late="drop", max_late=50)
    job.lose_last_commit()
    assert job(**TIMED, late="drop").figures.batches == 1
    assert taken(job) == ["k2"]


def test_a_sample_is_read_in_the_order_of_a_run(job: Job, tmp_path: Path) -> None:
    names = days(job)
    options: dict[str, Any] = {"id": ("id",), "timestamp": "t", "spark": job.spark}
    job.spark.conf.set("spark.sql.session.timeZone", "UTC")
    sample = read_sample(input=str(job.files.folder), **options)
    assert sample.times_ms is not None
    assert (sample.times_ms[1:] > sample.times_ms[:-1]).all()
    for at, name in enumerate(names):
        os.utime(job.files.folder / name, (1_700_000_000 - at,) * 2)
    sample = read_sample(input=str(job.files.folder), **options)
    assert sample.times_ms is not None
    assert (sample.times_ms[1:] < sample.times_ms[:-1]).all()
    sample = read_sample(input=str(job.files.folder), **options, order_files="name")
    assert sample.times_ms is not None
    assert (sample.times_ms[1:] > sample.times_ms[:-1]).all()
    assert RunOptions.make(**job.options).order_files == "time"
