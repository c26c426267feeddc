"""`dedup run`: files in, operator, folders out, and what to say about it."""

from __future__ import annotations

import difflib
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dedup.cli.figures import Figures
from dedup.cli.file_log import files_taken
from dedup.cli.output_folder import (
    LOG,
    Record,
    check_query,
    check_same,
    checkpoint_query_id,
    exclusive,
)
from dedup.cli.progress import Reporter
from dedup.cli.run_options import VERDICT, RunOptions
from dedup.cli.session import spark_session
from dedup.cli.source import InputFiles, find_files, read_schema, read_stream, writer_options
from dedup.errors import ConfigError
from dedup.sinks.staged import StagedFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from dedup.spark.metrics import BatchMetrics

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


@dataclass(frozen=True, slots=True)
class _Job:
    """Options with everything resolved that an earlier run or the files decide."""

    options: RunOptions
    files: InputFiles
    record: Record | None
    shards: int


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
        job = _resolve(options)
        if job.files.left_out:
            reporter.note(
                f"{job.files.left_out} files in INPUT are not named as {job.files.file_format} "
                "and are left out."
            )
        session = stack.enter_context(_session(job, spark, options.output / LOG))
        schema = _schema(session, job)
        stream = _transform(session, job, schema)
        return _drain(stream, job, schema, reporter, stop or threading.Event())


def plan(options: RunOptions, *, spark: SparkSession | None = None) -> dict[str, Any]:
    """Check everything that `run` would check, and say what it would do.

    Only names and columns are read; an output folder that is absent stays so.
    """
    job = _resolve(options)
    made = _missing_parents([options.output, options.catalog, options.checkpoint])
    with tempfile.TemporaryDirectory(prefix="dedup-log-") as scratch:
        try:
            with _session(job, spark, Path(scratch) / LOG) as session:
                schema = _schema(session, job)
                result = _transform(session, job, schema)
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


def _resolve(options: RunOptions) -> _Job:
    record = Record.read(options.output)
    if record is not None:
        # What the first run guessed stays, whatever files came since.
        options = replace(
            options,
            file_format=options.file_format or record.options["file_format"],
            output_format=options.output_format or record.options["output_format"],
        )
    files = find_files(options)
    if record is not None:
        check_same(options, record)
        files = replace(
            files,
            pattern=record.pattern,
            partitioned=record.partitioned,
            compressed=record.compressed,
        )
    output_format = options.output_format or files.file_format
    options = replace(options, file_format=files.file_format, output_format=output_format)
    check_query(options, record)
    shards = options.shards or (record.shards if record else options.cores)
    return _Job(options, files, record, shards)


def _session(
    job: _Job, spark: SparkSession | None, log: Path
) -> AbstractContextManager[SparkSession]:
    if spark is not None:
        return nullcontext(spark)
    options = job.options
    return spark_session(
        master=options.master, driver_memory=options.driver_memory, shards=job.shards, log=log
    )


def _schema(spark: SparkSession, job: _Job) -> StructType:
    from pyspark.sql.types import StructType

    if job.record is not None:
        return StructType.fromJson(job.record.schema)
    schema = read_schema(spark, job.options, job.files)
    named = [("--id", name) for name in job.options.id]
    if job.options.timestamp is not None:
        named.append(("--timestamp", job.options.timestamp))
    for flag, name in named:
        _check_column(flag, name, schema.names)
    if job.options.duplicates is not None and VERDICT in schema.names:
        raise ConfigError(
            f"INPUT has a column {VERDICT!r}, which --duplicates adds; rename it in the input."
        )
    return schema


def _check_column(flag: str, name: str, columns: list[str]) -> None:
    if name.lower() in (column.lower() for column in columns):
        return
    near = difflib.get_close_matches(name, columns, n=3, cutoff=0.5) or columns[:8]
    raise ConfigError(
        f"{flag} {name}: INPUT has no such column; did you mean {', '.join(map(repr, near))}?"
    )


def _transform(spark: SparkSession, job: _Job, schema: StructType) -> DataFrame:
    from pyspark.sql import functions as fn
    from pyspark.sql.types import StringType

    from dedup.spark.operator import dedup_by_id

    options = job.options
    timestamp = None
    if options.timestamp is not None:
        timestamp = _column(options.timestamp)
        kinds = {field.name.lower(): field.dataType for field in schema.fields}
        if options.timestamp_format is not None:
            timestamp = fn.to_timestamp(timestamp, options.timestamp_format)
        elif isinstance(kinds[options.timestamp.lower()], StringType):
            timestamp = fn.to_timestamp(timestamp)
    chosen: dict[str, Any] = {
        name: getattr(options, name)
        for name in (
            "late",
            "null_ids",
            "lateness",
            "buckets",
            "fpr",
            "state_budget_bytes",
            "keep_expired",
        )
        if getattr(options, name) is not None
    }
    operator = dedup_by_id(
        [_column(name) for name in options.id],
        horizon=options.horizon,
        catalog=str(options.catalog),
        timestamp=timestamp,
        verdict=VERDICT if options.duplicates is not None else None,
        shards=job.shards,
        **chosen,
    )
    return read_stream(spark, options, job.files, schema).transform(operator)


def _column(name: str) -> Any:
    from pyspark.sql import functions as fn

    # A name is a name here: a dot in it asks for no field of a struct.
    return fn.col("`" + name.replace("`", "``") + "`")


def _sink(job: _Job) -> StagedFiles:
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
    stream: DataFrame, job: _Job, schema: StructType, reporter: Reporter, stop: threading.Event
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
    )
    if job.record is None:
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
    watch = _Watch(options.checkpoint, before, len(job.files.paths), sink.goes_on, reporter)
    query = (
        stream.writeStream.foreachBatch(publish)
        .option("checkpointLocation", str(options.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        interrupted = _wait(query, watch, stop)
        watch.look(query)
        if not watch.figures.batches and not interrupted:
            reporter.note("No new files.")
    except Exception as error:
        # The sink's own exception is the cause; Spark's wraps its text twice.
        raise (failures[-1] if failures else error) from None
    finally:
        if query.isActive:
            query.stop()
        sink.close()
    return Outcome(figures=watch.figures, query_id=record.query_id, interrupted=interrupted)


def _wait(query: StreamingQuery, watch: _Watch, stop: threading.Event) -> bool:
    """Wait for the end; True if `stop` came first."""
    while query.isActive:
        if stop.wait(_POLL_S):
            watch.reporter.note("Stopping; the unfinished micro-batch is left for the next run.")
            query.stop()
            return True
        watch.look(query)
    query.awaitTermination()
    return False


class _Watch:
    """Collects a query's micro-batches and reports them."""

    def __init__(
        self,
        checkpoint: Path,
        before: int,
        listed: int,
        goes_on: frozenset[str],
        reporter: Reporter,
    ) -> None:
        self.reporter = reporter
        self._goes_on = goes_on
        self._checkpoint = checkpoint
        self._before = before
        self._total = max(0, listed - before)
        self._batches: dict[int, BatchMetrics] = {}
        self._done: set[int] = set()
        self._files = 0
        self._start_s = time.monotonic()

    @property
    def figures(self) -> Figures:
        """Figures so far."""
        batches = [self._batches[key] for key in sorted(self._batches)]
        return Figures.of(
            batches,
            goes_on=self._goes_on,
            files=self._files,
            seconds=time.monotonic() - self._start_s,
        )

    def look(self, query: StreamingQuery) -> None:
        """Take in what the query has completed since the last look."""
        from dedup.spark.metrics import from_progress

        last = query.lastProgress
        if last is not None and last.batchId not in self._done:
            for progress in query.recentProgress:
                self._done.add(progress.batchId)
                metrics = from_progress(progress)
                if metrics is not None:
                    self._batches[metrics.batch_id] = metrics
            self._files = self._files_done(query.lastProgress)
        self.reporter.update(self.figures, max(self._total, self._files))

    def _files_done(self, progress: Any) -> int:
        end = _log_offset(progress)
        taken = files_taken(self._checkpoint)
        return max(0, sum(count for batch, count in taken.items() if batch <= end) - self._before)


def _log_offset(progress: Any) -> int:
    """Last batch of the file source that a progress report covers."""
    import json

    try:
        return int(json.loads(progress.sources[0].endOffset)["logOffset"])
    except (TypeError, ValueError, KeyError, IndexError, AttributeError):
        return int(progress.batchId)


def _missing_parents(paths: Iterable[Path]) -> list[Path]:
    """Folders that do not exist yet, on the way to the given ones, the deepest first."""
    found = {p for path in paths for p in (path, *path.parents) if not p.exists()}
    return sorted(found, key=lambda p: len(p.parts), reverse=True)


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
