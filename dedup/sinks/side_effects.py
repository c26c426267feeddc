"""Functions for ``foreachBatch`` with effects that a replay by Spark must not change or repeat.

A folder ``<query ID>`` at the user's path holds:

- ``staged/`` and ``manifests/``: the rows of a micro-batch (`dedup.sinks.slice_store`).
- ``attempts/<micro-batch>.json``: a call of the function has begun.
- ``done/<micro-batch>.json``: a call of the function has returned.

A record in the checkpoint (`dedup.sinks.begun`) shows whether this folder has lost files.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, NoReturn

import pyarrow as pa

from dedup.errors import ConfigError, SinkError, faults
from dedup.sinks.batch import this_process
from dedup.sinks.begun import Begun
from dedup.sinks.fan_out import BatchFunction
from dedup.sinks.foreach_batch import numbered, query_of, run_tasks, start_of
from dedup.sinks.ledger import FORMAT
from dedup.sinks.options import located
from dedup.sinks.protocol import StagedSlice
from dedup.sinks.slice_store import MANIFESTS, SliceStore, batch_ids, clean
from dedup.spark.machine import wall_clock_ms
from dedup.storage.document import to_document
from dedup.storage.root import Root
from dedup.storage.uri import below
from dedup.values.duration import iso

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("dedup")

#: Start and micro-batch of the last call that returned, by query and function. This belongs to the
#: process, because it finds other functions of the query.
_returned: dict[tuple[str, str], tuple[str, int]] = {}


class BatchEffects(ABC):
    """A user's function for ``foreachBatch``, and the path of the files that guard its effects."""

    name: ClassVar[str]
    #: Folders with a file for each micro-batch that is in progress or done.
    folders: ClassVar[tuple[str, ...]]

    def __init__(self, function: BatchFunction, at: str) -> None:
        self.function, self.at = function, located(at)
        self._shown = f"{self.name}(..., at={Root(self.at).url()!r})"

    def __str__(self) -> str:
        return self._shown

    def __reduce__(self) -> NoReturn:
        # Only Spark Connect pickles a function for foreachBatch.
        raise ConfigError(
            f"{self} needs a classic session. Under Spark Connect, give a sink of this package to "
            "foreachBatch, or write the stream with a format.",
            remedy="foreach-batch-threads",
        )

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Call the function for a micro-batch, if it has to be called."""
        query_id, start = query_of(rows), start_of(rows)
        if not query_id:
            raise ConfigError(
                f"{self} does not know its query. Give it to foreachBatch or to split. A function "
                "of yours may call it in the same thread.",
                remedy="foreach-batch-threads",
            )
        if start and _returned.get((query_id, str(self))) == (start, batch_id):
            raise ConfigError(
                f"{self} was called twice for micro-batch {batch_id}. The second call would get "
                "the files of the first. Give each function another path."
            )
        shown = hashlib.blake2b(str(self).encode(), digest_size=8).hexdigest()
        begun = Begun(rows, query_id, f"{self.name}-{shown}")
        begun.refuse_lost(self, newest := self._refuse_older(query_id, batch_id))
        is_first = (start, batch_id) not in _returned.values()
        if newest < 0 and is_first and begun.is_elsewhere(batch_id):
            logger.warning(
                "%s is new, and a function with another path has begun micro-batch %d before. If "
                "you have moved `at` without its files, the function is called again.",
                self, batch_id,
            )  # fmt: skip
        self._run(query_id, rows, batch_id, begun)
        _returned[query_id, str(self)] = (start, batch_id)

    def _refuse_older(self, query_id: str, batch_id: int) -> int:
        """Return the newest micro-batch that has files. Raise SinkError if it is a later one.

        A process that was frozen may write files of a micro-batch whose files its successor has
        deleted. The successor deletes them only after it has written files of the next micro-batch.
        So this check has to be repeated after files were written.
        """
        root = self._root(query_id)
        numbers = (number for folder in self.folders for number in batch_ids(root, folder))
        newest = max(numbers, default=-1)
        if newest > batch_id:
            raise SinkError(
                f"The query is at micro-batch {batch_id}, and the newest files of {self} are of "
                f"micro-batch {newest}. The function was not called. Either the checkpoint was "
                "restored or copied, and the function's effects would be there twice. Or another "
                "start of the query has continued: let only one run.",
                remedy="sink-older-checkpoint",
            )
        return newest

    def _root(self, query_id: str) -> Root:
        return Root(below(self.at, query_id))

    @abstractmethod
    def _run(self, query_id: str, rows: DataFrame, batch_id: int, begun: Begun) -> None:
        """Call the function, if it has to be called, and delete files of earlier micro-batches.

        Note the micro-batch in `begun` between its first durable files and the call.
        """


class Stable(BatchEffects):
    """The function that `stable` returns."""

    name = "stable"
    folders = (MANIFESTS,)

    def _run(self, query_id: str, rows: DataFrame, batch_id: int, begun: Begun) -> None:
        from dedup.spark.driver.columns import check_carried

        check_carried(rows.schema)
        store = SliceStore(self.at, query_id, self.name)
        if batch_id in store.decided():
            _run_to_the_end(rows)
            slices = store.manifest(batch_id, ())
        else:
            slices = store.manifest(batch_id, _stage(rows, store, batch_id))
            self._refuse_older(query_id, batch_id)
        begun.note(batch_id)
        store.clean(batch_id - 1)
        self.function(_staged_rows(rows, store, slices, str(self)), batch_id)
        faults.point("stable.called")


class OncePerBatch(BatchEffects):
    """The function that `once_per_batch` returns."""

    name = "once_per_batch"
    folders = ("attempts", "done")
    calls_repeated = 0

    def _run(self, query_id: str, rows: DataFrame, batch_id: int, begun: Begun) -> None:
        root = self._root(query_id)
        attempt, done = f"attempts/{batch_id}.json", f"done/{batch_id}.json"
        is_first = root.create_bytes(attempt, _record(batch_id))
        self._refuse_older(query_id, batch_id)
        begun.note(batch_id)
        clean(root, self.folders, batch_id)
        if root.exists(done):
            _run_to_the_end(rows)
            return
        if not is_first:
            logger.warning(
                "%s calls its function again for micro-batch %d: an earlier call has begun, and no "
                "record shows that it returned (%s).", self, batch_id, root.url(attempt),
            )  # fmt: skip
            self.calls_repeated += 1
        faults.point("once.begun")
        self.function(rows, batch_id)
        faults.point("once.called")
        root.create_bytes(done, _record(batch_id))
        faults.point("once.done")


def stable(function: BatchFunction, *, at: str) -> Stable:
    """Return a function for ``foreachBatch`` that passes the same rows whenever Spark repeats it.

    Tasks write the rows of a micro-batch to files, and the driver decides durably that they are the
    rows of this micro-batch. Only then your function gets them. If Spark repeats the micro-batch,
    your function gets these rows again, in the same order and in the same partitions, even if the
    source or an expression returns others now. Spark's plan then still runs to its end, so that
    operators with state commit.

    Parameters
    ----------
    function : callable of (DataFrame, int)
        Gets the staged rows and the number of the micro-batch. It may read only some of the rows,
        or read them several times. It is called at least once for each micro-batch.
    at : str
        Folder for the files: a path that driver and executors share, or a URI that pyarrow knows
        (``s3://``). Queries may share the folder. Two functions of one query may not.

    Returns
    -------
    Stable
        Give it to ``foreachBatch``, or to `split`.

    Raises
    ------
    ConfigError
        If the session is of Spark Connect. In the first micro-batch, if a column has a type that
        Spark cannot pass to Python (void, interval, year-month interval), or if two functions share
        the folder. Later, if an unfinished micro-batch was staged with other columns.
    SinkError
        In a micro-batch, if the checkpoint is older than the files, or if files are missing or
        damaged.

    Notes
    -----
    The files of a micro-batch are deleted when the next one is staged. A random value must not
    enter an operator with state, such as an aggregation: a replay would change the state, and not
    the staged rows.
    """
    return Stable(function, at)


def once_per_batch(function: BatchFunction, *, at: str) -> OncePerBatch:
    """Return a function for ``foreachBatch`` that is not repeated after it has returned.

    Before your function is called, a file records the attempt. After it has returned, another file
    records that. If Spark repeats the micro-batch, your function is called again only if the second
    file is missing, because then nothing shows how far the earlier call came.

    Parameters
    ----------
    function : callable of (DataFrame, int)
        Gets the rows and the number of the micro-batch.
    at : str
        Folder for the two files: a path or URI, as in `stable`, which may have the same folder.

    Returns
    -------
    OncePerBatch
        Give it to ``foreachBatch``, to `split`, or to `stable`. Its attribute ``calls_repeated``
        counts the repeated calls in this process. The logger ``dedup`` warns of each.

    Raises
    ------
    ConfigError
        If the session is of Spark Connect. In the first micro-batch, if two functions share the
        folder.
    SinkError
        In a micro-batch, if the checkpoint is older than the files, or if files are missing.
    """
    return OncePerBatch(function, at)


def _stage(rows: DataFrame, store: SliceStore, batch_id: int) -> list[StagedSlice]:
    def stage(task: int, batches: Iterable[pa.RecordBatch]) -> StagedSlice:
        staged = store.write(batch_id, task, batches)
        faults.point("stable.staged")
        return staged

    return run_tasks(rows, stage)


def _staged_rows(
    rows: DataFrame, store: SliceStore, slices: Sequence[StagedSlice], function: str
) -> DataFrame:
    """Return the staged rows as a DataFrame with the columns of `rows`, a partition per slice."""
    from pyspark.sql.types import StructField, StructType

    names, numbers = rows.columns, numbered(rows)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (n for batch in batches for n in batch.column(0).to_pylist()):
            store.verify(slices[number : number + 1])
            for batch in store.read(slices[number]):
                if batch.schema.names != names:
                    raise ConfigError(
                        f"{function} has staged this micro-batch with the columns "
                        f"{batch.schema.names}, and the query now has {names}. Start the earlier "
                        "query until it has committed the micro-batch, then change the columns."
                    )
                yield batch.rename_columns(numbers)

    fields = zip(numbers, rows.schema.fields, strict=True)
    schema = StructType([StructField(n, f.dataType, f.nullable, f.metadata) for n, f in fields])
    of_slices = rows.sparkSession.range(0, len(slices), 1, max(len(slices), 1))
    return of_slices.mapInArrow(read, schema).toDF(*names)


def _run_to_the_end(rows: DataFrame) -> None:
    """Compute all rows and drop them: Spark commits the state of operators that have ended."""
    rows.write.format("noop").mode("overwrite").save()


def _record(batch_id: int) -> bytes:
    body = {"batch_id": batch_id, "writer": this_process(), "time": iso(wall_clock_ms())}
    return to_document(body, version=FORMAT)
