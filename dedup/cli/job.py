"""One `dedup run` with all that options, files and earlier runs decide put together."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dedup.cli.output_folder import Record, check_query, check_same, check_unfinished
from dedup.cli.run_options import VERDICT, RunOptions
from dedup.cli.source import InputFiles, find_files, read_schema, read_stream
from dedup.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


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
    files = find_files(options)
    if record is not None:
        check_same(options, record)
        check_unfinished(options, record)
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
    return Job(options, files, record, shards)


def schema_of(spark: SparkSession, job: Job, *, writes: bool = True) -> StructType:
    """Return the input's columns: the first run's, or what the files say, checked.

    Parameters
    ----------
    writes : bool
        Whether its records go to an output, where some names have a meaning of their own.
    """
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
    if writes and "batch" in (column.lower() for column in schema.names):
        raise ConfigError(
            "INPUT has a column 'batch', which the folders batch=<id> of --output would hide from "
            "readers; rename it in the input."
        )
    return schema


def _check_column(flag: str, name: str, columns: list[str]) -> None:
    if name.lower() in (column.lower() for column in columns):
        return
    near = difflib.get_close_matches(name, columns, n=3, cutoff=0.5) or columns[:8]
    known = f"did you mean {', '.join(map(repr, near))}?" if near else "it has none at all."
    raise ConfigError(f"{flag} {name}: INPUT has no such column; {known}")


def transform(spark: SparkSession, job: Job, schema: StructType) -> DataFrame:
    """Return the stream behind the operator."""
    from dedup.spark.operator import dedup_by_id

    options = job.options
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
        [named_column(name) for name in options.id],
        horizon=options.horizon,
        catalog=str(options.catalog),
        timestamp=timestamp_column(options, schema),
        verdict=VERDICT if options.duplicates is not None else None,
        shards=job.shards,
        **chosen,
    )
    return read_stream(spark, options, job.files, schema).transform(operator)


def timestamp_column(options: RunOptions, schema: StructType) -> Column | None:
    """The event time that the options name, parsed where it is text."""
    from pyspark.sql import functions as fn
    from pyspark.sql.types import StringType

    if options.timestamp is None:
        return None
    column = named_column(options.timestamp)
    if options.timestamp_format is not None:
        return fn.to_timestamp(column, options.timestamp_format)
    kinds = {field.name.lower(): field.dataType for field in schema.fields}
    if isinstance(kinds[options.timestamp.lower()], StringType):
        return fn.to_timestamp(column)
    return column


def named_column(name: str) -> Column:
    """The column of that name; a dot in it asks for no field of a struct."""
    from pyspark.sql import functions as fn

    return fn.col("`" + name.replace("`", "``") + "`")
