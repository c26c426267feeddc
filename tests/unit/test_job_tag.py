"""Jobs without Spark's properties of query and micro-batch, as in Spark Connect, and their tags."""

from __future__ import annotations

import uuid
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from dedup.errors import ConfigError
from dedup.spark.executor import task
from dedup.spark.job_tag import JobTag

QUERY = str(uuid.uuid4())
TAG = JobTag(QUERY, 7)
#: As Spark Connect writes the tags of a session and of an operation.
OF_SPARK = "SparkConnect_OperationTag_User__Session_1_Operation_2"
OF_SESSION = f"SparkConnect_SessionTag_User__Session_1_Tag_{TAG}"


def current(monkeypatch: pytest.MonkeyPatch, **properties: str) -> task.Task:
    """The running task of a stream, in a job with these properties."""
    named = {name.replace("_", "."): value for name, value in properties.items()}
    context: Any = SimpleNamespace(
        getLocalProperty=named.get, taskAttemptId=lambda: 1, partitionId=lambda: 0,
        attemptNumber=lambda: 0,
    )  # fmt: skip
    monkeypatch.setattr(task.TaskContext, "get", lambda: context)
    plan: Any = SimpleNamespace(streaming=True, start_id=str(uuid.uuid4()), shards=4)
    return task.Task.current(plan)


def test_a_tag_names_query_and_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    running = current(monkeypatch, spark_job_tags=f"{OF_SPARK},{OF_SESSION},mine")
    assert (running.query_id, running.epoch) == (QUERY, 7)


def test_the_properties_of_spark_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"sql_streaming_queryId": "other", "streaming_sql_batchId": "8"}
    running = current(monkeypatch, spark_job_tags=OF_SESSION, **names)
    assert (running.query_id, running.epoch) == ("other", 8)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (OF_SPARK, "does not know its query and micro-batch"),
        (f"{OF_SESSION}0x", "does not know its query and micro-batch"),
        (f"{OF_SESSION},{JobTag(QUERY, 8)}", "names several micro-batches"),
        (f"{OF_SESSION},{JobTag(str(uuid.uuid4()), 7)}", "names several micro-batches"),
    ],
)
def test_a_job_without_one_tag_is_refused(
    monkeypatch: pytest.MonkeyPatch, tags: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        current(monkeypatch, spark_job_tags=tags)


def test_a_function_keeps_the_tag_of_the_function_that_calls_it() -> None:
    tags: set[str] = {"mine"}
    session = SimpleNamespace(getTags=lambda: tags, addTag=tags.add, removeTag=tags.remove)
    rows: Any = SimpleNamespace(sparkSession=session)
    with TAG.set(rows):
        with TAG.set(rows):
            pass
        assert tags == {"mine", str(TAG)}
    with suppress(OSError), JobTag(QUERY, 8).set(rows):
        assert tags == {"mine", str(JobTag(QUERY, 8))}
        raise OSError
    assert tags == {"mine"}
    with TAG.set(rows):
        tags.clear()  # as a function of the user may do
