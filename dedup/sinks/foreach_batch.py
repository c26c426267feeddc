"""A sink as a function for ``foreachBatch``."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pyarrow as pa

from dedup.errors import ConfigError, SinkError
from dedup.sinks.batch import new_batch
from dedup.sinks.kind import OutputInspection, SinkKind
from dedup.sinks.options import SinkOptions, located
from dedup.sinks.work import SinkWork, TaskResult
from dedup.spark.driver.checkpoint_log import read_progress
from dedup.spark.job_tag import JobTag, is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

#: Name and Spark type of each column of a micro-batch.
Columns: TypeAlias = "Sequence[tuple[str, str]]"
T = TypeVar("T")


def columns_of(schema: StructType) -> Columns:
    return tuple((field.name, field.dataType.simpleString()) for field in schema.fields)


#: The last publication of each query and sink: start, micro-batch and function. This belongs to the
#: process, because it finds other functions of the query.
_published: dict[tuple[str, str], tuple[str, int, str]] = {}


class NamedSink:
    """A function for ``foreachBatch`` that has a name, so that `split` can tell sinks apart."""

    #: The sink's name, unique within the query.
    sink: str
    #: The query's checkpoint location.
    checkpoint: str


class SinkFunction(NamedSink):
    """Function for ``foreachBatch`` that publishes each micro-batch once.

    Notes
    -----
    This function makes a run ID of its own, and successive micro-batches share that ID. Spark's run
    ID is not reliable here. Tasks read Spark's run ID from the job group, and a user's function may
    set the job group. The user's function may also call this function twice for one micro-batch.
    After a gap or a repetition, and if Spark's run ID changes, this function makes a new run ID. It
    then checks the output again, and the driver compares the rows with what is published.
    """

    def __init__(self, kind: SinkKind[Any], options: SinkOptions, checkpoint: str) -> None:
        self.kind, self.options = kind, options
        self.sink, self.checkpoint = options.name, checkpoint
        self._located = located(checkpoint)
        #: The prepared work of one run ID, keyed by columns. To prepare work takes requests.
        self._work: tuple[str, dict[Columns, SinkWork]] = ("", {})
        #: For each query, the run ID, the newest micro-batch, whether it was published, and the
        #: start.
        self._runs: dict[str, tuple[str, int, bool, str]] = {}
        self._token = str(uuid.uuid4())

    @classmethod
    def of(
        cls,
        kind: SinkKind[Any],
        checkpoint: str,
        defaults: Mapping[str, str],
        options: Mapping[str, str] | None,
    ) -> SinkFunction:
        """Return the function for a kind of sink. `options` override the options in `defaults`."""
        texts = {"checkpointLocation": checkpoint, **defaults, **(options or {})}
        return cls(kind, kind.parse(texts), checkpoint)

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        with running_query(rows, batch_id, self._located, self.kind.function_name) as running:
            self._publish(rows, batch_id, *running)

    def _publish(self, rows: DataFrame, batch_id: int, query_id: str, start: str) -> None:
        self._refuse_another(query_id, start, batch_id)
        run_id = self._run(query_id, batch_id, start)
        self._runs[query_id] = (run_id, batch_id, False, start)
        work = self._prepared(run_id, rows.schema)

        def write(task: int, batches: Iterable[pa.RecordBatch]) -> TaskResult:
            return work.run_task(new_batch(query_id, work.name, run_id, batch_id), task, batches)

        work.run_driver(run_tasks(rows, write))
        self._runs[query_id] = (run_id, batch_id, True, start)
        _published[query_id, self.sink] = (start, batch_id, self._token)

    def inspect(self) -> OutputInspection:
        """Return what the sink has published, and what the next start of its query will do.

        Raises
        ------
        ConfigError
            If the output or the checkpoint does not exist.
        SinkError
            If the output cannot be read, or a marker is damaged.
        """
        return self.kind.inspect(self.options, read_progress(self._located))

    def prepare(self, schema: StructType) -> SinkWork:
        return self.kind.prepare(self.options, schema)

    def _prepared(self, run_id: str, schema: StructType) -> SinkWork:
        """Return the work of a run. The first call of each run checks columns and output."""
        if self._work[0] != run_id:
            self._work = run_id, {}
        columns, works = columns_of(schema), self._work[1]
        if columns not in works:
            works[columns] = self.prepare(schema)
        return works[columns]

    def _refuse_another(self, query_id: str, start: str, batch_id: int) -> None:
        last_start, last_batch_id, token = _published.get((query_id, self.sink), ("", -1, ""))
        if start and (start, batch_id) == (last_start, last_batch_id) and token != self._token:
            raise same_name(self.sink)

    def _run(self, query_id: str, batch_id: int, start: str) -> str:
        run_id, last, published, begun = self._runs.get(query_id, ("", batch_id, True, start))
        if batch_id == last + 1 and not published:
            raise SinkError(
                f"Micro-batch {last} was not published, and somebody caught the sink's error, so "
                f"that micro-batch {batch_id} would hide the loss. Let the error end the query, "
                "and start the query again."
            )
        return run_id if (batch_id, start) == (last + 1, begun) else str(uuid.uuid4())


def numbered(rows: DataFrame) -> list[str]:
    """Return a name for each column, because Spark's Arrow functions reject some names."""
    return [f"c{number}" for number in range(len(rows.columns))]


def run_tasks(rows: DataFrame, work: Callable[[int, Iterable[pa.RecordBatch]], T]) -> list[T]:
    """Call `work` in each task, with the number and the rows of the task. Return all results."""
    names = rows.columns

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "this runs in tasks"
        named = (batch.rename_columns(names) for batch in batches)
        result = pickle.dumps(work(context.partitionId(), named))
        yield pa.RecordBatch.from_pydict({"result": pa.array([result], pa.binary())})

    results = rows.toDF(*numbered(rows)).mapInArrow(run, "result binary").collect()
    return [pickle.loads(row.result) for row in results]


@contextmanager
def running_query(
    rows: DataFrame, batch_id: int, checkpoint: str, name: str
) -> Iterator[tuple[str, str]]:
    """Yield the ID of the running query, and the ID of its start or an empty text.

    In Spark Connect the checkpoint names the query, and jobs that begin within this context carry
    a tag that names query and micro-batch. Raises ConfigError if this micro-batch is not the one
    that the checkpoint has planned and not committed. The error shows `name`, the calling function.
    """
    if not is_connect(rows):
        yield query_of(rows) or query_of_checkpoint(checkpoint, batch_id, name), start_of(rows)
        return
    tag = JobTag(query_of_checkpoint(checkpoint, batch_id, name), batch_id)
    with tag.set(rows):
        yield tag.query_id, tag.start_id


def query_of_checkpoint(checkpoint: str, batch_id: int, name: str) -> str:
    progress = read_progress(checkpoint)
    if not progress.again or progress.next_batch_id != batch_id:
        raise ConfigError(
            f"Micro-batch {batch_id} is not the one that the query of {checkpoint} runs. Give "
            f"{name} as `checkpoint` the checkpointLocation of the query that calls it, and call "
            "it from foreachBatch alone."
        )
    return progress.query_id


def same_name(name: str) -> ConfigError:
    return ConfigError(
        f"Two sinks of the query have the name {name!r}, and would take each other's markers for "
        "their own: give each an option name, options={'name': ...}."
    )


def query_of(rows: DataFrame) -> str:
    """Return the ID of the running query, or an empty text if the session is of Spark Connect."""
    return _local_property(rows, "sql.streaming.queryId")


def start_of(rows: DataFrame) -> str:
    """Return Spark's ID of this start of the query.

    Returns an empty text if a user's job group hides the ID.
    """
    job_group = _local_property(rows, "spark.jobGroup.id")
    try:
        return str(uuid.UUID(job_group))
    except ValueError:
        return ""


def _local_property(rows: DataFrame, name: str) -> str:
    try:
        return rows.sparkSession.sparkContext.getLocalProperty(name) or ""
    except Exception:
        return ""
