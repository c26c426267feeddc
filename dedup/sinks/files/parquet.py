"""`dedup_parquet`: a stream from a folder of files to a folder of Parquet files, for users."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from dedup.catalog.root import Root
from dedup.catalog.uri import check_local, local_path
from dedup.core.option import choice
from dedup.errors import ConfigError
from dedup.sinks.batch_folders import STAGING, check_not_ahead
from dedup.sinks.files.query import ParquetFolder, SourceFiles, query
from dedup.sinks.folder_sink import VERDICT, SparkRows, StagedFiles
from dedup.sinks.output_owner import own_output
from dedup.sources.files.folder_columns import folder_names
from dedup.sources.files.orc_times import check_orc_times
from dedup.sources.files.parquet_input import spark_columns
from dedup.spark.driver import checks
from dedup.spark.driver.build import Operator
from dedup.spark.machine import home_path

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger("dedup")


def dedup_parquet(
    spark: SparkSession,
    source: str | os.PathLike[str],
    operator: Operator,
    *,
    output: str | os.PathLike[str],
    duplicates: str | os.PathLike[str] | None = None,
    source_format: str = "parquet",
    schema: T.StructType | str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataStreamWriter:
    """Return a query over a folder of files whose unique rows go to another folder, as Parquet.

    It is yet to be started: give it ``option("checkpointLocation", ...)``, a trigger and a name,
    and call ``start()``. Each micro-batch appears as the folder ``batch=<number>`` of the output,
    whole, once, or not at all. Where pyarrow reads and writes Parquet with Spark's meaning, the
    query's own tasks do so, and no row goes through the JVM; else Spark does, and a warning of the
    logger ``dedup`` says why. Spark reads ORC.

    Parameters
    ----------
    spark : SparkSession
        Classic, not Spark Connect.
    source : path
        Folder with files; partition folders such as ``day=2024-05-01`` are columns.
    operator : Operator
        Made by `dedup_by_id`, without the option `verdict` if `duplicates` is given.
    output : path
        Folder on the local disk; with ``shared_local=True`` of the operator, on a mount that all
        machines share. It belongs to one query.
    duplicates : path, optional
        Folder of the rows that do not go on, in folders ``dedup_verdict=<verdict>`` of each
        micro-batch. On the same terms.
    source_format : {"parquet", "orc"}, default "parquet"
        Of the files that are read.
    schema : StructType or DDL, optional
        The columns. Default: those of the files that are there.
    options : mapping of str to str, optional
        Those of Spark's file source, such as ``maxFilesPerTrigger``.

    Raises
    ------
    ConfigError
        If folders, columns or session cannot work.
    CatalogError
        If the catalog cannot be written.
    """
    _check_classic(spark)
    choice("parquet", "orc").check(source_format, "source_format")
    places = {"source": source, "output": output}
    if duplicates is not None:
        places["duplicates"] = duplicates
    folders = {name: _folder(name, place) for name, place in places.items()}
    _check_apart(folders)
    if checks.local_cores(spark) is None and not operator.options.shared_local:
        raise ConfigError(
            f"output={folders['output']} is a local path, but Spark runs on "
            f"{checks.master_of(spark) or 'a cluster'}: every executor would see another disk. "
            "Set shared_local=True in dedup_by_id if it is the same mount on every machine.",
            remedy="unshared-root",
        )
    if duplicates is not None:
        if operator.options.verdict is not None:
            raise ConfigError(
                "verdict= lets every row go on, so that duplicates= would have none; give one of "
                "them."
            )
        operator = Operator(replace(operator.options, verdict=VERDICT))
    given = dict(options or {})
    place = str(folders["source"])
    reader = spark.read.format(source_format).options(**given)

    def listed() -> list[str]:
        # The columns do not matter: the files are listed, not read.
        files = spark.read.format(source_format).options(**given).schema(schema or "_ INT")
        return [local_path(uri) for uri in files.load(place).inputFiles()]

    paths = tuple(map(Path, listed()))
    if schema is None:
        schema = spark_columns(reader, place, paths, folders["source"])
    stream = spark.readStream.format(source_format).schema(schema)
    rows = stream.options(**given).load(place)
    names = (name for path in paths for name in folder_names(path, folders["source"]))
    made = query(
        rows,
        operator,
        SourceFiles(
            place=place,
            options=given,
            folders=frozenset(name.lower() for name in names),
            paths=paths,
        )
        if source_format == "parquet"
        else f"the input is {source_format}",
        ParquetFolder(
            staging=folders["output"] / STAGING,
            split_by=VERDICT if duplicates is not None else None,
        ),
    )
    for told in made.left_to_spark():
        logger.warning(told)
    checked = set[str]()

    def check_times(_: int) -> None:
        """Check the files of a micro-batch, and all others that are new."""
        new = set(listed()) - checked
        check_orc_times(spark, map(Path, new), rows.schema)
        checked.update(new)

    handling = operator.options.handling
    sink = StagedFiles(
        output=folders["output"],
        writer=made.writer or SparkRows("parquet"),
        duplicates=folders.get("duplicates"),
        verdict=VERDICT,
        before_publishing=check_times if source_format == "orc" else None,
        goes_on=handling.emitted if duplicates is not None else handling.passing,
    )
    return made.stream.writeStream.foreachBatch(_OwnedOutput(sink))


@dataclass(slots=True)
class _OwnedOutput:
    """Function for ``foreachBatch`` that lets one query alone write to an output."""

    sink: StagedFiles
    _owner: str | None = field(default=None)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query_id is None:
            raise ConfigError("dedup_parquet works inside a streaming query alone: start it.")
        if self._owner != query_id:
            # Before anything in there is touched: what is being staged may be somebody else's.
            own_output(Root(self.sink.output), query_id)
            check_not_ahead(
                (self.sink.output, self.sink.duplicates),
                batch_id,
                f"and the query goes on with {batch_id}",
            )
            self.sink.open()
            self._owner = query_id
        self.sink(batch, batch_id)


def _check_classic(spark: SparkSession) -> None:
    try:
        spark.sparkContext  # noqa: B018
    except Exception:
        raise ConfigError(
            "dedup_parquet needs a classic session: over Spark Connect it can neither see the "
            "files nor know which query runs. Start Spark in this program, without remote()."
        ) from None


def _folder(option: str, place: str | os.PathLike[str]) -> Path:
    text = os.fspath(place)
    check_local(text, option)
    return home_path(text).resolve()


def _check_apart(folders: Mapping[str, Path]) -> None:
    names = list(folders)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            a, b = folders[one], folders[other]
            if a.is_relative_to(b) or b.is_relative_to(a):
                raise ConfigError(f"{one}={a} and {other}={b} overlap; give each its own folder.")
