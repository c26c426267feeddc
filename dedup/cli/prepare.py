"""`dedup prepare`: starts Spark for small runs, and writes the loaded Java classes to a file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from dedup.cli import made_events as made
from dedup.cli.class_archive import cache_folder, class_archive, keep, use_option
from dedup.cli.commands import Done
from dedup.cli.failures import OK
from dedup.cli.flags import PrepareFlags
from dedup.cli.run.options import RunOptions
from dedup.cli.run.progress import Reporter, reporting
from dedup.cli.run.work import run
from dedup.cli.session import last_line, spark_session
from dedup.errors import DedupError
from dedup.values.duration import format_ms, size

_EVENTS = 5_000
_SEED = 1


def prepare(flags: PrepareFlags) -> Done:
    archive, status = class_archive(), "there"
    how = "was ready before (--again replaces it)"
    if archive is None or flags.again:
        with reporting(quiet=flags.quiet) as reporter:
            reporter.note(
                "Spark starts and de-duplicates some files, to see which classes it needs."
            )
            archive, status, how = _written(), "made", "is ready"
    size_bytes, java_option = archive.stat().st_size, use_option(archive)
    lines = [
        f"The archive {how}: {archive}, {size(size_bytes)}.",
        "Every dedup command uses it from now on. For other sessions of Spark, set",
        f"  spark.driver.extraJavaOptions  {java_option}",
    ]
    body = {
        "status": status,
        "file": str(archive),
        "size_bytes": size_bytes,
        "java_option": java_option,
    }
    return Done(OK, body, [] if flags.quiet else lines)


def _written() -> Path:
    cache_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="making-", dir=cache_folder()) as scratch:
        folder = Path(scratch)
        written, log = folder / "archive", folder / "spark.log"
        runs = _runs(folder)
        with spark_session(
            master=runs[0].master,
            driver_memory=runs[0].driver_memory,
            shards=runs[0].cores,
            log=log,
            archive_to=written,
        ) as session:
            for options in runs:
                run(options, Reporter(), spark=session)
        if not written.exists():
            raise DedupError(
                "Java ended without an archive of its classes. Spark works without one, as before. "
                f"What Java printed last: {last_line(log)}"
            )
        return keep(written)


def _runs(folder: Path) -> list[RunOptions]:
    """Return a run that uses our Parquet reader and writer, and a run that uses Spark's."""
    stream, _ = made.make_stream(_EVENTS, _SEED)
    made.write_files(stream, folder / "parquet")
    some = pq.read_table(min((folder / "parquet").iterdir()))
    (folder / "csv").mkdir()
    pa.csv.write_csv(some, folder / "csv" / "some.csv")

    def options(name: str, **extra: Any) -> RunOptions:
        return RunOptions.make(
            id=("event_id",),
            horizon=format_ms(made.HORIZON_MS),
            output=folder / name / "output",
            duplicates=folder / name / "duplicates",
            driver_memory="1g",
            files_per_trigger=made.FILES // 2,
            **extra,
        )

    return [
        options("own", input=folder / "parquet", timestamp="event_time"),
        options("spark", input=folder / "csv", output_format="json"),
    ]
