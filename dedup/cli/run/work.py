"""Do one `dedup run` from end to end, or only plan it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from dedup.cli.run.drain import Drain, RunOutcome
from dedup.cli.run.input.as_read import FilesAsRead, move_input, warning
from dedup.cli.run.input.column_check import ColumnCheck, Note
from dedup.cli.run.input.event_time import arrival_note, time_format_fault
from dedup.cli.run.input.files import file_order
from dedup.cli.run.input.inference import Inference
from dedup.cli.run.job import Job, resolve
from dedup.cli.run.options import COLUMNAR, RunOptions
from dedup.cli.run.progress import Reporter
from dedup.cli.run.query import check_columns, schema_of, transform
from dedup.cli.run.record import LOG, exclusive, is_published, unfinished_batch
from dedup.cli.session import SESSION_TIME_ZONE, spark_session
from dedup.cli.stop import StopRequest
from dedup.errors import ConfigError, DedupWarning
from dedup.sinks.files.query import FilesQuery
from dedup.sinks.foreach_batch import columns_of
from dedup.sources.files.file_log import FileLog
from dedup.spark.daemon import start_workers
from dedup.spark.driver import checks


def run(
    options: RunOptions,
    reporter: Reporter,
    *,
    stop: StopRequest | None = None,
    spark: SparkSession | None = None,
) -> RunOutcome:
    """De-duplicate all files that exist now, except those that earlier runs have read.

    A failed or killed run leaves the output complete up to its last micro-batch. Run again then. A
    request to `stop` stops the query, and the next run finishes its last micro-batch. `run` closes
    neither `reporter` nor a given session.

    Raises DedupError if options, folders, catalog or records cause the error, else Spark's error.
    `dedup.cli.failures.explain` returns the cause in one line.
    """
    with ExitStack() as stack:
        stack.enter_context(exclusive(options.output))
        move_input(options, reporter.note)
        job = resolve(options)
        if job.files.left_out:
            reporter.note(
                f"{job.files.left_out} files in INPUT are not named as {job.files.file_format} "
                "and are left out."
            )
        stop, taken = stop or StopRequest(), FileLog(options.checkpoint)
        inference = stack.enter_context(_inference(job, taken, spark, stop))
        session = stack.enter_context(_session(job, spark, options.output / LOG))
        if spark is None:
            start_workers(session)
        columns, check = _columns(session, job, taken, inference, reporter.note)
        clock = arrival_note(options, columns)
        if clock is not None and job.record is None:
            reporter.note(clock)
        queries = _queries(session, job, columns, taken, reporter.note)
        return Drain(session, job, columns, check, taken, reporter, stop).run(queries)


def plan(options: RunOptions, *, spark: SparkSession | None = None) -> dict[str, Any]:
    """Check everything that `run` would check, and return what `run` would do.

    The function publishes no rows, and leaves no output folder behind.
    """
    if options.moved_from is not None:
        raise ConfigError(
            "--dry-run cannot show a run with --moved-from, which changes the log of files."
        )
    job, places = resolve(options), (options.output, options.catalog, options.checkpoint)
    missing = {p for path in places for p in (path, *path.parents) if not p.exists()}
    taken = FileLog(options.checkpoint)
    with tempfile.TemporaryDirectory(prefix="dedup-log-") as scratch:
        try:
            with (
                _inference(job, taken, spark) as inference,
                _session(job, spark, Path(scratch) / LOG) as session,
            ):
                return _plan(session, job, taken, inference)
        finally:
            for folder in sorted(missing, key=lambda path: len(path.parts), reverse=True):
                with suppress(OSError):  # the folder does not exist, or is not empty
                    folder.rmdir()


def _plan(spark: SparkSession, job: Job, taken: FileLog, inference: Inference) -> dict[str, Any]:
    options, notes = job.options, list[str]()
    columns, _ = _columns(spark, job, taken, inference, notes.append)
    clock = arrival_note(options, columns)
    changed = FilesAsRead(options.output).changed(job.files.stamps, taken)
    notes += [clock] if clock is not None else []
    notes += [warning(changed)] if changed else []
    queries = list(_queries(spark, job, columns, taken, notes.append))
    by_spark = [each.read_by_spark for each in queries if each.read_by_spark is not None]
    return {
        **options.to_json(),
        "files_per_trigger": job.files_per_trigger,
        "shards": job.shards,
        "columns": dict(columns_of(columns)),
        "output_columns": dict(columns_of(queries[0].columns)),
        "read_by": _by(by_spark[0] if by_spark else None),
        "written_by": _by(queries[0].written_by_spark),
        "files": len(job.files.paths),
        "files_taken_before": taken.count(taken.committed()),
        "new_output": job.record is None,
        "time": "the run's own clock" if clock else f"column {options.timestamp}",
        "written_again": changed,
        "notes": notes,
    }


def _queries(
    spark: SparkSession, job: Job, columns: T.StructType, taken: FileLog, note: Note
) -> Iterator[FilesQuery]:
    ahead, once = taken.ahead(job.files.stamps), cache(note)
    # The first query also reads the files of a micro-batch that an earlier run did not commit.
    begun = [path for path in ahead if path in taken.taken]
    new = {path: job.files.stamps[path].mtime_ms for path in ahead if path not in taken.taken}
    stretches = list(file_order(job.options).stretches(new, job.files_per_trigger))
    for listed in stretches or [()]:
        part = replace(job, files=replace(job.files, listed=listed))
        with _warnings_as_notes(once):
            query = transform(spark, part, columns, [*begun, *map(str, listed)])
        if job.files.file_format == "parquet" and job.options.parquet == "auto":
            for text in query.left_to_spark():
                once(text)
        yield query
        begun = []


@contextmanager
def _warnings_as_notes(note: Note) -> Iterator[None]:
    """Print the operator's warnings without the line of code that Python adds."""
    plain = warnings.showwarning

    def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, DedupWarning):
            note(str(message))
        else:
            plain(message, category, *place, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", DedupWarning)
        warnings.showwarning = show
        yield


def _columns(
    spark: SparkSession, job: Job, taken: FileLog, inference: Inference, note: Note
) -> tuple[T.StructType, ColumnCheck]:
    """Return the columns to read and write, and an object that checks files that arrive later."""
    options, stamps, file_format = job.options, job.files.stamps, job.files.file_format
    published: list[str] = []
    begun = unfinished_batch(options)
    if begun is not None and job.record is not None:
        shown = is_published(begun, options, job.record)
        FilesAsRead(options.output).check_unfinished(taken, begun, is_published=shown)
        published = taken.unfinished() if shown else []
    current = schema_of(spark, job, inference)
    check_columns(options, current)
    if file_format not in COLUMNAR and (fault := time_format_fault(options)) is not None:
        raise ConfigError(f"--timestamp-format cannot be used: {fault}.")
    check = ColumnCheck(spark, job, current, inference, published=published)
    new = {path: stamps[path] for path in taken.ahead(stamps)}
    # With mergeSchema=false Spark does not see the columns of every file.
    is_partial = "mergeschema" in {name.lower() for name, _ in options.read_options}
    if job.record is None and file_format != "csv" and options.schema is None and not is_partial:
        # The columns come from all files, so no file needs a check.
        check.settle(current, stamps)
        return current, check
    columns = check.agree(current, new, note)
    check_columns(options, columns)
    return columns, check


@contextmanager
def _inference(
    job: Job, taken: FileLog, spark: SparkSession | None, stop: StopRequest | None = None
) -> Iterator[Inference]:
    """Yield an inference that has begun to read the new files."""
    time_zone = SESSION_TIME_ZONE if spark is None else checks.time_zone(spark)
    with closing(Inference(job, time_zone, stop)) as inference:
        inference.begin(taken.ahead(job.files.stamps))
        yield inference


def _session(
    job: Job, spark: SparkSession | None, log: Path
) -> AbstractContextManager[SparkSession]:
    if spark is not None:
        return nullcontext(spark)
    options = job.options
    return spark_session(
        master=options.master,
        driver_memory=options.driver_memory,
        shards=job.shards,
        log=log,
        is_idle=options.parquet == "auto" and job.files.file_format != "orc",
    )


def _by(why_spark: str | None) -> str:
    return "dedup" if why_spark is None else f"Spark, because {why_spark}"
