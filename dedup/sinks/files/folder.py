"""`dedup_folder`: the public function that de-duplicates a folder of files into another folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import ConfigError
from dedup.sinks.batch_folders import STAGING, check_not_ahead
from dedup.sinks.files.columns import can_write
from dedup.sinks.files.query import OutputFolder, SourceFiles, query, read_back_by, read_rows
from dedup.sinks.folder_sink import VERDICT, SparkRows, StagedFiles
from dedup.sinks.output_owner import own_output
from dedup.sources.files.folder_columns import folder_names
from dedup.sources.files.orc_times import check_orc_times
from dedup.sources.files.parquet_input import spark_columns
from dedup.sources.files.scan import TextSource
from dedup.sources.files.text_options import (
    OF_STREAMS,
    check_options,
    header_of,
    listing_options,
    text_format,
)
from dedup.spark.driver import checks
from dedup.spark.driver.build import Operator
from dedup.spark.machine import home_path
from dedup.spark.options import Options
from dedup.storage.root import Root
from dedup.storage.uri import check_local, local_path
from dedup.values.option import choice

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger("dedup")


def dedup_folder(
    spark: SparkSession,
    source: str | os.PathLike[str],
    operator: Operator[Options],
    *,
    output: str | os.PathLike[str],
    duplicates: str | os.PathLike[str] | None = None,
    source_format: str = "parquet",
    output_format: str = "parquet",
    schema: T.StructType | str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataStreamWriter:
    """Return a query that reads a folder of files and writes the unique rows into another folder.

    Set ``option("checkpointLocation", ...)``, a trigger and a name, and call ``start()``. Each
    micro-batch appears whole and once, as the folder ``batch=<number>`` of the output. The query's
    tasks read and write the files with pyarrow, so no row goes through the JVM. Only ORC, and
    Parquet that pyarrow cannot read or write exactly as Spark would, is left to Spark, and the
    logger ``dedup`` warns and gives the reason. CSV and JSON are read by the rules of `dedup run`:
    a record that cannot be read stops the query, with its file and line.

    Parameters
    ----------
    spark : SparkSession
        Classic, not Spark Connect.
    source : path
        Folder with files. Partition folders such as ``day=2024-05-01`` become columns.
    operator : Operator
        The operator that `dedup_by_id` returns. If `duplicates` is given, do not set the option
        `verdict`.
    output : path
        Folder on the local disk. If the operator has ``shared_local=True``, the folder may be on a
        mount that all machines share. The output belongs to one query.
    duplicates : path, optional
        A second output, for the rows that do not pass. In it each micro-batch has folders
        ``dedup_verdict=<verdict>``.
    source_format : {"parquet", "orc", "csv", "json"}, default "parquet"
        Format of the input.
    output_format : {"parquet", "csv", "json"}, default "parquet"
        Format of the output.
    schema : StructType or DDL, optional
        Columns of the input. JSON needs them. Default: the columns of the existing files, which
        are text in CSV.
    options : mapping of str to str, optional
        Options of Spark's file source, such as ``maxFilesPerTrigger``. For CSV and JSON also the
        options of Spark's readers that `dedup run` knows, such as ``sep`` and ``timestampFormat``.

    Raises
    ------
    ConfigError
        If the query cannot work with these folders, these columns or this session.
    CatalogError
        If the catalog cannot be written.
    """
    _check_classic(spark)
    choice("parquet", "orc", "csv", "json").check(source_format, "source_format")
    choice("parquet", "csv", "json").check(output_format, "output_format")
    folders = _folders(source=source, output=output, duplicates=duplicates)
    _check_shared(spark, operator, folders["output"])
    if duplicates is not None:
        if operator.options.verdict is not None:
            raise ConfigError(
                "verdict= lets every row pass, so that duplicates= would stay empty. Give only one "
                "of them."
            )
        operator = Operator(replace(operator.options, verdict=VERDICT))
    read_options = dict(options or {})
    rows, files = _input(spark, folders["source"], source_format, read_options, schema)
    for column in rows.schema.fields:
        if not can_write(column.dataType, output_format):
            raise ConfigError(
                f"output_format={output_format!r} has no text for the column {column.name!r} "
                f"({column.dataType.simpleString()}); give 'parquet', or a schema with the column "
                "as STRING."
            )
    made = query(
        rows,
        operator,
        files,
        OutputFolder(
            staging=folders["output"] / STAGING,
            split_by=VERDICT if duplicates is not None else None,
            file_format=output_format,
            dialect=read_back_by(read_options if output_format == source_format else {}),
        ),
    )
    for line in made.left_to_spark():
        logger.warning(line)
    handling = operator.options.handling
    check_times = _orc_times_check(spark, folders["source"], read_options, rows.schema)
    sink = StagedFiles(
        output=folders["output"],
        writer=made.writer or SparkRows(),
        duplicates=folders.get("duplicates"),
        before_publishing=check_times if source_format == "orc" else None,
        goes_on=handling.emitted if duplicates is not None else handling.passing,
    )
    return made.stream.writeStream.foreachBatch(_OwnedOutput(sink))


def _input(
    spark: SparkSession,
    folder: Path,
    file_format: str,
    options: Mapping[str, str],
    schema: T.StructType | str | None,
) -> tuple[DataFrame, SourceFiles]:
    """Return the stream of the files' rows, and how tasks read the files."""
    is_text = file_format in ("csv", "json")
    if is_text:
        about = {name: value for name, value in options.items() if name.lower() not in OF_STREAMS}
        check_options(about, file_format)
    paths = _listed(spark, folder, file_format, options)
    if schema is None and file_format == "json":
        raise ConfigError("source_format='json' needs schema=, the columns of the records.")
    if schema is None and file_format == "csv":
        # Columns that folders name may be missing.
        headers = filter(None, (header_of(path, options) for path in paths))
        schema = T.StructType([T.StructField(name, T.StringType()) for name in next(headers, ())])
    elif schema is None:
        reader = spark.read.format(file_format).options(**options)
        schema = spark_columns(reader, str(folder), paths, folder)
    stream = spark.readStream.format(file_format).schema(schema).options(**options)
    rows = stream.load(str(folder))
    files = SourceFiles(
        place=str(folder),
        options=options,
        folders=frozenset(name.lower() for path in paths for name in folder_names(path, folder)),
        paths=paths if file_format == "parquet" else (),
        by_spark="the input is orc" if file_format == "orc" else None,
    )
    if not is_text:
        return rows, files
    zone = checks.time_zone(spark)
    text = text_format(rows.schema, file_format, options, zone, files.folders)
    files = replace(
        files, options=listing_options(options), text=TextSource(root=folder, format=text)
    )
    return read_rows(spark.readStream, rows.schema, files), files


def _listed(
    spark: SparkSession, folder: Path, file_format: str, options: Mapping[str, str]
) -> tuple[Path, ...]:
    # Any schema works, because Spark lists the files and does not read them.
    reader = spark.read.format(file_format).options(**options).schema("_ INT")
    return tuple(Path(local_path(uri)) for uri in reader.load(str(folder)).inputFiles())


def _orc_times_check(
    spark: SparkSession, folder: Path, options: Mapping[str, str], columns: T.StructType
) -> Callable[[int], None]:
    """Return a function that checks new ORC files, among which are all of the micro-batch."""
    checked: set[Path] = set()

    def check(_: int) -> None:
        new = set(_listed(spark, folder, "orc", options)) - checked
        check_orc_times(spark, new, columns)
        checked.update(new)

    return check


@dataclass(slots=True)
class _OwnedOutput:
    """Function for ``foreachBatch`` that raises an error if another query owns the output."""

    sink: StagedFiles
    _owner: str | None = field(default=None)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query_id is None:
            raise ConfigError("dedup_folder works inside a streaming query alone: start it.")
        if self._owner != query_id:
            # Check the owner first, because another query may be staging files in the output.
            own_output(Root(self.sink.output), query_id)
            check_not_ahead(
                (self.sink.output, self.sink.duplicates),
                batch_id,
                f"and the query is at {batch_id}",
            )
            self.sink.open()
            self._owner = query_id
        self.sink(batch, batch_id)


def _check_classic(spark: SparkSession) -> None:
    try:
        spark.sparkContext  # noqa: B018
    except Exception:
        raise ConfigError(
            "dedup_folder needs a classic session: over Spark Connect it can neither see the "
            "files nor know its query. Start Spark in this program, without remote()."
        ) from None


def _check_shared(spark: SparkSession, operator: Operator[Options], output: Path) -> None:
    if checks.local_cores(spark) is None and not operator.options.shared_local:
        raise ConfigError(
            f"output={output} is a local path, but Spark runs on "
            f"{checks.master_of(spark) or 'a cluster'}: every executor would see another disk. "
            "Set shared_local=True in dedup_by_id if it is the same mount on every machine.",
            remedy="unshared-root",
        )


def _folders(**places: str | os.PathLike[str] | None) -> dict[str, Path]:
    folders: dict[str, Path] = {}
    for option, place in places.items():
        if place is None:
            continue
        text = os.fspath(place)
        check_local(text, option)
        folder = home_path(text).resolve()
        for other, taken in folders.items():
            if folder.is_relative_to(taken) or taken.is_relative_to(folder):
                raise ConfigError(
                    f"{other}={taken} and {option}={folder} overlap; give each its own folder."
                )
        folders[option] = folder
    return folders
