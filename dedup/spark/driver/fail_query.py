"""Lets a running query fail with an error of this package."""

from __future__ import annotations

from typing import Any

from dedup.errors import DedupError

#: Errors with which this process has ended queries, by the ID of the run.
_errors: dict[str, DedupError] = {}


def fail_query(query: Any, error: DedupError) -> None:
    """End a query so that everybody who waits for it gets `error`.

    Spark has no public method for this: after `stop`, a query counts as ended without an error. So
    we first store the error where Spark stores the error that ends a query. Over Spark Connect we
    cannot. There the query only stops, and `error_of` returns the error.
    """
    _errors[str(query.runId)] = error
    try:
        if (classic := getattr(query, "_jsq", None)) is not None:
            from pyspark import SparkContext

            text = f"dedup.errors.{type(error).__name__}: {error}"
            ids = {"id": str(query.id), "runId": str(query.runId), "message": text}
            jvm: Any = SparkContext._jvm
            failure = jvm.org.apache.spark.sql.streaming.StreamingQueryException(
                "", jvm.org.apache.spark.SparkException(text), "", "", "STREAM_FAILED",
                jvm.PythonUtils.toScalaMap(ids),
            )  # fmt: skip
            getattr(classic.streamingQuery(), "streamDeathCause_$eq")(failure)
    finally:
        query.stop()


def error_of(query: Any) -> DedupError | None:
    """Return the error with which `fail_query` has ended a query, or None."""
    return _errors.get(str(getattr(query, "runId", "")))
