"""Read a sample of the data with Spark, and find its IDs per day and how IDs repeat."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dedup import kernel
from dedup.core.keys import Keys
from dedup.errors import ConfigError
from dedup.kernel.arrays import I64
from dedup.sources.files.file_order import FileOrder
from dedup.storage.uri import local_path
from dedup.tools.tuning.demand import DAY_MS, Demand, Repeats
from dedup.tools.tuning.load import HASH_KEY
from dedup.tools.tuning.trial import TRIAL_IDS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Default of the option `max_future`.
_MAX_FUTURE_MS = 600_000
#: Share of the oldest, and of the newest, timestamps that are ignored as outliers.
_STRAY = 0.001
#: Largest number of records in a sample. A larger source is thinned out by ID: the sample keeps
#: all copies of some IDs.
MAX_RECORDS = 2_000_000
#: Number of rows that show the size of a row. They may be large, and all are in memory.
_MEASURED_ROWS = 100


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Records with an ID, in the order of their files."""

    keys: Keys
    #: Timestamps, if a column has them.
    times_ms: I64 | None
    #: Number of the file that each record comes from, in ascending order.
    files: I64
    #: The sample holds one of every `one_in` IDs, with all its records.
    one_in: int = 1
    #: Name of the source, for messages.
    where: str = "the sample"
    #: Mean size of the first rows in Arrow's form. Unknown if it is 0.
    row_bytes: float = 0

    def __len__(self) -> int:
        return len(self.keys)


def of_sample(base: Demand, sample: Sample, ids_per_day: float | None) -> Demand:
    """Return `base` with the figures that a sample shows, such as rate and repeats.

    `ids_per_day` replaces the sample's rate unless it is None.
    """
    count, where = len(sample), sample.where
    if not count:
        timed = "" if sample.times_ms is None else " and a timestamp"
        raise ConfigError(f"--sample {where} holds no record with an ID{timed}.")
    times_ms, effective_ms = sample.times_ms, None
    order = np.arange(count)
    newest_before = np.zeros(count, np.int64)
    if times_ms is not None:
        newest_before = _newest_before(times_ms, sample.files)
        effective_ms = np.maximum(times_ms, newest_before - base.lateness_ms)
        # The operator judges file by file, and the records of a file in order of time.
        order = np.lexsort((effective_ms, sample.files))
    keys = sample.keys.take(order)
    hashes = kernel.hash64(keys.data, keys.offsets, HASH_KEY)
    first = kernel.first_occurrence(keys.data, keys.offsets, hashes)
    is_first = first == np.arange(count)
    distinct = int(is_first.sum())
    repeats = None
    if times_ms is not None and effective_ms is not None:
        times_ms, effective_ms = times_ms[order], effective_ms[order]
        again = np.flatnonzero(~is_first)
        behind_ms = newest_before[order] - times_ms
        repeats = Repeats(
            apart_ms=np.sort(effective_ms[again] - effective_ms[first[again]]),
            behind_ms=np.sort(behind_ms[behind_ms > 0]),
            records=count,
            same_timestamp=int((times_ms[again] == times_ms[first[again]]).sum()),
            span_ms=int(np.ptp(_without_strays(times_ms))),
        )
    if ids_per_day is None:
        ids_per_day = _ids_per_day(where, times_ms, is_first, sample.one_in)
    return replace(
        base,
        origin=f"{count * sample.one_in:,} records of {where}",
        ids_per_day=ids_per_day,
        duplicates=1 - distinct / count,
        event_time=times_ms is not None,
        lateness_ms=base.lateness_ms if times_ms is not None else 0,
        key_bytes=max(1, round(len(keys.data) / count)),
        row_bytes=sample.row_bytes,
        keys=keys.take(np.flatnonzero(is_first)[: 4 * TRIAL_IDS]),
        repeats=repeats,
    )


def without_future(times_ms: I64, files: I64, now_ms: int) -> I64:
    """Replace future timestamps, as the operator does, so that they make no later record late.

    The replacement is the newest past timestamp in the record's file and all earlier files. The
    operator uses the time of the micro-batch.
    """
    future = times_ms > now_ms + _MAX_FUTURE_MS
    if not future.any():
        return times_ms
    others = times_ms[~future]
    oldest = others.min() if len(others) else now_ms
    newest, file = _newest_by_file(np.where(future, oldest, times_ms), files)
    return np.where(future, newest[file], times_ms)


def _newest_by_file(times_ms: I64, files: I64) -> tuple[I64, npt.NDArray[np.intp]]:
    """Return the newest timestamp up to the end of each file, and each record's file."""
    _, starts, file = np.unique(files, return_index=True, return_inverse=True)
    return np.maximum.accumulate(np.maximum.reduceat(times_ms, starts)), file


def _newest_before(times_ms: I64, files: I64) -> I64:
    """Return for every record the newest timestamp of earlier files.

    Records of the first file get the oldest timestamp of that file.
    """
    newest, file = _newest_by_file(times_ms, files)
    before = np.concatenate([[times_ms[files == files[0]].min()], newest[:-1]])
    return before[file]


def _ids_per_day(
    where: str, times_ms: I64 | None, is_first: npt.NDArray[np.bool_], one_in: int
) -> float:
    if times_ms is None:
        raise ConfigError(
            f"--sample {where} without --timestamp does not show how many IDs come per day. Give "
            "--ids-per-day as well."
        )
    new_ms = times_ms[is_first]
    within_ms = _without_strays(new_ms)
    span_ms = int(np.ptp(within_ms))
    if span_ms < 1:
        raise ConfigError(
            f"In --sample {where} no time passes between the first records of its IDs. Give "
            "--ids-per-day, or a longer sample."
        )
    return len(within_ms) * one_in / span_ms * DAY_MS


def _without_strays(times_ms: I64) -> I64:
    strays = int(_STRAY * len(times_ms))
    return np.sort(times_ms)[strays : len(times_ms) - strays]


def read_sample(
    frame: DataFrame,
    id: str | Sequence[Column | str],  # noqa: A002
    timestamp: Column | str | None = None,
    *,
    where: str = "the sample",
    order: FileOrder | None = None,
    file: str | None = None,
) -> Sample:
    """Return a sample from a batch DataFrame that reads files. Records without an ID are skipped.

    Parameters
    ----------
    frame : DataFrame
        Rows of files.
    id : str, or sequence of Column or str
        The ID column, or several columns.
    timestamp : Column or str, optional
        Event time. Records without a timestamp are skipped.
    where : str
        Name of the source, for messages.
    order : FileOrder, optional
        Order of the files. Default: the order of `dedup run`.
    file : str, optional
        Column with the milliseconds of the file's modification, a blank, and the file's URI.
        Default: taken from Spark's metadata.

    Raises
    ------
    ConfigError
        If a column is missing or has an unsupported type.
    """
    from pyspark.sql import functions as fn

    from dedup.spark.driver.columns import Columns, check_id_type, check_time_type, named_column
    from dedup.spark.executor.pack import millis
    from dedup.spark.id_encoding import encode_ids
    from dedup.spark.plan import HELPER_PREFIX
    from dedup.spark.versions import file_metadata, to_arrow

    ids = [id] if isinstance(id, str) else list(id)
    columns = Columns(frame, case_sensitive=False)
    names = [f"id{i}" for i in range(len(ids))]
    selected = []
    for name, column in zip(names, ids, strict=True):
        resolved = columns.resolve(column, "--id")
        check_id_type(resolved)
        column = fn.col(column) if isinstance(column, str) else column
        selected.append(column.alias(name))
    if timestamp is not None:
        check_time_type(columns.resolve(timestamp, "--timestamp"))
        moment = fn.col(timestamp) if isinstance(timestamp, str) else timestamp
        selected.append(moment.alias("time"))
    if file is None:
        metadata = file_metadata(frame)
        modified = fn.unix_millis(metadata["file_modification_time"]).cast("string")
        selected.append(fn.concat_ws(" ", modified, metadata["file_path"]).alias("file"))
    else:
        selected.append(fn.col(file).alias("file"))
    picked = frame.select(*selected)
    picked = picked.where(~reduce(and_, (fn.col(name).isNull() for name in names)))
    if timestamp is not None:
        picked = picked.where(fn.col("time").isNotNull())
    one_in = -(-picked.count() // MAX_RECORDS) or 1
    if one_in > 1:
        picked = picked.where(fn.pmod(fn.xxhash64(*names), fn.lit(one_in)) == 0)
    table = to_arrow(picked)
    coded = table.column("file").combine_chunks().dictionary_encode()
    key = (order or FileOrder()).key
    written = [text.partition(" ") for text in coded.dictionary.to_pylist()]
    keys_of = [key(int(modified_ms), local_path(uri)) for modified_ms, _, uri in written]
    place = np.argsort(sorted(range(len(written)), key=keys_of.__getitem__))
    files = place[coded.indices.to_numpy(zero_copy_only=False)]
    rows = np.argsort(files, kind="stable")
    keys = encode_ids([table.column(name).combine_chunks() for name in names]).keys.take(rows)
    times_ms = None
    if timestamp is not None:
        times_ms = millis(table.column("time").combine_chunks())[rows]
        times_ms = without_future(times_ms, files[rows], time.time_ns() // 1_000_000)
    row_bytes = 0.0
    with suppress(Exception):  # Spark cannot pass all types
        own = [name for name in frame.columns if not name.startswith(HELPER_PREFIX)]
        first = to_arrow(frame.select(*map(named_column, own)).limit(_MEASURED_ROWS))
        row_bytes = first.nbytes / max(1, first.num_rows)
    return Sample(
        keys=keys,
        times_ms=times_ms,
        files=files[rows],
        one_in=one_in,
        where=where,
        row_bytes=row_bytes,
    )
