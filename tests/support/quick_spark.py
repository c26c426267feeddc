"""Settings for a Spark that lives for minutes and sees few rows: only what pays off there.

With CI_FULL=1 the tests of the operator run as users' queries do, with all of Java's compilers and
with compiled plans.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dedup.testing import faults

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FULL = os.environ.get("CI_FULL") == "1"
#: Half the processor time of a start, and a third less of what follows. The last one is about
#: chmod, which Hadoop starts as a program for each file that it writes, nine times in a small
#: micro-batch: begun by vfork, these leave a fifth less to do.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK"
#: To compile a plan costs more than these few rows ever would.
INTERPRETED_PLANS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
#: Of every session of the tests, those with CI_FULL=1 as well.
_SMALL_SESSION = {
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
QUICK_SESSION = {**INTERPRETED_PLANS, **_SMALL_SESSION, "spark.driver.extraJavaOptions": QUICK_JAVA}
#: Where faults are armed that strike Python workers of the process's session.
FAULTS = Path(tempfile.gettempdir(), f"dedup-test-faults-{os.getpid()}")


@contextmanager
def workers_that_can_fail() -> Iterator[None]:
    """Let the workers of a session that is started now fail where faults are armed.

    Java hands the variable on to them; this process itself has looked already.
    """
    FAULTS.mkdir(exist_ok=True)
    os.environ[faults.VARIABLE] = str(FAULTS)
    try:
        yield
    finally:
        del os.environ[faults.VARIABLE]


def session_of_the_process(scratch: Path, jars: str = "") -> SparkSession:
    """Return the session that all tests of a process share, started by the first that asks.

    A JVM costs more than most tests. Nothing but the jars may differ between those who ask: who
    comes later gets what the first has started.
    """
    from pyspark.sql import SparkSession

    with workers_that_can_fail():
        return (
            # Two attempts a task: tests make tasks fail once.
            SparkSession.builder.master("local[2,2]")
            .appName("dedup tests")
            .config(map={**_SMALL_SESSION})
            # Of the whole JVM: `writeStream` asks whichever session is active.
            .config("spark.sql.timeType.enabled", "true")
            .config("spark.driver.memory", "1g")
            .config("spark.log.level", "OFF")
            .config("spark.local.dir", str(scratch / "local"))
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config(map={} if FULL else {**INTERPRETED_PLANS})
            .config(map={"spark.jars": jars} if jars else {})
            .getOrCreate()
        )
