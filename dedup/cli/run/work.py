"""`dedup run`: files in, operator, folders out, and what to say about it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dedup.cli.progress import Reporter
from dedup.cli.run.drain import RunOutcome, drain
from dedup.cli.run.input.column_check import ColumnCheck
from dedup.cli.run.input.event_time import check_time_format
from dedup.cli.run.input.input_files import Stamp, file_order
from dedup.cli.run.input.moved import move_input
from dedup.cli.run.input.new_columns import Note, agree_on_columns
from dedup.cli.run.input.own_clock import own_clock
from dedup.cli.run.input.rewritten import FilesAsRead, warning
from dedup.cli.run.input.source import InputColumns, writer_options
from dedup.cli.run.job import Job, check_names, check_output_format, resolve, schema_of, transform
from dedup.cli.run.output_folder import LOG, exclusive, is_published, unfinished_batch
from dedup.cli.run.run_options import RunOptions
from dedup.cli.session import spark_session
from dedup.cli.stop import StopRequest
from dedup.core.duration import size
from dedup.errors import ConfigError, DedupWarning
from dedup.sinks.foreach_batch import columns_of
from dedup.spark.driver.file_log import FileLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dedup.sinks.files.query import FilesQuery

#: To look through so much takes some seconds.
_MUCH_BYTES = 256 << 20


def run(
    options: RunOptions,
    reporter: Reporter,
    *,
    stop: StopRequest | None = None,
    spark: SparkSession | None = None,
) -> RunOutcome:
    """De-duplicate the files that are there now and that no earlier run took.

    Parameters
    ----------
    options : RunOptions
        Checked ones.
    reporter : Reporter
        Hears of the progress; left open.
    stop : StopRequest, optional
        Set it to stop the query; its unfinished micro-batch is left for the next run.
    spark : SparkSession, optional
        Session to run in, left running. Default: one of its own, stopped at the end.

    Raises
    ------
    DedupError
        What is wrong with options, folders, catalog or records.
    Exception
        What Spark raised; `dedup.cli.failures.explain` says it in one line.

    Notes
    -----
    A failed or killed run leaves the output complete up to its last micro-batch. Run it again.
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
        session = stack.enter_context(_session(job, spark, options.output / LOG))
        taken = FileLog(options.checkpoint)
        columns, check = _columns(session, job, taken, reporter.note, stop)
        clock = own_clock(options, columns.schema)
        if clock is not None and job.record is None:
            reporter.note(clock)
        queries = _queries(session, job, columns, taken, reporter.note)
        return drain(queries, job, columns, check, taken, reporter, stop or StopRequest())


def plan(options: RunOptions, *, spark: SparkSession | None = None) -> dict[str, Any]:
    """Check everything that `run` would check, and say what it would do.

    Nothing is taken; an output folder that is absent stays so.
    """
    if options.moved_from is not None:
        raise ConfigError("--dry-run shows no run with --moved-from, which renames what was taken.")
    job = resolve(options)
    created = _missing_parents([options.output, options.catalog, options.checkpoint])
    with tempfile.TemporaryDirectory(prefix="dedup-log-") as scratch:
        try:
            with _session(job, spark, Path(scratch) / LOG) as session:
                taken, notes = FileLog(options.checkpoint), list[str]()
                columns, _ = _columns(session, job, taken, notes.append)
                clock = own_clock(options, columns.schema)
                changed = FilesAsRead(options.output).written_again(job.files.stamps, taken)
                notes += [clock] if clock is not None else []
                notes += [warning(changed)] if changed else []
                results = list(_queries(session, job, columns, taken, notes.append))
                by_spark = [r.read_by_spark for r in results if r.read_by_spark is not None]
                result = results[0]
                file_format, settings = writer_options(job.options, job.files)
                return {
                    **job.options.to_json(),
                    "shards": job.shards,
                    "columns": dict(columns_of(columns.read)),
                    "output_columns": dict(columns_of(result.columns)),
                    "output_format": file_format,
                    "output_options": settings,
                    "read_by": _by(by_spark[0] if by_spark else None),
                    "written_by": _by(result.written_by_spark),
                    "files": len(job.files.paths),
                    "files_taken_before": taken.count(taken.committed()),
                    "new_output": job.record is None,
                    "time": "the run's own clock" if clock else f"column {options.timestamp}",
                    "written_again": changed,
                    "notes": notes,
                }
        finally:
            _remove_empty(created)


def _queries(
    spark: SparkSession, job: Job, columns: InputColumns, taken: FileLog, note: Note
) -> Iterator[FilesQuery]:
    ahead, once = taken.ahead(job.files.stamps), cache(note)
    # The first query begins with the files of a micro-batch that is yet to be committed.
    begun = [path for path in ahead if path in taken.taken]
    new = {path: job.files.stamps[path].mtime_ms for path in ahead if path not in taken.taken}
    stretches = list(file_order(job.options).stretches(new, job.options.files_per_trigger))
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
    """Say what the operator warns of, without the line of our code that called it."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", DedupWarning)
        yield
    for one in found:
        if issubclass(one.category, DedupWarning):
            note(f"{one.message}")
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def _columns(
    spark: SparkSession, job: Job, taken: FileLog, note: Note, stop: StopRequest | None = None
) -> tuple[InputColumns, ColumnCheck]:
    """What is read and written, and the check of files that come later."""
    published = _published(job, taken)
    schema = schema_of(spark, job)
    current = InputColumns(schema, schema)
    check_names(job.options, current)
    check_output_format(job.options, schema)
    check_time_format(spark, job.options)
    check = ColumnCheck(spark, job, current, stop=stop, published=published)
    new = {path: job.files.stamps[path] for path in taken.ahead(job.files.stamps)}
    _tell_size(job, new, note)
    if job.record is None and _all_told(job):
        check.check_text(map(Path, new))
        check.settled(current, job.files.stamps)
        return current, check
    columns = agree_on_columns(check, job, current, new, note)
    check_names(job.options, columns)
    check_output_format(job.options, columns.schema)
    return columns, check


def _published(job: Job, taken: FileLog) -> list[str]:
    """Files of a micro-batch that is published, and has yet to be finished; as they were then."""
    begun = unfinished_batch(job.options)
    if begun is None or job.record is None:
        return []
    shown = is_published(begun, job.options, job.record)
    FilesAsRead(job.options.output).check_unfinished(taken, begun, is_published=shown)
    return taken.unfinished() if shown else []


def _tell_size(job: Job, new: Mapping[str, Stamp], note: Note) -> None:
    count = sum(stamp.size for stamp in new.values())
    if job.files.file_format == "csv" and count > _MUCH_BYTES:
        note(
            f"{len(new):,} files ({size(count)}) are looked through for what Spark would pass "
            "over, before any is taken."
        )


def _all_told(job: Job) -> bool:
    given = {name.lower() for name, _ in job.options.read_options}
    is_whole = not given & {"samplingratio", "mergeschema", "mode"}
    return job.files.file_format != "csv" and job.options.schema is None and is_whole


def _session(
    job: Job, spark: SparkSession | None, log: Path
) -> AbstractContextManager[SparkSession]:
    if spark is not None:
        return nullcontext(spark)
    options = job.options
    by_tasks = job.files.file_format == options.output_format == "parquet"
    own = options.parquet == "auto" and by_tasks and not options.timestamp_format
    return spark_session(
        master=options.master,
        driver_memory=options.driver_memory,
        shards=job.shards,
        log=log,
        is_idle=own,
    )


def _by(why_spark: str | None) -> str:
    return "dedup" if why_spark is None else f"Spark, because {why_spark}"


def _missing_parents(paths: Iterable[Path]) -> list[Path]:
    found = {p for path in paths for p in (path, *path.parents) if not p.exists()}
    return sorted(found, key=lambda p: len(p.parts), reverse=True)


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
