"""One `dedup run` with all that options, files and earlier runs decide put together."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dedup.cli.run.input.bad_rows import good_rows
from dedup.cli.run.input.event_time import timestamp_column
from dedup.cli.run.input.input_files import InputFiles, check_in_folders, find_files, folded
from dedup.cli.run.input.schema_change import check_new_schema
from dedup.cli.run.input.source import InputColumns, read_schema, read_stream, stream_options
from dedup.cli.run.output_folder import (
    Record,
    check_finished,
    check_query,
    check_same,
    check_unfinished,
)
from dedup.cli.run.run_options import COLUMNAR, RunOptions, output_format_of
from dedup.errors import ConfigError
from dedup.sinks.batch_folders import STAGING
from dedup.sinks.folder_sink import VERDICT
from dedup.spark.driver.columns import named_column
from dedup.spark.driver.strict_json import check_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

    from dedup.sinks.files.query import FilesQuery, ParquetFolder, SourceFiles


@dataclass(frozen=True, slots=True)
class Job:
    """Options with everything resolved that an earlier run or the files decide."""

    options: RunOptions
    files: InputFiles
    record: Record | None
    shards: int


def resolve(options: RunOptions) -> Job:
    """Put options together with the files and with what an earlier run into the output decided.

    Raises
    ------
    ConfigError
        Where they contradict each other.
    """
    record = Record.read(options.output)
    if record is not None:
        # What the first run guessed stays, whatever files came since.
        options = replace(
            options,
            file_format=options.file_format or record.options["file_format"],
            output_format=options.output_format or record.options["output_format"],
        )
    files = find_files(options, by_name=record is not None and record.pattern is not None)
    if record is not None:
        check_same(options, record)
        check_unfinished(options, record)
        files = replace(files, partitioned=record.partitioned, compressed=record.compressed)
    check_in_folders(files)
    output_format = options.output_format or output_format_of(files.file_format)
    options = replace(options, file_format=files.file_format, output_format=output_format)
    if files.file_format in COLUMNAR and options.bad_records != "error":
        raise ConfigError(
            f"--bad-records {options.bad_records} has no meaning for "
            f"{COLUMNAR[files.file_format]}, which has no lines that could be read one by one: a "
            "damaged file stops the run by name, whatever is given. Leave the option out.",
            remedy="bad-records",
        )
    read = folded(dict(options.read_options))
    skips = read.get("unescapedquotehandling", "").upper() == "SKIP_VALUE"
    if files.file_format not in COLUMNAR and ("mode" in read or skips):
        name = "mode=..." if "mode" in read else "unescapedQuoteHandling=SKIP_VALUE"
        raise ConfigError(
            f"--read-option {name} lets Spark change or leave out records without a count. Leave "
            "it out: --bad-records decides about records that cannot be read.",
            remedy="bad-records",
        )
    if files.file_format == "json":
        check_options(dict(options.read_options), {}, "--read-option {}")
    check_query(options, record)
    shards = options.shards or (record.shards if record else options.cores)
    return Job(options, files, record, shards)


def schema_of(spark: SparkSession, job: Job) -> StructType:
    """Return the input's columns: the first run's, or what the files or --schema say, checked.

    Raises
    ------
    ConfigError
        Where an option names none of them, or the output cannot go on with a new --schema.
    """
    from pyspark.sql.types import StructType

    record, options = job.record, job.options
    if record is not None:
        recorded = StructType.fromJson(record.schema)
        if options.schema in (None, record.options["schema"]):
            for flag, name in _named_columns(options):
                _check_column(flag, name, recorded.names)
            return recorded
        # Later files may have added to it since, so it is the DDL that is compared.
        check_finished(options, "--schema", options.schema, record.options["schema"], record)
    schema = read_schema(spark, job.options, job.files)
    for flag, name in _named_columns(options):
        _check_column(flag, name, schema.names)
    if record is not None:
        check_new_schema(recorded, schema, options)
    return schema


def check_names(options: RunOptions, columns: InputColumns) -> None:
    """Refuse columns whose names have a meaning of their own here or in the output.

    Raises
    ------
    ConfigError
        Naming the column.
    """
    from dedup.spark.driver.columns import check_carried

    check_carried(columns.read, case_sensitive=False)
    names = {name.lower() for name in columns.schema.names}
    for flag, added in (
        ("--duplicates", VERDICT if options.duplicates is not None else None),
        ("--verdict", options.verdict),
    ):
        if added is not None and added.lower() in names:
            raise ConfigError(
                f"INPUT has a column {added!r}, which {flag} adds; rename it in the input."
            )
    if "batch" in names:
        raise ConfigError(
            "INPUT has a column 'batch', which the folders batch=<id> of --output would hide from "
            "readers; rename it in the input."
        )


def check_output_format(options: RunOptions, schema: StructType) -> None:
    """Refuse columns that CSV or JSON has no text for.

    Raises
    ------
    ConfigError
        Naming the first one.
    """
    for field in schema.fields:
        if _has_no_text(field.dataType, options.output_format or "parquet"):
            others = "json or parquet" if options.output_format == "csv" else "parquet"
            raise ConfigError(
                f"--output-format {options.output_format} has no text for the column "
                f"{field.name!r} ({field.dataType.simpleString()}); give {others}, or --schema "
                "with the column as STRING."
            )


def _has_no_text(kind: DataType, file_format: str) -> bool:
    """Whether Spark writes a type as a text from which nobody reads the value again."""
    from pyspark.sql import types as T  # noqa: N812

    nested = (T.ArrayType, T.MapType, T.StructType, T.VariantType)
    if file_format == "csv":
        return isinstance(kind, (*nested, T.BinaryType))
    if file_format == "parquet" or not isinstance(kind, nested[:3]):
        return False
    if isinstance(kind, T.ArrayType):
        return _has_no_text(kind.elementType, file_format)
    if isinstance(kind, T.StructType):
        return any(_has_no_text(field.dataType, file_format) for field in kind.fields)
    has_key = not isinstance(kind.keyType, (*nested, T.BinaryType))
    return not has_key or _has_no_text(kind.valueType, file_format)


def _named_columns(options: RunOptions) -> Iterator[tuple[str, str]]:
    yield from (("--id", name) for name in options.id)
    if options.timestamp is not None:
        yield "--timestamp", options.timestamp
    yield from (("--source-partition", name) for name in options.source_partition)
    yield from (("--order-by", name) for name in options.order_by)
    yield from (("--check-payload", name) for name in options.check_payload)


def _check_column(flag: str, name: str, columns: list[str]) -> None:
    if name.lower() in (column.lower() for column in columns):
        return
    near = ", ".join(map(repr, difflib.get_close_matches(name, columns, n=8, cutoff=0.0)))
    hint = f"its columns, the nearest first: {near}." if near else "it has none at all."
    raise ConfigError(f"{flag} {name}: INPUT has no such column; {hint}")


def transform(
    spark: SparkSession, job: Job, columns: InputColumns, new: Iterable[str]
) -> FilesQuery:
    """Return the stream behind the operator, which fits the checkpoint.

    Parameters
    ----------
    spark : SparkSession
    job : Job
    columns : InputColumns
    new : iterable of str
        Files that this stream reads, to be looked at before.

    Raises
    ------
    DedupError
        What the query would stop with in its first micro-batch, where that can be known before.
    """
    from dedup.sinks.files.query import query
    from dedup.spark.driver.operator import dedup_by_id
    from dedup.tools.check.check_query import check_resume

    options = job.options
    chosen: dict[str, Any] = {
        name: getattr(options, name)
        for name in (
            "late",
            "guarantee",
            "conflicts",
            "null_ids",
            "null_timestamps",
            "stable_timestamps",
            "lateness",
            "max_future",
            "idle_timeout",
            "buckets",
            "fpr",
            "state_budget_bytes",
            "keep_expired",
        )
        if getattr(options, name) is not None
    }
    if options.idle_timeout == "never":
        chosen["idle_timeout"] = None
    operator = dedup_by_id(
        [named_column(name) for name in options.id],
        horizon=options.horizon,
        catalog=str(options.catalog),
        timestamp=timestamp_column(options, columns.schema),
        source_partition=[named_column(name) for name in options.source_partition],
        order_by=[named_column(name) for name in options.order_by],
        check_payload=[named_column(name) for name in options.check_payload] or False,
        verdict=VERDICT if options.duplicates is not None else options.verdict,
        shards=job.shards,
        **chosen,
    )
    rows = read_stream(spark, options, job.files, columns)
    if job.files.file_format not in COLUMNAR:
        rows = good_rows(rows, options, columns)
    elif columns.read != columns.schema:
        rows = rows.select([named_column(name) for name in columns.schema.names])
    check_resume(rows, operator, str(options.checkpoint))
    return query(rows, operator, *_ends(job, new))


def _ends(job: Job, new: Iterable[str]) -> tuple[SourceFiles | str, ParquetFolder | str]:
    """Input and output where the tasks may take them, or why Spark reads or writes them."""
    from dedup.sinks.files.query import ParquetFolder, SourceFiles

    options, files = job.options, job.files
    by_spark = "--parquet spark is given" if options.parquet == "spark" else None
    source = SourceFiles(
        place=files.place,
        options=stream_options(options, files),
        folders=files.folder_columns if files.partitioned else frozenset(),
        paths=tuple(map(Path, new)),
        by_spark=by_spark,
    )
    sink = ParquetFolder(
        staging=options.output / STAGING,
        split_by=VERDICT if options.duplicates is not None else None,
    )
    return (
        source if files.file_format == "parquet" else f"the input is {files.file_format}",
        by_spark
        or (
            sink if options.output_format == "parquet" else f"the output is {options.output_format}"
        ),
    )
