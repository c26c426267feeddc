"""Between a micro-batch that is published and its replay nothing may change that judges it."""

from __future__ import annotations

import shutil

from dedup.cli.failures import DAMAGE, FAILED
from tests.support.cli_job import Job


def test_other_rules_wait_until_it_is_finished(job: Job) -> None:
    job.files.text("1.csv", "id,x\na,1\nb,1\n")
    job(horizon="1 day")
    job.lose_last_commit()
    for option, text in (
        ({"horizon": "2 days"}, "--horizon is 2 days now and was 1 day"),
        ({"null_ids": "drop"}, "--null-ids is drop now and was emit"),
        ({"new_columns": "ignore"}, "--new-columns is ignore now and was error"),
    ):
        failure = job.fails(**option)
        assert text in failure.message
        assert "ended inside micro-batch 0" in failure.message
    again = job(horizon="1 day")
    assert again.figures.batches == 1
    job.files.text("2.csv", "id,x\na,2\nc,2\n")
    job(horizon="2 days", null_ids="drop", new_columns="ignore")
    assert job.rows() == [("a", "1"), ("b", "1"), ("c", "2")]


def test_a_side_output_that_is_published_alone_counts_as_well(job: Job) -> None:
    """A kill between the two publications: under other rules the rows would be in neither."""
    duplicates = job.output.with_name("duplicates")
    job.files.text("1.csv", "id,x\na,1\na,2\n,3\n,4\n")
    job(horizon="1 day", duplicates=duplicates)
    job.lose_last_commit()
    shutil.rmtree(job.output / "batch=0")
    failure = job.fails(horizon="1 day", duplicates=duplicates, null_ids="drop")
    assert "--null-ids is drop now and was emit" in failure.message
    job(horizon="1 day", duplicates=duplicates)
    assert len(job.rows()) == 3


def test_a_column_that_the_output_folders_would_hide(job: Job) -> None:
    job.files.text("1.csv", "id,batch\na,lot-7\n")
    failure = job.fails()
    assert "INPUT has a column 'batch'" in failure.message
    assert failure.exit_code != FAILED


def test_a_shard_that_went_back_stops_the_run(job: Job) -> None:
    """Another partition's state file is in the place of the newest one: Spark cannot tell."""
    for number in range(3):
        job.files.text(f"{number}.csv", "id\n" + "".join(f"{number}-{n}\n" for n in range(40)))
        if number < 2:
            job(shards=2)
    state = job.output / "_checkpoint" / "state" / "0"
    one, other = (next((state / shard).glob("2.[dc]*")) for shard in "01")
    one.with_name(f".{one.name}.crc").unlink(missing_ok=True)
    shutil.copyfile(other, one)
    failure = job.fails(shards=2)
    assert failure.exit_code == DAMAGE
    assert failure.remedy == "damaged-state"
    assert "micro-batches older than the others" in failure.message
