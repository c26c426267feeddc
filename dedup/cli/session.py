"""Spark sessions for commands, which run on this machine and log to a file."""

from __future__ import annotations

import locale
import logging
import os
import pwd
import re
import shlex
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from socketserver import BaseServer
from typing import TYPE_CHECKING, Any

from dedup.cli.class_archive import class_archive, use_option, write_option
from dedup.cli.printing import ShownLog
from dedup.cli.stop import StopRequest
from dedup.errors import DedupError, MachineError, MissingExtraError
from dedup.errors.cause import out_of_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Times without a zone are read in this one on every machine.
SESSION_TIME_ZONE = "UTC"
_REBASE_MODES = [
    f"spark.sql.parquet.{kind}RebaseModeIn{use}"
    for kind in ("datetime", "int96")
    for use in ("Read", "Write")
]


@contextmanager
def spark_session(
    *,
    master: str,
    driver_memory: str,
    shards: int,
    log: Path,
    is_idle: bool = False,
    archive_to: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Start Spark, yield the session, and stop Spark.

    `master` and `driver_memory` are in Spark's spelling. `shards` is the number of state
    partitions, but a query with a checkpoint keeps its own. Everything that Spark and its workers
    print goes to the file `log`. `is_idle` says that rows bypass the JVM, which then optimises its
    code less: to optimise would cost a quarter of the CPU time of the first half minute. At the end
    of the session Java writes its classes to the file `archive_to` (see `class_archive`).
    `settings` override Spark's settings.

    Raises MissingExtraError if PySpark is not installed. Raises MachineError if Spark finds no Java
    that it can use, or the user has no name. If Spark does not start for another reason, raises
    DedupError with the last line of Spark's output.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtraError("spark", "The dedup command") from None

    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        raise MachineError(
            f"The user with ID {os.getuid()} has no name on this machine, and Spark does not start "
            "without one. Add the user to /etc/passwd (in a container: when it starts), or run as "
            "another user."
        ) from None
    # By default workers would run the first Python on the PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    _let_java_use(tempfile.gettempdir())
    if not _locale_is_utf8():
        # In another locale Java does not find files whose names are not ASCII.
        os.environ["LC_ALL"] = "C.UTF-8"
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    with suppress(ModuleNotFoundError):  # PySpark 3.5 has none
        from pyspark.logger import PySparkLogger

        # By default PySpark logs Java's whole stack for a bad record.
        PySparkLogger.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL + 1)
    with tempfile.TemporaryDirectory(prefix="dedup-spark-") as scratch:
        all_settings: dict[str, Any] = {
            "spark.driver.memory": driver_memory,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": " ".join(_java_options(is_idle, archive_to)),
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            "spark.sql.warehouse.dir": scratch,
            "spark.python.daemon.module": "dedup.spark.daemon",
            **stream_settings(shards),
            **(settings or {}),
        }
        on_interrupt = signal.getsignal(signal.SIGINT)
        try:
            with children_print_to(log):
                builder = SparkSession.builder.master(master).appName("dedup")
                session = builder.config(map=all_settings).getOrCreate()
        except Exception as error:
            if why := _lacking(log):
                raise MachineError(f"Spark does not start: {why}") from None
            raise DedupError(f"Spark does not start: {last_line(log) or error}") from None
        finally:
            # PySpark's own handler of Ctrl-C would cancel all jobs and raise.
            signal.signal(signal.SIGINT, on_interrupt)
        # The server's class has another name in PySpark 4.0.
        server: Any = session.sparkContext._accumulatorServer
        server.handle_error = partial(_handle_server_error, server)
        # Without this handler Py4J installs a handler that prints its stacks.
        handler = logging.StreamHandler()
        handler.setLevel(logging.WARNING)
        handler.addFilter(_is_news)
        handler.setFormatter(ShownLog())
        logging.getLogger().addHandler(handler)
        try:
            yield session
        except Exception as error:
            if (why := memory_fault(error, log)) is not None:
                raise DedupError(why) from None
            raise
        finally:
            with unless_java_ended():
                session.stop()
            if archive_to is not None:
                _end_java()
            logging.getLogger().removeHandler(handler)


@contextmanager
def reading_session() -> Iterator[SparkSession]:
    """Yield a small session to read a checkpoint's state. Raises the errors of `spark_session`."""
    with (
        tempfile.TemporaryDirectory(prefix="dedup-log-") as scratch,
        spark_session(
            master="local[1]", driver_memory="1g", shards=1, log=Path(scratch) / "spark.log"
        ) as session,
    ):
        yield session


@contextmanager
def unless_java_ended(stop: StopRequest | None = None) -> Iterator[None]:
    """Suppress an error of the block if the Java process of Spark has ended.

    With `stop`, suppress the error only if somebody has requested a stop. A service manager or a
    closed terminal ends Java together with this process.
    """
    try:
        yield
    except Exception as error:
        if not (_java_ended(error) and (stop is None or stop.is_set())):
            raise


def memory_fault(error: Exception, log: Path) -> str | None:
    """Return what to change if the log shows that Spark's Java ran out of memory, else None.

    The error itself only says that Java refused a connection.
    """
    return out_of_memory(_content(log)) if _java_ended(error) else None


def _java_ended(error: Exception) -> bool:
    from py4j.protocol import Py4JError, Py4JJavaError

    if isinstance(error, Py4JJavaError):
        return False
    return isinstance(error, (ConnectionError, Py4JError))


def stream_settings(shards: int) -> dict[str, str]:
    """Return the settings of the Spark session that affect results."""
    return {
        "spark.sql.shuffle.partitions": str(shards),
        "spark.sql.session.timeZone": SESSION_TIME_ZONE,
        "spark.sql.ansi.enabled": "true",
        "spark.sql.files.ignoreCorruptFiles": "false",
        "spark.sql.files.ignoreMissingFiles": "false",
        # If Spark reads only some columns, it misses rows that are too short or long.
        "spark.sql.csv.parser.columnPruning.enabled": "false",
        # Spark's own list lacks Excel's windows-1252.
        "spark.sql.legacy.javaCharsets": "true",
        # Keep folder names such as code=007 unchanged.
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        # Spark's default, INT96, loses years before 1677 and after 2262 in most other readers.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # As in Spark 4. By default Spark 3.5 fails at times before 1900.
        **dict.fromkeys(_REBASE_MODES, "CORRECTED"),
        # By default Spark sorts a micro-batch to write unique rows and duplicates to two folders.
        "spark.sql.maxConcurrentOutputFileWriters": "8",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }


def _handle_server_error(self: BaseServer, request: Any, address: Any) -> None:
    """Print no error if Spark's Java ended before Python, because nothing is lost."""
    if not isinstance(sys.exception(), (ConnectionError, EOFError)):
        BaseServer.handle_error(self, request, address)


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a log record tells something new.

    Records about the end of Java, and errors that Python raises anyway, do not.
    """
    error = record.exc_info[1] if record.exc_info else None
    ended = isinstance(error, Exception) and _java_ended(error)
    return not ended and not record.name.startswith("py4j")


def _let_java_use(folder: str) -> None:
    """Let every Java of this process keep its temporary files where Python does.

    Java ignores TMPDIR. Every other way to set ``java.io.tmpdir`` overrides this variable.
    """
    java_options = os.environ.get("JAVA_TOOL_OPTIONS", "")
    if folder != "/tmp" and "-Djava.io.tmpdir=" not in java_options:
        option = shlex.quote(f"-Djava.io.tmpdir={folder}")  # Java reads the quotes of a shell
        os.environ["JAVA_TOOL_OPTIONS"] = f"{option} {java_options}".strip()


def _java_options(is_idle: bool, archive_to: Path | None) -> Iterator[str]:
    if is_idle:
        yield "-XX:TieredStopAtLevel=1"
    if archive_to is not None:
        yield write_option(archive_to)
    elif (archive := class_archive()) is not None:
        yield use_option(archive)


def _end_java() -> None:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None, "a session was there"
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def _locale_is_utf8() -> bool:
    """Return whether the locale makes Java read file names as UTF-8."""
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, "")
        return locale.nl_langinfo(locale.CODESET) == "UTF-8"
    except locale.Error:
        return False
    finally:
        locale.setlocale(locale.LC_ALL, before)


@contextmanager
def children_print_to(log: Path) -> Iterator[None]:
    """Redirect stdout and stderr of processes that start in the block to the file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        for handle in (*kept, target):
            os.close(handle)


def last_line(log: Path) -> str:
    """Return the last line of a log that is neither blank, a stack frame nor a note, or ""."""
    lines = [line.strip() for line in _content(log).split("\n")]
    skipped = re.compile(r"at \S+\(|\.\.\. |Picked up JAVA_TOOL_OPTIONS|$")
    return next((line for line in reversed(lines) if not skipped.match(line)), "")


def _lacking(log: Path) -> str | None:
    """Return what Spark lacks on this machine, or None if the log does not show it."""
    text = _content(log)
    if match := re.search(r"Failed to create a temp directory \(under (.*)\) after", text):
        return (
            f"Java cannot write temporary files to {match[1]}. Let TMPDIR name a folder that can "
            "be written. If java.io.tmpdir or SPARK_LOCAL_DIRS name another one, correct them."
        )
    signs = ("JAVA_HOME is not set", "/bin/java: ", "UnsupportedClassVersionError")
    if not any(sign in text for sign in signs):
        return None
    return (
        f"{last_line(log)}. Spark needs Java 17 or newer: install it (Debian and Ubuntu: apt "
        "install openjdk-17-jre-headless), or let JAVA_HOME name the folder of one that is "
        "installed."
    )


def _content(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
