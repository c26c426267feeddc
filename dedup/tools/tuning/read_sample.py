"""Reading a sample of the data for `tune`, with Spark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dedup.catalog.uri import local_path
from dedup.errors import ConfigError
from dedup.spark.driver.file_order import FileOrder
from dedup.tools.tuning.sample import Sample, without_future

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: More records than this are thinned out by ID, so that all copies of those that stay are there.
MAX_RECORDS = 2_000_000


def read_sample(
    frame: DataFrame,
    id: str | Sequence[Column | str],  # noqa: A002
    timestamp: Column | str | None = None,
    *,
    where: str = "the sample",
    order: FileOrder | None = None,
) -> Sample:
    """Return the records with an ID of a batch DataFrame that Spark reads from files.

    Parameters
    ----------
    frame : DataFrame
        Rows of files, which are taken in `order`.
    id : str, or sequence of Column or str
        The ID column, or several.
    timestamp : Column or str, optional
        Event time; records without one are left out.
    where : str
        For people.
    order : FileOrder, optional
        Of the files. Default: the one of `dedup run`.

    Raises
    ------
    ConfigError
        When a column cannot be what was asked for.
    """
    from pyspark.sql import functions as fn

    from dedup.spark.driver.columns import Columns, check_id_type, check_time_type
    from dedup.spark.executor.pack import millis
    from dedup.spark.id_encoding import encode_ids

    ids = [id] if isinstance(id, str) else list(id)
    if not ids:
        raise ConfigError("A sample needs the columns of the ID: give one or more names.")
    columns = Columns(frame, case_sensitive=False)
    names = [f"id{i}" for i in range(len(ids))]
    wanted = []
    for name, column in zip(names, ids, strict=True):
        resolved = columns.resolve(column, "--id")
        check_id_type(resolved)
        wanted.append(fn.col(column).alias(name) if isinstance(column, str) else column.alias(name))
    if timestamp is not None:
        check_time_type(columns.resolve(timestamp, "--timestamp"))
        moment = fn.col(timestamp) if isinstance(timestamp, str) else timestamp
        wanted.append(moment.alias("time"))
    file = frame.metadataColumn("_metadata")
    written = fn.unix_millis(file["file_modification_time"]).cast("string")
    wanted.append(fn.concat_ws(" ", written, file["file_path"]).alias("file"))
    picked = frame.select(*wanted)
    picked = picked.where(~reduce(and_, (fn.col(name).isNull() for name in names)))
    if timestamp is not None:
        picked = picked.where(fn.col("time").isNotNull())
    one_in = -(-picked.count() // MAX_RECORDS) or 1
    if one_in > 1:
        picked = picked.where(fn.pmod(fn.xxhash64(*names), fn.lit(one_in)) == 0)
    table = picked.toArrow().combine_chunks()
    coded = _one(table.column("file")).dictionary_encode()
    found = [text.partition(" ") for text in coded.dictionary.to_pylist()]
    key = (order or FileOrder()).key
    keys_of = [key(int(mtime_ms), local_path(uri)) for mtime_ms, _, uri in found]
    place = np.argsort(sorted(range(len(found)), key=keys_of.__getitem__))
    files = place[coded.indices.to_numpy(zero_copy_only=False)]
    rows = np.argsort(files, kind="stable")
    keys = encode_ids([_one(table.column(name)) for name in names]).keys.take(rows)
    times_ms = None
    if timestamp is not None:
        told_ms = millis(_one(table.column("time")))[rows]
        times_ms = without_future(told_ms, files[rows], time.time_ns() // 1_000_000)
    return Sample(keys=keys, times_ms=times_ms, files=files[rows], one_in=one_in, where=where)


def _one(column: pa.ChunkedArray) -> pa.Array:
    chunks = column.chunks
    return (
        chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks or [pa.array([], column.type)])
    )
