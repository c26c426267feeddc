"""Queries of a run: one micro-batch after the other to the output, until no file is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import chain

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from dedup.cli.figures import Figures
from dedup.cli.progress import Reporter
from dedup.cli.run.checks import LateShare, check_rows
from dedup.cli.run.input.as_read import FilesAsRead, some_of, warning
from dedup.cli.run.input.bad_rows import BadRows, explained
from dedup.cli.run.input.column_check import ColumnCheck
from dedup.cli.run.input.source import InputColumns, writer_options
from dedup.cli.run.job import Job
from dedup.cli.run.options import DEFAULTS, flag
from dedup.cli.run.progress import RunProgress, publish_metrics
from dedup.cli.run.record import Record, checkpoint_query_id
from dedup.cli.session import unless_java_ended
from dedup.cli.stop import StopRequest
from dedup.core.admission import Handling
from dedup.core.duration import counted
from dedup.errors import DataError
from dedup.sinks.files.query import FilesQuery
from dedup.sinks.folder_sink import VERDICT, SparkRows, StagedFiles
from dedup.sources.files.file_log import FileLog

_POLL_S = 0.25
#: Options of Spark's reader by which a user leaves out files.
_FILTERS = (
    "pathglobfilter",
    "modifiedbefore",
    "modifiedafter",
    "maxfileage",
    "filenameonly",
    "recursivefilelookup",
    "latestfirst",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How a run ended without an error.

    Parameters
    ----------
    figures : Figures
        Of this run alone.
    query_id : str or None
        None if no micro-batch was ever needed.
    interrupted : bool
        Stopped on request; the next run continues there.
    written_again : tuple of str
        Files that changed after they were read; they are not read a second time.
    """

    figures: Figures
    query_id: str | None
    interrupted: bool
    written_again: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Publish:
    """Function for ``foreachBatch``; keeps the sink's own exceptions, for the message."""

    job: Job
    check: ColumnCheck
    taken: FileLog
    as_read: FilesAsRead
    sink: StagedFiles
    record: Record
    failures: list[Exception] = field(default_factory=list)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        try:
            self._publish(batch, batch_id)
        except Exception as error:
            self.failures.append(error)
            raise

    def _publish(self, batch: DataFrame, batch_id: int) -> None:
        options = self.job.options
        self.check.check_arrived(list(self.taken.refresh()))
        if self.record.query_id is None:
            # Before the first batch is published: from then on no other checkpoint may write here.
            self.record = replace(self.record, query_id=checkpoint_query_id(options.checkpoint))
            self.record.write(options.output)
        with suppress(ValueError):
            self.as_read.note(self.taken.of_batch(batch_id))
        self.sink(batch, batch_id)


def drain(
    queries: Iterator[FilesQuery],
    job: Job,
    columns: InputColumns,
    check: ColumnCheck,
    taken: FileLog,
    reporter: Reporter,
    stop: StopRequest,
) -> RunOutcome:
    """Run the queries, publish their micro-batches, and report the end.

    Raises DedupError if records, folders or catalog are at fault, else Spark's own exception.
    """
    options, first = job.options, next(queries)
    late = LateShare(first.stream.sparkSession, options)
    sink = _sink(first, job, columns, taken, late, check)
    sink.open()
    as_read = FilesAsRead(options.output)
    if changed := as_read.changed(job.files.stamps, taken):
        reporter.note(warning(changed))
    record = _written_record(job, columns)
    publish = _Publish(job=job, check=check, taken=taken, as_read=as_read, sink=sink, record=record)
    progress = RunProgress(options.checkpoint, map(str, job.files.paths), sink.goes_on, reporter)
    interrupted = True  # stays so if Java ends
    with (
        unless_java_ended(stop),
        publish_metrics(late.spark, options, reporter.note),
        ExitStack() as stack,
    ):
        stack.callback(sink.close)
        interrupted = _run_all(chain([first], queries), publish, progress, stop)
    figures = progress.figures
    _report(figures, late, reporter, interrupted=interrupted)
    if not interrupted:
        check_all_taken(job, taken)
        if not figures.batches:
            reporter.note(_nothing_done(figures.files, job))
    return RunOutcome(
        figures=figures,
        query_id=publish.record.query_id,
        interrupted=interrupted,
        written_again=tuple(changed),
    )


def _run_all(
    queries: Iterator[FilesQuery], publish: _Publish, progress: RunProgress, stop: StopRequest
) -> bool:
    """Run one query after the other, and return whether a request stopped them."""
    job = publish.job
    for files_query in queries:
        query = (
            files_query.stream.writeStream.foreachBatch(publish)
            .queryName(job.options.output.name)
            .option("checkpointLocation", str(job.options.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            interrupted = _wait(query, progress, stop)
            progress.look(query)
        except Exception as error:
            # Spark's exception repeats the text of the sink's own one twice.
            cause = publish.failures[-1] if publish.failures else error
            raise explained(cause, job, publish.taken.unfinished()) from None
        finally:
            if query.isActive:
                query.stop()
        if interrupted:
            return True
    return False


def _wait(query: StreamingQuery, progress: RunProgress, stop: StopRequest) -> bool:
    while query.isActive:
        if stop.wait(_POLL_S):
            progress.reporter.note("Stopping; the unfinished micro-batch is left for the next run.")
            query.stop()
            return True
        progress.look(query)
    query.awaitTermination()
    return False


def _report(figures: Figures, late: LateShare, reporter: Reporter, *, interrupted: bool) -> None:
    too_late = late.of(figures.counts["late"], figures.counts["records_in"])
    if too_late is not None:
        reporter.note(too_late)
    if interrupted:
        done = f"{figures.batches:,}" if figures.batches else "none"
        reporter.note(
            f"Stopped. Of this run's micro-batches, {done} are complete and stay; run again to "
            "continue."
        )


def check_all_taken(job: Job, taken: FileLog) -> None:
    """Raise DataError if Spark did not find all files, unless the user left out some."""
    if any(name.lower() in _FILTERS for name, _ in job.options.read_options):
        return
    taken.refresh()
    left = [path for path in job.files.paths if str(path) not in taken.taken and path.exists()]
    if left:
        raise DataError(
            f"Spark did not find {counted(len(left), 'file')} of INPUT: {some_of(left)}. All "
            f"others are done. Rename {'it' if len(left) == 1 else 'them'} with letters, digits, "
            "'-', '_' and '.' alone, and run again.",
            remedy="input-names",
        )


def _nothing_done(files: int, job: Job) -> str:
    done = f"{files:,} new {'file has' if files == 1 else 'files have'} no records."
    before = DEFAULTS | job.record.rules if job.record else {}
    rules = job.options.rules().items()
    names = [flag(name) for name, value in rules if before.get(name, value) != value]
    changed = f" Changed for the next new files: {', '.join(names)}." if names else ""
    return (done if files else "No new files.") + changed


def _written_record(job: Job, columns: InputColumns) -> Record:
    """Write the record of this run, if it differs from the last one, and return it."""
    options, schema, last = job.options, columns.schema.jsonValue(), job.record
    if last is not None:
        # Without --schema the earlier one holds, and what was guessed with it.
        given = last.options if options.schema is None else options.fixed()
        record = replace(last, options=given, schema=schema, rules=options.rules())
    else:
        record = Record(
            options=options.fixed(),
            schema=schema,
            pattern=job.files.pattern,
            partitioned=job.files.partitioned,
            compressed=job.files.compressed,
            shards=job.shards,
            rules=options.rules(),
        )
    if record != last:
        record.write(options.output)
    return record


def _sink(
    files_query: FilesQuery,
    job: Job,
    columns: InputColumns,
    taken: FileLog,
    late: LateShare,
    check: ColumnCheck,
) -> StagedFiles:
    options, spark = job.options, late.spark
    rows_aside = None if options.aside is None else BadRows(spark, job, columns, taken)

    def before_publishing(batch_id: int) -> None:
        check_rows(spark, job, columns, check, taken, batch_id)
        if options.late == "drop" and not options.verdict:
            late.check(batch_id)

    return StagedFiles(
        output=options.output,
        writer=files_query.writer or SparkRows(*writer_options(job)),
        duplicates=options.duplicates,
        verdict=VERDICT,
        goes_on=Handling.of(options).passing,
        aside=options.aside,
        rows_aside=rows_aside,
        before_publishing=before_publishing,
    )
