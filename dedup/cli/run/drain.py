"""Runs the queries of a `dedup run` until they have written the rows of all files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from dedup.cli.figures import Figures
from dedup.cli.run.input.as_read import FilesAsRead, some_of, warning
from dedup.cli.run.input.bad_rows import bad_rows, explained, files_of_batch
from dedup.cli.run.input.column_check import ColumnCheck
from dedup.cli.run.job import Job
from dedup.cli.run.options import DEFAULTS, flag
from dedup.cli.run.progress import Reporter, RunProgress, publish_metrics
from dedup.cli.run.record import Record, checkpoint_query_id, observed_so_far
from dedup.cli.session import unless_java_ended
from dedup.cli.stop import StopRequest
from dedup.core.admission import Handling
from dedup.errors import DataError
from dedup.sinks.batch_folders import published_batches
from dedup.sinks.files.query import FilesQuery
from dedup.sinks.folder_sink import SparkRows, StagedFiles
from dedup.sources.files.file_log import FileLog
from dedup.sources.files.orc_times import check_orc_times
from dedup.values.duration import counted

_POLL_S = 0.25
#: Options of Spark's reader with which a user excludes files.
_FILTERS = (
    "pathglobfilter",
    "modifiedbefore",
    "modifiedafter",
    "maxfileage",
    "filenameonly",
    "recursivefilelookup",
    "latestfirst",
)
_ORDERS = {"time": "modification times", "name": "names"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How a run ended without an error."""

    #: Figures of this run alone.
    figures: Figures
    #: ID of the query, or None if no run has needed a micro-batch yet.
    query_id: str | None
    #: Whether somebody has stopped the run. The next run continues where this run stopped.
    interrupted: bool
    #: Files that changed after a run had read them. No run reads these files again.
    written_again: tuple[str, ...] = ()


@dataclass(slots=True)
class Drain:
    """Runs the queries of a `dedup run` one after another, and publishes their micro-batches."""

    spark: SparkSession
    job: Job
    columns: T.StructType
    check: ColumnCheck
    taken: FileLog
    reporter: Reporter
    stop: StopRequest
    record: Record = field(init=False)
    as_read: FilesAsRead = field(init=False)
    sink: StagedFiles = field(init=False)
    #: Number of late records and of all records in each micro-batch.
    late: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: Exceptions of the sink. Spark's own exception would repeat their text twice.
    failures: list[Exception] = field(default_factory=list)

    def run(self, queries: Iterator[FilesQuery]) -> RunOutcome:
        job, options, note, first = self.job, self.job.options, self.reporter.note, next(queries)
        self.as_read, self.sink = FilesAsRead(options.output), self._sink(first)
        self.sink.open()
        if changed := self.as_read.changed(job.files.stamps, self.taken):
            note(warning(changed))
        self._write_record()
        paths = map(str, job.files.paths)
        progress = RunProgress(options.checkpoint, paths, self.sink.goes_on, self.reporter)
        interrupted = True  # stays true if Java ends
        with (
            unless_java_ended(self.stop),
            publish_metrics(self.spark, options, note),
            closing(self.sink),
        ):
            interrupted = any(self._run_one(query, progress) for query in chain([first], queries))
        figures = progress.figures
        too_late = self._too_late(figures.counts["late"], figures.counts["records_in"])
        if too_late is not None:
            note(too_late)
        if interrupted:
            done = f"{figures.batches:,}" if figures.batches else "none"
            note(
                f"Stopped. Of this run's micro-batches, {done} are complete and stay; run again to "
                "continue."
            )
        else:
            self._check_all_taken()
            if not figures.batches:
                note(self._nothing_done(figures.files))
        return RunOutcome(
            figures=figures,
            query_id=self.record.query_id,
            interrupted=interrupted,
            written_again=tuple(changed),
        )

    def _run_one(self, files_query: FilesQuery, progress: RunProgress) -> bool:
        """Run a query to its end. Return whether a stop request ended it early."""
        options, stopped = self.job.options, False
        query = (
            files_query.stream.writeStream.foreachBatch(self._publish)
            .queryName(options.output.name)
            .option("checkpointLocation", str(options.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            while query.isActive and not stopped:
                stopped = self.stop.wait(_POLL_S)
                progress.look(query)
            if stopped:
                self.reporter.note("Stopping; the unfinished micro-batch is left for the next run.")
                query.stop()
            else:
                query.awaitTermination()
            progress.look(query)
        except Exception as error:
            cause = self.failures[-1] if self.failures else error
            raise explained(cause, self.job, self.taken.unfinished()) from None
        finally:
            if query.isActive:
                query.stop()
        return stopped

    def _publish(self, batch: DataFrame, batch_id: int) -> None:
        """Publish a micro-batch. Spark calls this method through ``foreachBatch``."""
        options = self.job.options
        try:
            self.check.check_arrived(list(self.taken.refresh()))
            if self.record.query_id is None:
                # Write the record before the first batch is published. After that, no other
                # checkpoint may write here.
                query_id = checkpoint_query_id(options.checkpoint)
                self.record = replace(self.record, query_id=query_id)
                self.record.write(options.output)
            with suppress(ValueError):
                self.as_read.note(self.taken.of_batch(batch_id))
            self.sink(batch, batch_id)
        except Exception as error:
            self.failures.append(error)
            raise

    def _sink(self, files_query: FilesQuery) -> StagedFiles:
        job, options = self.job, self.job.options
        rows_aside = None
        if options.aside is not None and files_query.scan is not None:
            rows_aside = partial(bad_rows, self.spark, job, files_query.scan, self.taken)
        return StagedFiles(
            output=options.output,
            writer=files_query.writer or SparkRows(),
            duplicates=options.duplicates,
            goes_on=Handling.of(options).passing,
            aside=options.aside,
            rows_aside=rows_aside,
            before_publishing=self._before_publishing,
        )

    def _write_record(self) -> None:
        job, options, last = self.job, self.job.options, self.job.record
        schema = self.columns.jsonValue()
        if last is not None:
            # Without --schema, keep the earlier schema and the options that were inferred with it.
            recorded = last.options if options.schema is None else options.fixed()
            self.record = replace(last, options=recorded, schema=schema, rules=options.rules())
        else:
            self.record = Record(
                options=options.fixed(),
                schema=schema,
                pattern=job.files.pattern,
                partitioned=job.files.partitioned,
                compressed=job.files.compressed,
                shards=job.shards,
                rules=options.rules(),
            )
        if self.record != last:
            self.record.write(options.output)

    def _before_publishing(self, batch_id: int) -> None:
        options = self.job.options
        if batch_id in published_batches(options.output):
            return
        if self.job.files.file_format == "orc":
            paths = files_of_batch(options, self.taken, batch_id)
            check_orc_times(self.spark, paths, self.columns)
        if options.late == "drop" and not options.verdict:
            self._check_late(batch_id)

    def _check_late(self, batch_id: int) -> None:
        observed = observed_so_far(self.spark, self.job.options.checkpoint, "dedup")
        self.late[batch_id] = observed.get("late", 0), observed.get("records_in", 0)
        late, records = map(sum, zip(*self.late.values(), strict=True))
        if (reason := self._too_late(late, records)) is not None:
            raise DataError(
                f"{reason} Nothing of micro-batch {batch_id} is published, since --late drop would "
                "lose these records. Give --late emit to keep them, or --max-late "
                f"{-(-100 * late // records)} or more to lose them, and run again.",
                remedy="late",
            )

    def _too_late(self, late: int, records: int) -> str | None:
        """Return what to do if too many records are late, or None if their number is fine."""
        options = self.job.options
        if 100 * late <= options.max_late * records:
            return None
        other = " --order-files name," if options.order_files == "time" else ""
        return (
            f"{late / records:.1%} of this run's records are late ({late:,} of {records:,}): "
            f"their {options.timestamp} is further behind the newest one before them than "
            f"--lateness allows. The files were read in the order of their "
            f"{_ORDERS[options.order_files]}. If that is not the order of {options.timestamp}, "
            f"run into a new --output with{other} --source-partition for each producer, or a "
            "longer --lateness."
        )

    def _check_all_taken(self) -> None:
        if any(name.lower() in _FILTERS for name, _ in self.job.options.read_options):
            return
        self.taken.refresh()
        paths = self.job.files.paths
        left = [path for path in paths if str(path) not in self.taken.taken and path.exists()]
        if left:
            raise DataError(
                f"Spark did not find {counted(len(left), 'file')} of INPUT: {some_of(left)}. All "
                f"others are done. Rename {'it' if len(left) == 1 else 'them'} with letters, "
                "digits, '-', '_' and '.' alone, and run again.",
                remedy="input-names",
            )

    def _nothing_done(self, files: int) -> str:
        done = f"{files:,} new {'file has' if files == 1 else 'files have'} no records."
        before = DEFAULTS | self.job.record.rules if self.job.record else {}
        rules = self.job.options.rules().items()
        names = [flag(name) for name, value in rules if before.get(name, value) != value]
        changed = f" Changed for the next new files: {', '.join(names)}." if names else ""
        return (done if files else "No new files.") + changed
