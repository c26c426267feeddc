"""The query of a run: micro-batch by micro-batch to the output, until no file is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from dedup.cli.figures import Figures
from dedup.cli.progress import Reporter
from dedup.cli.run.input.bad_rows import BadRows, explained
from dedup.cli.run.input.column_check import ColumnCheck
from dedup.cli.run.input.new_columns import check_arrived
from dedup.cli.run.input.rewritten import FilesAsRead, some_of, warning
from dedup.cli.run.input.row_check import check_rows
from dedup.cli.run.input.source import InputColumns, writer_options
from dedup.cli.run.job import Job
from dedup.cli.run.late_share import LateShare
from dedup.cli.run.metrics_output import followed
from dedup.cli.run.output_folder import Record, checkpoint_query_id
from dedup.cli.run.run_options import DEFAULTS
from dedup.cli.run.run_progress import RunProgress
from dedup.cli.session import unless_java_ended
from dedup.cli.stop import StopRequest
from dedup.core.admission import Handling
from dedup.errors import DataError
from dedup.sinks.folder_sink import VERDICT, SparkRows, StagedFiles
from dedup.spark.driver.file_log import FileLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from dedup.sinks.files.query import FilesQuery

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
    """How a run ended, where it did not fail.

    Parameters
    ----------
    figures : Figures
        Of this run alone.
    query_id : str or None
        None if no micro-batch was ever needed.
    interrupted : bool
        Stopped on request; the next run goes on where it stopped.
    written_again : tuple of str
        Files that changed after they were taken; they are not read a second time.
    """

    figures: Figures
    query_id: str | None
    interrupted: bool
    written_again: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Publish:
    """Function for ``foreachBatch``; the sink's own exception stays here for the message."""

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
        check_arrived(self.check, self.job, list(self.taken.refresh()))
        if self.record.query_id is None:
            # Before the first batch shows: from then on no other checkpoint may write here.
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
    """Run one query after the other over all files that are there, and publish what they give.

    Raises
    ------
    DedupError
        What is wrong with records, folders or catalog.
    Exception
        What Spark raised.
    """
    options, first = job.options, next(queries)
    spark = first.stream.sparkSession
    late = LateShare(spark, options)
    sink = _sink(first, job, columns, taken, late, check)
    sink.open()
    as_read = FilesAsRead(options.output)
    changed = as_read.written_again(job.files.stamps, taken)
    if changed:
        reporter.note(warning(changed))
    record = _record(job, columns)
    if record != job.record:
        record.write(options.output)
    publish = _Publish(job=job, check=check, taken=taken, as_read=as_read, sink=sink, record=record)
    progress = RunProgress(options.checkpoint, map(str, job.files.paths), sink.goes_on, reporter)
    interrupted = True
    with unless_java_ended(stop), followed(spark, options, reporter.note), ExitStack() as stack:
        stack.callback(sink.close)
        for files_query in chain([first], queries):
            query = (
                files_query.stream.writeStream.foreachBatch(publish)
                .queryName(options.output.name)
                .option("checkpointLocation", str(options.checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            try:
                interrupted = _wait(query, progress, stop)
                progress.look(query)
            except Exception as error:
                # The sink's own exception is the cause; Spark's wraps its text twice.
                cause = publish.failures[-1] if publish.failures else error
                raise explained(cause, options, job.files, taken.unfinished()) from None
            finally:
                if query.isActive:
                    query.stop()
            if interrupted:
                break
    figures = progress.figures
    too_late = late.of(figures.counts["late"], figures.counts["records_in"])
    if too_late is not None:
        reporter.note(too_late)
    if interrupted:
        done = (
            f"{figures.batches:,} of this run are complete and stay"
            if figures.batches
            else ("none of this run is complete yet")
        )
        reporter.note(f"Stopped. Of the micro-batches, {done}; run again to go on.")
    else:
        check_all_taken(job, taken)
        if not figures.batches:
            reporter.note(_nothing_done(figures.files, job))
    return RunOutcome(
        figures=figures,
        query_id=publish.record.query_id,
        interrupted=interrupted,
        written_again=tuple(changed),
    )


def check_all_taken(job: Job, taken: FileLog) -> None:
    """Refuse to call a run complete whose files Spark did not all find.

    Raises
    ------
    DataError
        Naming them.
    """
    if any(name.lower() in _FILTERS for name, _ in job.options.read_options):
        return
    taken.refresh()
    left = [path for path in job.files.paths if str(path) not in taken.taken and path.exists()]
    if left:
        one = len(left) == 1
        raise DataError(
            f"Spark did not find {len(left):,} {'file' if one else 'files'} of INPUT: "
            f"{some_of(left)}. All others are done. Rename {'it' if one else 'them'} with letters, "
            "digits, '-', '_' and '.' alone, and run again.",
            remedy="input-names",
        )


def _nothing_done(files: int, job: Job) -> str:
    said = f"{files:,} new {'file has' if files == 1 else 'files have'} no records."
    before = DEFAULTS | job.record.rules if job.record else {}
    rules = job.options.rules().items()
    names = [f"--{n.replace('_', '-')}" for n, value in rules if before.get(n, value) != value]
    changed = f" Changed for the next new files: {', '.join(names)}." if names else ""
    return (said if files else "No new files.") + changed


def _record(job: Job, columns: InputColumns) -> Record:
    options, schema = job.options, columns.schema.jsonValue()
    if job.record is not None:
        # Without --schema the one of before holds, and what was guessed with it.
        given = job.record.options if options.schema is None else options.fixed()
        return replace(job.record, options=given, schema=schema, rules=options.rules())
    return Record(
        options=options.fixed(),
        schema=schema,
        pattern=job.files.pattern,
        partitioned=job.files.partitioned,
        compressed=job.files.compressed,
        shards=job.shards,
        rules=options.rules(),
    )


def _sink(
    files_query: FilesQuery,
    job: Job,
    columns: InputColumns,
    taken: FileLog,
    late: LateShare,
    check: ColumnCheck,
) -> StagedFiles:
    options, spark = job.options, files_query.stream.sparkSession
    rows_aside = None
    if options.aside is not None:
        rows_aside = BadRows(spark, options, job.files, columns, taken)

    def before_publishing(batch_id: int) -> None:
        check_rows(spark, job, columns, check, taken, batch_id)
        if options.late == "drop" and not options.verdict:
            late.check(batch_id)

    return StagedFiles(
        output=options.output,
        writer=files_query.writer or SparkRows(*writer_options(options, job.files)),
        duplicates=options.duplicates,
        verdict=VERDICT,
        goes_on=Handling.of(options).passing,
        aside=options.aside,
        rows_aside=rows_aside,
        before_publishing=before_publishing,
    )


def _wait(query: StreamingQuery, progress: RunProgress, stop: StopRequest) -> bool:
    while query.isActive:
        if stop.wait(_POLL_S):
            progress.reporter.note("Stopping; the unfinished micro-batch is left for the next run.")
            query.stop()
            return True
        progress.look(query)
    query.awaitTermination()
    return False
