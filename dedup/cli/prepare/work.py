"""`dedup prepare`: small runs in a session that writes the classes it loaded to a file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from dedup.cli.demo import made_events as made
from dedup.cli.progress import Reporter
from dedup.cli.run.run_options import RunOptions
from dedup.cli.run.work import run
from dedup.cli.session import last_line, spark_session
from dedup.core.duration import format_ms, size
from dedup.errors import DedupError
from dedup.spark.driver.class_archive import cache_folder, class_archive, keep, use_option

_EVENTS = 5_000
_SEED = 1


def prepare(*, again: bool, talk: Reporter) -> dict[str, Any]:
    """Write the archive of this Java and this Spark, where there is none.

    Parameters
    ----------
    again : bool
        Write it in any case.
    talk : Reporter
        Hears of the progress.

    Returns
    -------
    dict
        ``status`` is ``made`` or ``there``; then ``file``, its ``size_bytes`` and the
        ``java_option`` that uses it.

    Raises
    ------
    DedupError
        If Java writes none.
    """
    archive, status = class_archive(), "there"
    if archive is None or again:
        talk.note("Spark starts and de-duplicates some files, to see which classes it needs.")
        archive, status = _made(), "made"
    return {
        "status": status,
        "file": str(archive),
        "size_bytes": archive.stat().st_size,
        "java_option": use_option(archive),
    }


def lines(body: dict[str, Any]) -> Iterator[str]:
    """Return what to tell of it."""
    how = "is ready" if body["status"] == "made" else "was ready before (--again makes it anew)"
    yield f"The archive {how}: {body['file']}, {size(body['size_bytes'])}."
    yield "Every dedup command uses it from now on. For sessions of your own, set"
    yield f"  spark.driver.extraJavaOptions  {body['java_option']}"


def _made() -> Path:
    cache_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="making-", dir=cache_folder()) as scratch:
        folder = Path(scratch)
        written, log = folder / "archive", folder / "spark.log"
        ways = _ways(folder)
        with spark_session(
            master=ways[0].master,
            driver_memory=ways[0].driver_memory,
            shards=ways[0].cores,
            log=log,
            archive_to=written,
        ) as session:
            for options in ways:
                run(options, Reporter(), spark=session)
        if not written.exists():
            raise DedupError(
                "Java ended without an archive of its classes. Spark works without one, as before. "
                f"What Java printed last: {last_line(log)}"
            )
        return keep(written)


def _ways(folder: Path) -> list[RunOptions]:
    stream, _ = made.make_stream(_EVENTS, _SEED)
    made.write_files(stream, folder / "parquet", _SEED)
    some = pq.read_table(min((folder / "parquet").iterdir()))
    (folder / "csv").mkdir()
    pa.csv.write_csv(some, folder / "csv" / "some.csv")

    def way(name: str, **options: Any) -> RunOptions:
        return RunOptions.make(
            id=("event_id",),
            horizon=format_ms(made.HORIZON_MS),
            output=folder / name / "output",
            duplicates=folder / name / "duplicates",
            driver_memory="1g",
            files_per_trigger=made.FILES // 2,
            **options,
        )

    return [
        way("own", input=folder / "parquet", timestamp="event_time"),
        way("spark", input=folder / "csv", output_format="json"),
    ]
