"""The cause is found in texts that Spark wrote when a Python worker failed."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from dedup import sinks
from dedup.errors import (
    CatalogError,
    ConfigError,
    DataError,
    DedupError,
    ExecutorError,
    ObjectMissing,
    SegmentDamaged,
    StateError,
    cause,
)
from dedup.errors.cause import LINE_CHARS, cause_of, out_of_memory, own_error, unreadable_file
from dedup.sinks.formats import sink_kinds
from dedup.sinks.kind import SinkKind

_FAILED = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_EXCEPTION] An "
    "exception was thrown from the Python worker: {} SQLSTATE: 38000 SQLSTATE: XXKST\n"
    "=== Streaming Query ===\nIdentifier: [id = 1]\n+- ~MapInArrow pack_rows(x#1L)\n"
)
_TRACE = (
    "Traceback (most recent call last):\n"
    '  File "/lib/worker.py", line 44, in <module>\n'
    "    import config\n"
    "    ^^^^^^^^^^^^^\n"
)
_AGAIN = "\nDuring handling of the above exception, another exception occurred:\n\n"
_UNMAPPED = "ImportError: libarrow.so.2600: failed to map segment from shared object\n"
_NULL_ID = "dedup.errors.DataError: null ID\nRemedies: dedup remedies null-ids\n"


def failed(raised: str) -> str:
    return _FAILED.format(_TRACE + raised)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("[FAILED] it\nat x\n  dedup.errors.StateError: lost. \nat y", "StateError: lost."),
        ("\n\n boom\nat z", "boom"),
        (" ", "no reason given"),
        ("x" * 1000, "x" * LINE_CHARS),
        (failed("KeyError: 'region'\n"), "KeyError: 'region'"),
        (failed("KeyboardInterrupt\n"), "KeyboardInterrupt"),
        (failed("KeyError: 1\n" + _AGAIN + _TRACE + "my.mod.Bad: both\n"), "Bad: both"),
        (
            f"Caused by: java.lang.X: {_TRACE}py4j.protocol.Py4JJavaError: An error occurred\n"
            "Caused by: java.io.EOFException: Unexpected end\n\tat java.z",
            "Unexpected end",
        ),
        (failed(_NULL_ID), "DataError: null ID"),
    ],
)
def test_a_long_error_is_reduced_to_its_cause(error: str, told: str) -> None:
    assert cause_of(error) == told


@pytest.mark.parametrize(
    "raised",
    [
        _UNMAPPED,
        "pyarrow.lib.ArrowMemoryError: malloc of size 64 failed\n",
        "MemoryError\n",
        # The last one does not mention memory.
        _UNMAPPED + _AGAIN + _TRACE + "ImportError: Unable to import required dependency numpy.\n",
    ],
)
def test_a_worker_that_runs_out_of_memory_is_reported_with_the_setting_to_change(
    raised: str,
) -> None:
    told = cause_of(failed(raised))
    assert told.startswith("A Python worker got no memory (")
    assert "spark.executor.pyspark.memory" in told
    assert raised.split("\n", 1)[0].rpartition(".")[2][:20] in told


def test_a_full_java_heap_is_reported_with_the_setting_to_change() -> None:
    told = out_of_memory("Job aborted: java.lang.OutOfMemoryError: Java heap space")
    assert told is not None
    assert "spark.driver.memory" in told
    assert out_of_memory("KeyError: MemoryErrors are recognised by their class") is None


def test_a_foreach_batch_function_that_does_not_read_all_rows_is_a_config_error() -> None:
    """Spark names the state store; the exception before it has no message."""
    said = (
        "[STATE_STORE_COMMIT_VALIDATION_FAILED] State store commit validation failed for batch 0."
    )
    outer = RuntimeError(
        "[STREAM_FAILED] terminated with exception: Exception thrown in awaitResult:"
    )
    outer.__cause__ = RuntimeError(said)
    found = cause(outer)
    assert isinstance(found, ConfigError)
    assert "rows.persist() and rows.count()" in found.text
    assert cause_of(f"x\nCaused by: org.apache.Failed: {said}").startswith(
        "ConfigError: A function"
    )


@pytest.mark.parametrize("kind", sink_kinds().values(), ids=lambda kind: kind.format_name)
def test_update_mode_of_a_format_is_rejected_with_foreach_batch_as_the_remedy(
    kind: SinkKind[Any],
) -> None:
    """Spark's text is the same in PySpark 4.1 and 4.3, in a classic session and in Connect's."""
    said = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: requirement failed: "
        f"{kind.format_name} does not support Update mode. SQLSTATE: XXKST\n"
        "=== Streaming Query ===\nIdentifier: [id = 1]\n"
    )
    found = cause(RuntimeError(said))
    assert isinstance(found, ConfigError)
    assert f"outputMode('update').foreachBatch(dedup.sinks.{kind.function_name}(" in found.text
    assert callable(getattr(sinks, kind.function_name))
    assert cause_of(said).startswith("ConfigError: Spark rejects outputMode('update')")
    adds_only = kind.format_name in ("dedup_files", "dedup_delta", "dedup_iceberg")
    assert ("This sink only adds rows" in found.text) == adds_only


def test_our_error_in_a_text_is_found_with_its_topic() -> None:
    assert own_error(_TRACE + _NULL_ID) == ("DataError", "null ID", "null-ids")
    other = own_error("dedup.errors.DataError: a\n\ndedup.errors.X: b\nRemedies: dedup remedies y")
    assert other == ("DataError", "a", None)
    assert own_error("nothing") is None


# --- as an exception


def spark_failure(raised: BaseException) -> str:
    told = "".join(traceback.format_exception(raised))
    return (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to "
        f"stage failure: Task 0.0 (TID 3): org.apache.spark.api.python.PythonException: {told}\n"
        f"\tat org.apache.spark.X\n\nDriver stacktrace:\n\tat org.x\nCaused by: {told}\n\tat org.y"
    )


def chained() -> DedupError:
    try:
        try:
            raise CatalogError("the first", remedy="storage")
        except CatalogError as error:
            try:
                raise KeyError("between") from error
            except KeyError:
                raise SegmentDamaged("the last", remedy="damaged-segment")  # noqa: B904
    except SegmentDamaged as error:
        return error


def test_an_error_text_that_only_mentions_our_class_is_not_taken_for_ours() -> None:
    raised = "ValueError: saw dedup.errors.StateError: x"
    text = f"Traceback (most recent call last):\n  File x\n{raised}\n"
    assert cause(text) is None
    assert cause_of(text) == raised


@pytest.mark.parametrize(
    "ours",
    [
        ConfigError("shards is 1 there and 2 here", remedy="changed-settings"),
        ConfigError("without a topic"),
        DataError("a column named\nwith\n  a break", remedy="bad-records"),
        ObjectMissing("gone", remedy="missing-catalog"),
        chained(),
    ],
)
def test_our_error_keeps_its_class_text_and_remedy_through_spark(ours: DedupError) -> None:
    class StreamingQueryException(Exception):  # PySpark's needs a JVM
        _cause = None

    wrapped = StreamingQueryException("no word of it")
    wrapped._cause = StreamingQueryException(spark_failure(ours))  # type: ignore[assignment]
    around = RuntimeError("the job failed")
    around.__cause__ = wrapped
    for failure in (wrapped._cause, wrapped, around, spark_failure(ours)):
        found = cause(failure)
        assert type(found) is type(ours)
        assert found is not None
        assert (found.text, found.remedy, str(found)) == (ours.text, ours.remedy, str(ours))


def test_an_error_that_is_ours_already_is_returned() -> None:
    ours = ExecutorError("text")
    assert cause(ours) is ours
    around = RuntimeError("other")
    around.__cause__ = ours
    assert cause(around) is ours


def test_failures_of_others_yield_no_error_of_ours() -> None:
    loop = RuntimeError("x")
    loop.__cause__ = loop
    handler_s_own = KeyError("x")
    handler_s_own.__context__ = ConfigError("it was handled")
    for failure in (None, "x", KeyError("x"), loop, handler_s_own):
        assert cause(failure) is None


def test_an_error_class_that_cannot_be_rebuilt_becomes_a_dedup_error() -> None:
    for raised in ("dedup.errors.MissingExtraError: no spark", "dedup.errors.Unknown: no spark"):
        found = cause(f"{raised}\n\tat x")
        assert (type(found), str(found)) == (DedupError, "no spark")


def test_the_cause_is_found_even_if_the_jvm_is_gone() -> None:
    class Captured(Exception):
        _desc = "dedup.errors.StateError: lost"

        def __str__(self) -> str:
            raise AssertionError("no JVM")

    assert type(cause(Captured())) is StateError


def test_an_error_of_another_traceback_is_ignored() -> None:
    """Neither its text nor its topic is used."""
    found = own_error(
        "dedup.errors.DataError: a\n\tat x\nCaused by: Traceback (most recent call last):\n"
        "dedup.errors.StateError: b\nRemedies: dedup remedies y"
    )
    assert found == ("DataError", "a", None)


def test_a_file_is_named_as_it_is_on_the_disk() -> None:
    text = (
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file "
        "file:///in/sp%20ace/a+b%20%231%20%2541.csv.  SQLSTATE: KD001\n\tat x\n"
        "Caused by: java.io.EOFException: Unexpected end of input stream\n\tat y"
    )
    told = ("/in/sp ace/a+b #1 %41.csv", "Unexpected end of input stream")
    assert unreadable_file(text) == told
    assert cause_of(text) == f"{told[0]} cannot be read: {told[1]}"
    assert unreadable_file("[OTHER] no file") is None
