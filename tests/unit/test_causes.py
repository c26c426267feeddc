"""The cause is found in texts that Spark wrote when a Python worker failed."""

from __future__ import annotations

import pytest

from dedup.causes import LINE_CHARS, cause_of, out_of_memory, own_error

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


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("[FAILED] it\nat x\n  dedup.errors.StateError: lost. \nat y", "StateError: lost."),
        ("\n\n boom\nat z", "boom"),
        (" ", "no reason given"),
        ("x" * 1000, "x" * LINE_CHARS),
        (_FAILED.format(_TRACE + "KeyError: 'region'\n"), "KeyError: 'region'"),
        (_FAILED.format(_TRACE + "KeyboardInterrupt\n"), "KeyboardInterrupt"),
        (
            _FAILED.format(_TRACE + "KeyError: 1\n" + _AGAIN + _TRACE + "my.mod.Bad: both\n"),
            "Bad: both",
        ),
        (
            f"Caused by: java.lang.X: {_TRACE}py4j.protocol.Py4JJavaError: An error occurred\n"
            "Caused by: java.io.EOFException: Unexpected end\n\tat java.z",
            "Unexpected end",
        ),
        (
            _FAILED.format(
                _TRACE + "dedup.errors.DataError: null ID\nRemedies: dedup remedies x\n"
            ),
            "DataError: null ID",
        ),
    ],
)
def test_the_cause_of_a_long_error(error: str, told: str) -> None:
    assert cause_of(error) == told


@pytest.mark.parametrize(
    "raised",
    [
        _UNMAPPED,
        "pyarrow.lib.ArrowMemoryError: malloc of size 64 failed\n",
        "MemoryError\n",
        # The last one says nothing of memory.
        _UNMAPPED + _AGAIN + _TRACE + "ImportError: Unable to import required dependency numpy.\n",
    ],
)
def test_a_worker_without_memory(raised: str) -> None:
    told = cause_of(_FAILED.format(_TRACE + raised))
    assert told.startswith("A Python worker got no memory (")
    assert "spark.executor.pyspark.memory" in told
    assert raised.split("\n", 1)[0].rpartition(".")[2][:20] in told


def test_the_heap() -> None:
    told = out_of_memory("Job aborted: java.lang.OutOfMemoryError: Java heap space")
    assert told is not None
    assert "spark.driver.memory" in told
    assert out_of_memory("KeyError: MemoryErrors are told by their class") is None


def test_an_error_of_ours_has_its_topic() -> None:
    found = own_error(
        _TRACE + "dedup.errors.DataError: null ID\nRemedies: dedup remedies null-ids\n"
    )
    assert found == ("DataError", "null ID", "null-ids")
    other = own_error("dedup.errors.DataError: a\n\ndedup.errors.X: b\nRemedies: dedup remedies y")
    assert other == ("DataError", "a", None)
    assert own_error("nothing") is None
