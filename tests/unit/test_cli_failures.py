"""A failure is one line that names the cause."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from py4j.protocol import Py4JError

from dedup.cli.failures import DAMAGE, FAILED, TEMPORARY, USAGE, explain
from dedup.cli.session import memory_fault
from dedup.errors import CatalogError, ConfigError, DataError, SegmentDamaged, SinkError, StateError

_WRAPPED = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
    "[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in "
    "foreach batch sink. Reason: An exception was raised by the Python Proxy. {}"
)


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("x"), USAGE), (DataError("x"), FAILED), (CatalogError("x"), TEMPORARY),
     (CatalogError("x", remedy="storage"), TEMPORARY),
     (CatalogError("x", remedy="missing-catalog"), DAMAGE), (SinkError("x"), TEMPORARY),
     (SinkError("x", remedy="sink-differs"), FAILED), (SegmentDamaged("x"), DAMAGE),
     (StateError("x"), DAMAGE)],
)  # fmt: skip
def test_our_errors_keep_their_message_and_get_an_exit_code(error: Exception, code: int) -> None:
    failure = explain(error)
    assert (failure.message, failure.exit_code, failure.kind) == ("x", code, type(error).__name__)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "py4j.protocol.Py4JJavaError: An error occurred\n: org.apache.spark.SparkException: "
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file "
            "file:///in/my data.v1.csv.  SQLSTATE: KD001\n\tat org.x\n"
            "Caused by: org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT_"
            "SUGGESTION] Malformed records are detected in record parsing: [3,null].\n"
            "Parse Mode: FAILFAST. To process malformed records.  SQLSTATE: 22023\n\tat org.y\n"
            "Caused by: org.apache.spark.SparkRuntimeException: [MALFORMED_CSV_RECORD] Malformed "
            "CSV record: 3 SQLSTATE: KD000\n\tat org.z\n\t... 12 more",
            "/in/my data.v1.csv cannot be read: Malformed CSV record: 3",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/a.csv.gz. "
            " SQLSTATE: KD001\n\tat org.x\nCaused by: java.io.EOFException: Unexpected end of "
            "input stream\n\tat java.z",
            "/in/a.csv.gz cannot be read: Unexpected end of input stream",
        ),
        (
            "[FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH] Encountered error while reading "
            "file file:///in/b.parquet. Data type mismatches when reading Parquet column [id]. "
            "Expected Spark type bigint, actual Parquet type BINARY. SQLSTATE: KD001",
            "/in/b.parquet cannot be read: Data type mismatches when reading Parquet column [id]. "
            "Expected Spark type bigint, actual Parquet type BINARY.",
        ),
        (
            _WRAPPED.format(
                "[CANNOT_PARSE_TIMESTAMP] Text 'bla' could not be parsed at index 0. "
                "SQLSTATE: 22007"
            ),
            "Text 'bla' could not be parsed at index 0.",
        ),
        (
            "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Option x is "
            "wrong SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: 1",
            "Option x is wrong",
        ),
        (
            _WRAPPED.format(
                "Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent "
                'call last):\n  File "group.py", line 1, in f\n    raise SegmentDamaged(text)\n'
                "dedup.errors.SegmentDamaged: segment s1 is gone; run `dedup catalog accept-loss`"
                "\n\n\tat java"
            ),
            "segment s1 is gone; run `dedup catalog accept-loss`",
        ),
    ],
)
def test_an_error_of_spark_is_reduced_to_its_cause(text: str, message: str) -> None:
    failure = explain(Py4JError(text))
    own = "SegmentDamaged" if "SegmentDamaged" in text else None
    assert (failure.message, failure.exit_code) == (message, DAMAGE if own else TEMPORARY)
    assert failure.kind == (own or "Py4JError")


def test_errors_of_the_system_and_of_java_are_explained(tmp_path: Path) -> None:
    failure = explain(OSError(28, "No space left on device", "/out/x"))
    assert (failure.message, failure.remedy) == ("No space left on device (/out/x)", "local-disk")
    assert failure.exit_code == TEMPORARY
    failure = explain(OSError(errno.EROFS, "Read-only file system", "/out/x"))
    assert (failure.message, failure.exit_code) == ("Read-only file system (/out/x)", FAILED)
    text = "Job aborted\nCaused by: java.io.IOException: No space left on device\n\tat a.b(C.java)"
    assert explain(Py4JError(text)).remedy == "local-disk"
    assert explain(Py4JError("Job aborted")).remedy is None
    failure = explain(Py4JError("Job aborted: java.lang.OutOfMemoryError: Java heap space"))
    assert "--driver-memory" in failure.message
    # Python sees a refused connection, for any reason.
    log, refused = tmp_path / "spark.log", ConnectionRefusedError(111, "Connection refused")
    log.write_text("ERROR: Uncaught\njava.lang.OutOfMemoryError: Java heap space\n\tat a.b\n")
    assert "Spark ran out of memory. Give a larger" in (memory_fault(refused, log) or "")
    assert memory_fault(ValueError("x"), log) is None
    log.write_text("SIGTERM\n")
    assert memory_fault(refused, log) is None


def test_an_unexpected_exception_is_reported_as_an_internal_error() -> None:
    failure = explain(TypeError("f() takes 1 argument"))
    assert failure.message.startswith("internal error, TypeError: f() takes 1 argument")
    assert failure.exit_code == TEMPORARY
