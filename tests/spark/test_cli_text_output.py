"""`dedup run` writes CSV and JSON by its own tasks, whatever the input is."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dedup.cli.failures import USAGE
from dedup.cli.run.work import plan
from tests.support.cli_job import Job
from tests.support.needs import long, needs_spark_4


def texts(folder: Path, ending: str = "csv") -> dict[str, str]:
    """Contents of the files by folder. Each folder has one file."""
    found = {}
    for path in sorted(folder.glob("batch=*/**/*")):
        if path.is_file():
            assert path.name.endswith(f".{ending}")
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            place = str(path.parent.relative_to(folder))
            assert place not in found
            found[place] = data.decode()
    return found


def test_csv_output_keeps_the_dialect_of_the_input(job: Job) -> None:
    rows = '#id;text\n"#1";\\\n2;"a;b"\n3;\'\'\n4;"say ""x"""\n'
    job.files.text("1.csv", rows)
    job(id=("#id",), read_options=(("SEP", ";"),), shards=1)
    head, *lines = texts(job.output)["batch=0"].splitlines()
    assert head == '"#id";text'
    assert sorted(lines) == sorted(rows.splitlines()[1:])


@pytest.mark.parametrize(
    ("options", "row", "written"),
    [
        ((("quote", ""),), '#1,say "x"', '#1,say "x"'),
        long((("escape", "'"), ("quote", "'")), "'#1','it''s'", "'#1','it''s'"),
        long((("escape", "\\"),), '#1,"a\\"b\\\\,"', '"#1","a\\"b\\\\,"'),
        ((("header", "false"),), "1,", "1,"),
    ],
)
def test_quotes_and_escapes_are_written_as_in_the_input(
    job: Job, options: tuple[tuple[str, str], ...], row: str, written: str
) -> None:
    head = "" if options[0][0] == "header" else "a,b\n"
    job.files.text("1.csv", f"{head}{row}\n")
    job(id=("_c0" if not head else "a",), read_options=options)
    assert texts(job.output) == {"batch=0": f"{head}{written}\n"}


@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_a_micro_batch_without_unique_rows_has_an_empty_file(job: Job, file_format: str) -> None:
    """Each verdict has a folder. All files are compressed, because the input is."""
    ending = f"{file_format}.gz"
    for number in range(2):
        job.files.table(
            f"{number}.{ending}", pa.table({"id": ["a"], "x": pa.nulls(1, pa.string())})
        )
    job(duplicates=job.duplicates, shards=1)
    head = "id,x\n" if file_format == "csv" else ""
    row = "a,\n" if file_format == "csv" else '{"id":"a","x":null}\n'
    assert texts(job.output, ending) == {"batch=0": head + row, "batch=1": head}
    assert texts(job.duplicates, ending) == {
        "batch=0/dedup_verdict=duplicate": head, "batch=1/dedup_verdict=duplicate": head + row,
    }  # fmt: skip


@pytest.mark.parametrize("parquet", ["auto", long("spark")])
@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_wide_parquet_rows_are_written_as_text(job: Job, file_format: str, parquet: str) -> None:
    rows = {f"c{n}": [f"{n} {row} " + "é" * 1000 for row in range(300)] for n in range(60)}
    pq.write_table(pa.table(rows), job.files.folder / "1.parquet")
    given = {"id": ("c0",), "output_format": file_format, "parquet": parquet}
    planned = plan(job.made(**given), spark=job.spark)
    assert planned["written_by"] == "dedup"
    assert (planned["read_by"] == "dedup") == (parquet == "auto")
    job(**given)
    found = set(job.rows(file_format))
    columns = sorted(rows) if file_format == "json" else list(rows)
    assert found == set(zip(*(rows[name] for name in columns), strict=True))


@pytest.mark.parametrize("kind", ["INTERVAL DAY TO SECOND", *map(long, ("VARIANT", "STRUCT<>"))])
def test_a_type_that_text_cannot_hold_is_rejected_at_the_start(job: Job, kind: str) -> None:
    job.files.text("1.json", '{"id": "a"}\n')
    failure = job.fails(schema=f"id STRING, x {kind}")
    assert failure.exit_code == USAGE
    assert "--output-format json has no text for the column 'x'" in failure.message
    assert not (job.output / "_catalog").exists()


@needs_spark_4
def test_strings_with_a_collation_are_written_as_text(job: Job) -> None:
    job.files.text("1.json", '{"id": "a", "x": ["B"]}\n')
    job(schema="id STRING, x ARRAY<STRING COLLATE UTF8_LCASE>")
    assert texts(job.output, "json") == {"batch=0": '{"id":"a","x":["B"]}\n'}
