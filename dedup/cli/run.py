"""`dedup run`: files in, operator, folders out, and what to say about it."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dedup.cli.figures import Figures
from dedup.cli.file_log import files_taken
from dedup.cli.job import Job, resolve, schema_of, transform
from dedup.cli.output_folder import LOG, Record, checkpoint_query_id, exclusive
from dedup.cli.progress import Reporter
from dedup.cli.run_options import VERDICT, RunOptions
from dedup.cli.run_progress import RunProgress
from dedup.cli.session import spark_session
from dedup.cli.source import writer_options
from dedup.sinks.staged import StagedFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

_POLL_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended, where it did not fail.

    Parameters
    ----------
    figures : Figures
        Of this run alone.
    query_id : str or None
        None if no micro-batch was ever needed.
    interrupted : bool
        Stopped on request; the next run goes on where it stopped.
    """

    figures: Figures
    query_id: str | None
    interrupted: bool


def run(
    options: RunOptions,
    reporter: Reporter,
    *,
    stop: threading.Event | None = None,
    spark: SparkSession | None = None,
) -> Outcome:
    """De-duplicate the files that are there now and that no earlier run took.

    Parameters
    ----------
    options : RunOptions
        Checked ones.
    reporter : Reporter
        Hears of the progress; left open.
    stop : threading.Event, optional
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
        job = resolve(options)
        if job.files.left_out:
            reporter.note(
                f"{job.files.left_out} files in INPUT are not named as {job.files.file_format} "
                "and are left out."
            )
        session = stack.enter_context(_session(job, spark, options.output / LOG))
        schema = schema_of(session, job)
        stream = transform(session, job, schema)
        return _drain(stream, job, schema, reporter, stop or threading.Event())


def plan(options: RunOptions, *, spark: SparkSession | None = None) -> dict[str, Any]:
    """Check everything that `run` would check, and say what it would do.

    Only names and columns are read; an output folder that is absent stays so.
    """
    job = resolve(options)
    made = _missing_parents([options.output, options.catalog, options.checkpoint])
    with tempfile.TemporaryDirectory(prefix="dedup-log-") as scratch:
        try:
            with _session(job, spark, Path(scratch) / LOG) as session:
                schema = schema_of(session, job)
                result = transform(session, job, schema)
                file_format, settings = writer_options(job.options, job.files)
                return {
                    **job.options.to_json(),
                    "shards": job.shards,
                    "columns": schema.simpleString(),
                    "output_columns": result.schema.simpleString(),
                    "output_format": file_format,
                    "output_options": settings,
                    "files": len(job.files.paths),
                    "files_taken_before": sum(files_taken(options.checkpoint).values()),
                    "new_output": job.record is None,
                }
        finally:
            _remove_empty(made)


def _session(
    job: Job, spark: SparkSession | None, log: Path
) -> AbstractContextManager[SparkSession]:
    if spark is not None:
        return nullcontext(spark)
    options = job.options
    return spark_session(
        master=options.master, driver_memory=options.driver_memory, shards=job.shards, log=log
    )


def _sink(job: Job) -> StagedFiles:
    file_format, settings = writer_options(job.options, job.files)
    goes_on = {"unique"}
    if job.options.late == "emit":
        goes_on.add("late")
    if job.options.null_ids == "emit":
        goes_on.add("null_id")
    return StagedFiles(
        output=job.options.output,
        file_format=file_format,
        write_options=settings,
        duplicates=job.options.duplicates,
        verdict=VERDICT,
        goes_on=frozenset(goes_on),
    )


def _drain(
    stream: DataFrame, job: Job, schema: StructType, reporter: Reporter, stop: threading.Event
) -> Outcome:
    options = job.options
    sink = _sink(job)
    sink.open()
    record = job.record or Record(
        options=options.fixed(),
        schema=schema.jsonValue(),
        pattern=job.files.pattern,
        partitioned=job.files.partitioned,
        compressed=job.files.compressed,
        shards=job.shards,
        rules=options.rules(),
    )
    record = replace(record, rules=options.rules())
    if record != job.record:
        record.write(options.output)
    failures: list[Exception] = []

    def publish(batch: DataFrame, batch_id: int) -> None:
        nonlocal record
        try:
            if record.query_id is None:
                # Before the first batch shows: from then on no other checkpoint may write here.
                record = replace(record, query_id=checkpoint_query_id(options.checkpoint))
                record.write(options.output)
            sink(batch, batch_id)
        except Exception as error:
            failures.append(error)
            raise

    before = sum(files_taken(options.checkpoint).values())
    progress = RunProgress(options.checkpoint, before, len(job.files.paths), sink.goes_on, reporter)
    query = (
        stream.writeStream.foreachBatch(publish)
        .option("checkpointLocation", str(options.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        interrupted = _wait(query, progress, stop)
        progress.look(query)
        if not progress.figures.batches and not interrupted:
            reporter.note("No new files.")
    except Exception as error:
        # The sink's own exception is the cause; Spark's wraps its text twice.
        raise (failures[-1] if failures else error) from None
    finally:
        if query.isActive:
            query.stop()
        sink.close()
    return Outcome(figures=progress.figures, query_id=record.query_id, interrupted=interrupted)


def _wait(query: StreamingQuery, progress: RunProgress, stop: threading.Event) -> bool:
    """Wait for the end; True if `stop` came first."""
    while query.isActive:
        if stop.wait(_POLL_S):
            progress.reporter.note("Stopping; the unfinished micro-batch is left for the next run.")
            query.stop()
            return True
        progress.look(query)
    query.awaitTermination()
    return False


def _missing_parents(paths: Iterable[Path]) -> list[Path]:
    """Folders that do not exist yet, on the way to the given ones, the deepest first."""
    found = {p for path in paths for p in (path, *path.parents) if not p.exists()}
    return sorted(found, key=lambda p: len(p.parts), reverse=True)


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
