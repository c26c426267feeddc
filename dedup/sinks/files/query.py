"""Build a query from files to files. If possible, the operator's tasks read and write the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamReader

from dedup.errors import DataError
from dedup.sinks.files.output_files import with_spark_metadata
from dedup.sinks.files.slice_files import FileShape
from dedup.sinks.files.task_files import WRITTEN, TaskFiles
from dedup.sinks.files.text_lines import Dialect
from dedup.sources.files.bypass import (
    LeftToSpark,
    arrow_schema,
    check_reading,
    codec_to_write,
    text_schema,
    text_types,
)
from dedup.sources.files.event_times import EventTime
from dedup.sources.files.exact_values import WRITE_AGAIN, NotExact
from dedup.sources.files.parquet_input import ParquetInput
from dedup.sources.files.scan import Scan, TextSource
from dedup.sources.files.text_input import PACKED
from dedup.sources.files.text_options import OF_FILES, OF_STREAMS, csv_options
from dedup.spark.driver import checks
from dedup.spark.driver.build import MapPass, Operator, assemble, emitted_schema, prepare
from dedup.spark.driver.columns import named_column
from dedup.spark.driver.shipping import shipped
from dedup.spark.executor.pack import pack
from dedup.spark.executor.unpack import unpack
from dedup.spark.options import Options
from dedup.spark.plan import Plan
from dedup.spark.versions import file_metadata

#: Size of the part of a file that one task reads. Most writers' row groups have about this size.
SPLIT_BYTES = 128 << 20
#: Options of Spark's reader that select files, and do not change how it reads them.
_LISTING = OF_FILES | OF_STREAMS | {"mergeschema", "mode"}
#: Columns of the table in which Spark lists files. These columns do not make Spark read the files.
_LISTED = {
    "path": T.StringType(),
    "modificationTime": T.TimestampType(),
    "length": T.LongType(),
    "content": T.BinaryType(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """The files that are the input of a stream: Parquet, or `text`.

    `place` is a folder, file or glob in the form that Spark's reader accepts. `folders` holds the
    columns, in lower case, whose values are in the names of folders. `time` makes the operator's
    timestamp if that is an expression. Before the start the driver checks that the Parquet files in
    `paths` have the stream's columns. Tasks check all other files. `by_spark` is a reason for Spark
    to read the files even if tasks could, or None. Spark never reads text.
    """

    place: str
    options: Mapping[str, str] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    paths: tuple[Path, ...] = ()
    by_spark: str | None = None
    text: TextSource | None = None
    time: EventTime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFolder:
    """The output of a stream.

    Tasks write below `staging`. The values of the column `split_by` name folders. `dialect` and
    `compression` are for CSV and JSON: Parquet takes the session's compression.
    """

    staging: Path
    split_by: str | None = None
    file_format: str = "parquet"
    dialect: Dialect = field(default_factory=Dialect)
    compression: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesQuery:
    """A query that is built and not started yet.

    `columns` are the columns of the rows that the operator emits. `writer` writes the
    micro-batches, or is None if Spark has to write them. `scan` reads the files, or is None if
    Spark has to read them. `read_by_spark` and `written_by_spark` give the reasons why Spark has to
    read and to write. Each is None if tasks do that work.
    """

    stream: DataFrame
    columns: T.StructType
    writer: TaskFiles | None
    scan: Scan | None
    read_by_spark: str | None
    written_by_spark: str | None

    def left_to_spark(self) -> list[str]:
        whys = {"reads": self.read_by_spark, "writes": self.written_by_spark}
        return [
            f"Spark itself {does} the files, which takes longer: {why}."
            for does, why in whys.items()
            if why is not None
        ]


def query(
    rows: DataFrame, operator: Operator[Options], source: SourceFiles, sink: OutputFolder | str
) -> FilesQuery:
    """Build the query that reads files, applies the operator, and writes files.

    `rows` is the input as Spark reads it, or as `read_rows` does. `source` and `sink` describe
    input and output. If the sink is a text, the text is the reason why Spark has to write.
    """
    prepared, plan = prepare(rows, operator.options)
    emitted = emitted_schema(rows, plan)
    why_read = why_written = None
    frame: DataFrame = prepared
    first: MapPass = pack
    try:
        frame, first = _scanned(rows, prepared, plan, source)
    except LeftToSpark as error:
        if source.text is None:  # otherwise `rows` are what tasks read
            why_read = str(error)
            _check_spark_reads(source, rows.schema, why_read)
    writer = None
    try:
        writer = _writer(rows.sparkSession, emitted, sink)
    except LeftToSpark as error:
        why_written = str(error)
    metrics = operator.options.metrics
    return FilesQuery(
        stream=assemble(
            frame,
            plan,
            metrics,
            output=emitted if writer is None else WRITTEN,
            first=first,
            last=writer or unpack,
        ),
        columns=emitted,
        writer=writer,
        scan=first if isinstance(first, Scan) else None,
        read_by_spark=why_read,
        written_by_spark=why_written,
    )


def _scanned(
    rows: DataFrame, prepared: DataFrame, plan: Plan, source: SourceFiles
) -> tuple[DataFrame, Scan]:
    if source.by_spark is not None:
        raise LeftToSpark(source.by_spark)
    helpers = prepared.columns[len(rows.columns) :]
    time_column = plan.time.column if source.time and plan.time.column in helpers else None
    if helpers != [name for name in (time_column, plan.now_column) if name is not None]:
        raise LeftToSpark("the record ID, timestamp or order is an expression")
    return _listed_and_scan(
        rows.sparkSession.readStream,
        rows.schema,
        source,
        names=prepared.columns[: len(rows.columns)],
        now_column=plan.now_column,
        time_column=time_column,
    )


def read_rows(
    reader: DataFrameReader | DataStreamReader,
    columns: T.StructType,
    source: SourceFiles,
    *,
    time_column: str | None = None,
    file_column: str | None = None,
) -> DataFrame:
    """Return the rows of files, which tasks read and hand to Spark.

    `columns` are the columns of the files and folders. `time_column` is added for ``source.time``,
    and `file_column` as `Scan` says. Raises LeftToSpark if only Spark may read the files.
    """
    listed, scan = _listed_and_scan(
        reader, columns, source, time_column=time_column, file_column=file_column
    )
    load = shipped(scan)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return load().rows(batches)

    added = [(time_column, T.TimestampType()), (file_column, T.StringType())]
    fields = [T.StructField(name, kind) for name, kind in added if name is not None]
    source_columns = columns if source.text is None else text_types(columns)
    return listed.mapInArrow(read, T.StructType([*source_columns.fields, *fields]))


def _listed_and_scan(
    reader: DataFrameReader | DataStreamReader,
    columns: T.StructType,
    source: SourceFiles,
    *,
    names: Sequence[str] | None = None,
    now_column: str | None = None,
    time_column: str | None = None,
    file_column: str | None = None,
) -> tuple[DataFrame, Scan]:
    """Return the splits of the files, and how tasks read them. The names are described in `Scan`.

    `names` are by default the names of the columns. Raises LeftToSpark.
    """
    spark = reader._spark
    arrow = arrow_schema if source.text is None else text_schema
    schema = arrow(columns, checks.time_zone(spark))
    folders = frozenset(name for name in columns.names if name.lower() in source.folders)
    by_spark: list[T.StructField] = []
    if source.text is None:
        _check_parquet(spark, columns, schema, source)
        by_spark = [f for f in columns.fields if f.name in folders]
    scan = Scan(
        columns=schema,
        names=tuple(columns.names if names is None else names),
        folders=folders,
        now_column=now_column,
        time_column=time_column,
        time=None if time_column is None else source.time,
        file_column=file_column,
        text=source.text,
    )
    return splits(reader, source.place, source.options, by_spark, text=source.text), scan


def _check_parquet(
    spark: SparkSession, columns: T.StructType, schema: pa.Schema, source: SourceFiles
) -> None:
    """Raise LeftToSpark if only Spark may read the Parquet files."""
    check_reading(spark)
    for name in source.options:
        if name.lower() not in _LISTING:
            raise LeftToSpark(f"the option {name} is one of Spark's own reader")
    for column in columns.fields:
        if column.name.lower() in source.folders and isinstance(column.dataType, T.DecimalType):
            raise LeftToSpark(f"the column {column.name!r} of folders is a decimal")
    clash = source.folders & {name.lower() for name in _LISTED}
    if clash:
        raise LeftToSpark(f"a folder names a column {min(clash)!r}, as Spark's list of files does")
    in_files = pa.schema([f for f in schema if f.name.lower() not in source.folders])
    wrong = _fault(source, lambda file: file.misfit(in_files), "pyarrow does not read such files")
    if wrong is not None:
        raise LeftToSpark(wrong)


def splits(
    reader: DataFrameReader | DataStreamReader,
    place: str | list[str],
    options: Mapping[str, str],
    folders: Sequence[T.StructField] = (),
    *,
    text: TextSource | None = None,
) -> DataFrame:
    """Return the parts of files that each micro-batch reads, distributed over the tasks.

    `folders` are the partition columns whose values Spark takes from the names of folders. `text`
    is None for Parquet.
    """
    listed = T.StructType([*(T.StructField(*column) for column in _LISTED.items()), *folders])
    reader = reader.format("binaryFile").schema(listed).options(**options)
    if text is not None:  # whose tasks know the values in the names of folders
        reader = reader.option("recursiveFileLookup", "true")
    # Take sizes and times from Spark's listing. Tasks fill the columns `length` and
    # `modificationTime` later. They would skip a file that was emptied in between, and Spark never
    # lists it again.
    files = reader.load(place)  # type: ignore[arg-type]
    metadata = file_metadata(files)
    size = metadata["file_size"]
    files = files.where(size > 0)
    shown = [named_column(f.name) for f in folders]
    cores = files.sparkSession.sparkContext.defaultParallelism
    count = F.ceil(size / SPLIT_BYTES)
    if text is not None:
        # A task of CSV reads what is before its part, to know whether it is within quotes.
        count = F.least(count, F.lit(2 * cores if text.format.is_divisible else 1))
        # To lower the path first, Java would load ICU's tables for two seconds.
        count = F.when(F.col("path").rlike(PACKED), 1).otherwise(count)
    listed_files = files.select(
        "path",
        size.alias("size"),
        F.unix_millis(metadata["file_modification_time"]).alias("mtime_ms"),
        count.cast("int").alias("count"),
        F.current_timestamp().alias("now"),
        *([F.struct(*shown).alias("folders")] if shown else []),
    ).withColumn("number", F.explode(F.expr("sequence(0, `count` - 1)")))
    # One task deals the splits out evenly. Each of several tasks would start at a random place.
    return listed_files.coalesce(1).repartition(cores)


def _writer(spark: SparkSession, rows: T.StructType, sink: OutputFolder | str) -> TaskFiles:
    if isinstance(sink, str):
        raise LeftToSpark(sink)
    in_files = T.StructType([f for f in rows.fields if f.name != sink.split_by])
    if sink.file_format == "parquet":
        compression, columns = codec_to_write(spark), arrow_schema(in_files, "UTC")
        columns = with_spark_metadata(columns, in_files.json(), spark.version)
    else:
        compression, columns = sink.compression, text_schema(in_files)
    shape = FileShape(
        columns=columns,
        compression=compression,
        split_by=() if sink.split_by is None else (sink.split_by,),
        file_format=sink.file_format,
        dialect=sink.dialect,
    )
    return TaskFiles(staging=str(sink.staging), shape=shape)


def read_back_by(options: Mapping[str, str]) -> Dialect:
    """Return the dialect of lines that tasks read back with these options of Spark's readers."""
    settings = csv_options(options)
    form = settings["form"]
    return Dialect(
        header=settings["has_header"],
        separator=form.separator,
        quote=form.quote,
        escape=form.escape,
        also_quoted="",
        null_fields=True,
    )


def _fault(
    source: SourceFiles, look: Callable[[ParquetInput], str | None], unsupported: str | None
) -> str | None:
    """Apply `look` to the files in `source.paths`, and return the first fault or None.

    If a file cannot be read at all, this ignores the file, because the task that reads it reports
    the error. If a file has features that pyarrow lacks, the fault begins with `unsupported`.
    """

    def wrong(path: Path) -> str | None:
        try:
            with ParquetInput(str(path)) as file:
                return look(file)
        except NotExact as error:
            return str(error)
        except pa.ArrowNotImplementedError as error:
            return unsupported and f"{unsupported}: {str(error).rstrip('.')}"
        except (OSError, pa.ArrowException):
            return None

    with ThreadPoolExecutor() as pool:
        results = zip(source.paths, pool.map(wrong, source.paths), strict=True)
        return next((f"{path}: {what}" for path, what in results if what is not None), None)


def _check_spark_reads(source: SourceFiles, schema: T.StructType, why: str) -> None:
    """Raise DataError for files that Spark could not read, or whose values Spark would truncate."""
    known: list[pa.Field] = []
    for column in schema.fields:
        with suppress(LeftToSpark):
            known += arrow_schema(T.StructType([column]), "UTC")
    columns = pa.schema(known)
    wrong = _fault(source, lambda file: file.unread_by_spark(columns), None)
    if wrong is not None:
        raise DataError(
            f"{wrong}. Spark has to read the files: {why}. {WRITE_AGAIN}", remedy="bad-records"
        )
