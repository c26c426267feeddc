"""The query of a run, which applies the operator between input and output."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from dedup.cli.run.input.columns import check_new_schema
from dedup.cli.run.input.event_time import timestamp_column
from dedup.cli.run.input.inference import Inference
from dedup.cli.run.input.source import listed_files, plan_stream, read_schema
from dedup.cli.run.job import Job
from dedup.cli.run.options import RunOptions, flag
from dedup.cli.run.record import check_finished
from dedup.errors import ConfigError
from dedup.sinks.batch_folders import STAGING
from dedup.sinks.files.columns import can_write
from dedup.sinks.files.query import FilesQuery, OutputFolder, query, read_back_by
from dedup.sinks.folder_sink import VERDICT
from dedup.spark.driver.columns import check_carried, named_column
from dedup.spark.driver.operator import dedup_by_id
from dedup.tools.check.check_query import check_resume


def schema_of(spark: SparkSession, job: Job, inference: Inference) -> T.StructType:
    """Return the columns of the input, from --schema, the record of the first run, or the files."""
    record, options = job.record, job.options
    recorded = None if record is None else T.StructType.fromJson(record.schema)
    if record is None or options.schema not in (None, record.options["schema"]):
        if record is not None:
            # Compare the text of --schema, because files may have added columns since.
            check_finished(options, "schema", options.schema, record.options["schema"], record)
        schema = read_schema(spark, job, inference)
    else:
        assert recorded is not None
        schema = recorded
    for name in ("id", "timestamp", "source_partition", "order_by", "check_payload"):
        columns = getattr(options, name) or ()
        for column in (columns,) if isinstance(columns, str) else columns:
            if column.lower() not in map(str.lower, schema.names):
                nearest = difflib.get_close_matches(column, schema.names, n=8, cutoff=0.0)
                near = ", ".join(map(repr, nearest))
                hint = f"its columns, the nearest first: {near}." if near else "it has none at all."
                raise ConfigError(f"{flag(name)} {column}: INPUT has no such column; {hint}")
    if recorded is not None and schema is not recorded:
        check_new_schema(recorded, schema, options)
    return schema


def check_columns(options: RunOptions, schema: T.StructType) -> None:
    """Reject columns that the output cannot hold, or whose names mean something else there."""
    check_carried(schema)
    names = {name.lower() for name in schema.names}
    for name, added in (
        ("duplicates", VERDICT if options.duplicates is not None else None),
        ("verdict", options.verdict),
    ):
        if added is not None and added.lower() in names:
            raise ConfigError(
                f"INPUT has a column {added!r}, which {flag(name)} adds; rename it in the input."
            )
    if "batch" in names:
        raise ConfigError(
            "INPUT has a column 'batch', which the folders batch=<id> of --output would hide from "
            "readers; rename it in the input."
        )
    for field in schema.fields:
        if not can_write(field.dataType, options.output_format or "parquet"):
            others = "json or parquet" if options.output_format == "csv" else "parquet"
            raise ConfigError(
                f"--output-format {options.output_format} has no text for the column "
                f"{field.name!r} ({field.dataType.simpleString()}); give {others}, or --schema "
                "with the column as STRING."
            )


def transform(
    spark: SparkSession, job: Job, schema: T.StructType, new: Iterable[str]
) -> FilesQuery:
    """Return the query over the new files, and check it against the checkpoint.

    Raises DedupError if the check finds that the query would fail in its first micro-batch.
    """
    options = job.options
    operator = dedup_by_id(
        list(map(named_column, options.id)),
        catalog=str(options.catalog),
        timestamp=timestamp_column(options, schema),
        source_partition=list(map(named_column, options.source_partition)),
        order_by=list(map(named_column, options.order_by)),
        check_payload=list(map(named_column, options.check_payload)) or False,
        verdict=VERDICT if options.duplicates is not None else options.verdict,
        **options.for_operator() | {"shards": job.shards},
    )
    source, sink = listed_files(spark, job, schema), _output_folder(job)
    rows = plan_stream(spark, job, schema, source)
    check_resume(rows, operator.options, str(options.checkpoint))
    if not source.paths:
        return query(rows, operator, source, sink)
    source = replace(source, paths=tuple(map(Path, new)))
    is_spark = options.parquet == "spark" and sink.file_format == "parquet"
    return query(rows, operator, source, (source.by_spark if is_spark else None) or sink)


def _output_folder(job: Job) -> OutputFolder:
    options, files = job.options, job.files
    is_same = options.output_format == files.file_format
    return OutputFolder(
        staging=options.output / STAGING,
        split_by=VERDICT if options.duplicates is not None else None,
        file_format=options.output_format or "parquet",
        dialect=read_back_by(dict(options.read_options) if is_same else {}),
        compression="gzip" if files.compressed else "none",
    )
