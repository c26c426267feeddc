"""In which order and from which place `dedup run` takes files: none is read twice, few are late."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from dedup.cli.failures import OK
from dedup.cli.run.options import RunOptions
from dedup.cli.run.work import plan
from dedup.cli.tune import read_sample
from dedup.errors import ConfigError
from dedup.sources.files import file_log, file_order
from dedup.storage import localfile
from tests.support.cli_job import FileDrop, Job, catalog_command
from tests.support.needs import long

#: Names that a glob, a URI or Java could misread, in the order of their days.
NAMES = ("a b.csv", "a!,{x}.csv", "a%20b.csv", "b/[1]*.csv", "c\\d.csv", "d,é.csv", "e/f.csv")
TIMED = {"timestamp": "t", "lateness": "1 hour", "horizon": "9 days"}


def days(job: Job, names: tuple[str, ...] = NAMES) -> list[str]:
    """One record a file, each a day later than the one before; later files are written first."""
    names = tuple(sorted(names))
    for day, name in enumerate(names, start=1):
        path = job.files.text(name, f"id,t\nk{day},2024-01-{day:02}\n")
        os.utime(path, ns=(0, 1_700_000_000_900_000_000 - day * 7_000_000))
    return list(names)


def notes(job: Job) -> list[str]:
    """What was printed, without the progress that a slow run prints."""
    return [note for note in job.notes if "rows/s" not in note]


def taken(job: Job) -> list[str]:
    """Files in the order in which micro-batches took them."""
    names = []
    for folder in sorted(job.output.glob("batch=*"), key=lambda f: int(f.name[6:])):
        for path in folder.glob("*.csv"):
            names += [line.partition(",")[0] for line in path.read_text().split("\n")[1:] if line]
    return names


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
def test_files_are_taken_by_name_with_order_files_name(job: Job) -> None:
    names = days(job, ("1.csv", "2.csv", "3.csv"))
    for at, name in enumerate(names):
        os.utime(job.files.folder / name, (1_700_000_000 - at,) * 2)
    assert job(**TIMED).figures.counts["late"] == 2
    assert taken(job) == ["k3", "k2", "k1"]
    (told,) = notes(job)
    assert told.startswith("66.7% of this run's records are late (2 of 3): their t is further ")
    assert "--order-files name" in told
    shutil.rmtree(job.output)
    assert job(**TIMED, order_files="name").figures.counts["late"] == 0
    assert (notes(job), taken(job)) == ([], ["k1", "k2", "k3"])
    planned = plan(job.made(**TIMED, order_files="name"), spark=job.spark)
    assert (planned["files"], planned["files_taken_before"]) == (3, 3)


@pytest.mark.slow
def test_a_checkpoint_continues_in_the_other_order(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = days(job, ("1.csv", "2.csv", "3.csv"))
    job(order_files="name")
    # Killed between publication and commit: the micro-batch runs again with the files that it had.
    job.lose_last_commit()
    (job.files.folder / names[0]).rename(job.files.folder / "0.csv")
    assert job().figures.counts["duplicate"] == 1
    assert sorted(taken(job)) == ["k1", "k2", "k3"]
    assert job().figures.batches == 0


def test_too_many_late_records_stop_the_run(job: Job) -> None:
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
def test_a_published_micro_batch_is_not_stopped_for_late_records(job: Job) -> None:
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


#: Java encodes some of these in the name of a file, and some not.
ODD = "now [x] é%25\u3000#+{y}&?=1"


def given(job: Job, count: int) -> None:
    for number in range(count):
        job.files.text(f"d {number % 2}/ö%{number}.csv", f"id,x\na,{number}\nk{number},0\n")


def move_input(job: Job, name: str = ODD) -> Path:
    """Move INPUT; return where it was."""
    old = job.files.folder
    to = old.with_name(name)
    old.rename(to)
    job.files.folder = job.options["input"] = to
    return old


@pytest.mark.slow
def test_input_and_output_may_be_moved(job: Job, tmp_path: Path) -> None:
    """Spark's log has twelve entries, and the tenth repeats all earlier ones."""
    duplicates = job.output / "_duplicates"
    given(job, 12)
    job(duplicates=duplicates)
    assert (job.output / "_checkpoint" / "sources" / "0" / "9.compact").exists()
    old = move_input(job)
    job.output = job.options["output"] = job.output.rename(tmp_path / "new")
    duplicates = job.output / "_duplicates"
    failure = job.fails(duplicates=duplicates)
    assert f"INPUT is {job.files.folder} now and was {old} in the run" in failure.message
    assert f"add --moved-from {old}" in failure.message
    job.files.text("d 0/new.csv", "id,x\na,9\nnew,0\n")
    outcome = job(duplicates=duplicates, moved_from=old)
    assert (outcome.figures.files, outcome.written_again) == (1, ())
    # The option may stay, and may go.
    job.files.text("d 0/newer.csv", "id,x\nnew,9\nnewer,0\n")
    assert job(duplicates=duplicates, moved_from=old).figures.files == 1
    assert job(duplicates=duplicates).figures.files == 0
    ids = [row[0] for row in job.rows()]
    assert sorted(ids) == sorted(["a", "new", "newer", *(f"k{n}" for n in range(12))])
    assert len(job.rows(folder=duplicates)) == 13
    code, _ = catalog_command("verify", str(job.output / "_catalog"))
    assert code == OK


@pytest.mark.parametrize("published", [True, long(False)])
def test_a_half_done_micro_batch_is_finished_in_the_new_place(
    job: Job, tmp_path: Path, published: bool
) -> None:
    duplicates, new = tmp_path / "dup", tmp_path / "new"
    given(job, 2)
    job(duplicates=duplicates)
    job.lose_last_commit()
    if not published:
        shutil.rmtree(job.output / "batch=1")
    old = move_input(job)
    for path in job.files.folder.rglob("*.csv"):
        os.utime(path)  # its own copy has times
    job.output.rename(new)
    duplicates.rename(tmp_path / "copies")
    job.output = job.options["output"] = new
    job(duplicates=tmp_path / "copies", moved_from=old)
    job.files.text("3.csv", "id,x\na,9\nb,0\n")
    job(duplicates=tmp_path / "copies")
    assert sorted(row[0] for row in job.rows()) == ["a", "b", "k0", "k1"]
    assert len(job.rows(folder=tmp_path / "copies")) == 2


def test_moved_from_refuses_an_input_with_other_files(job: Job, tmp_path: Path) -> None:
    given(job, 3)
    assert "no run has written to" in job.fails(moved_from=tmp_path).message
    job()
    before = {p: p.read_bytes() for p in job.output.rglob("*") if p.is_file()}
    old = move_input(job)

    def refused(message: str, **options: object) -> None:
        assert message in job.fails(**options).message
        assert {p: p.read_bytes() for p in before} == before

    refused(f"INPUT was {old}. Give that.", moved_from=tmp_path / "elsewhere")
    refused(
        "contains the other", moved_from=old, input=shutil.copytree(job.files.folder, old / "x")
    )
    shutil.rmtree(old)
    path = job.files.folder / "d 0" / "ö%0.csv"
    text = path.read_text()
    path.write_text(text + "b,1\n")
    refused("is another file", moved_from=old)
    path.write_text(text)
    refused(
        "holds none of the 3 files that were read",
        moved_from=old, input=FileDrop(tmp_path / "other").text("x.csv", "id,x\n").parent,
    )  # fmt: skip
    # Who tidies up behind a run has fewer.
    path.unlink()
    assert job(moved_from=old).figures.files == 0
    with pytest.raises(ConfigError, match="--dry-run cannot show a run with --moved-from"):
        plan(job.made(moved_from=old), spark=job.spark)


@pytest.mark.slow
def test_a_move_that_was_killed_is_finished(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    given(job, 3)
    job()
    old = move_input(job, "new")
    done = []

    def publish(*arguments: object, **options: object) -> bool:
        if done:
            raise OSError("killed")
        done.append(arguments)
        return localfile.publish(*arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(file_log, "publish", publish)
        job.fails(moved_from=old)
    assert len(done) == 1
    # A run whose input went back gets an error, and reads nothing twice.
    job.files.folder.rename(old)
    assert "run again with its INPUT and its --moved-from" in job.fails(input=old).message
    old.rename(job.files.folder)
    job.files.text("4.csv", "id,x\na,9\nb,0\n")
    assert job(moved_from=old).figures.files == 1
    log = job.output / "_checkpoint" / "sources" / "0"
    names = [json.loads(line)["path"] for path in log.glob("[0-9]*")
             for line in path.read_text().split("\n")[1:]]  # fmt: skip
    assert all(name.startswith(f"file://{job.files.folder}/") for name in names)
    assert sorted(row[0] for row in job.rows()) == ["a", "b", "k0", "k1", "k2"]


def test_one_file_may_be_moved(job: Job) -> None:
    job.options["input"] = job.files.text("a[1].csv", "id,x\na,1\n")
    for other in ("2.csv", "sub/a[1].csv"):
        job.files.text(other, "id,x\nb,1\n")
    job()
    old = job.options["input"]
    job.options["input"] = old.rename(old.with_name("other.csv"))
    assert job(moved_from=old).figures.files == 0
    assert job.rows() == [("a", "1")]
