"""Check whether a platform can run the operators: driver, executors, disks and storage."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup.errors import DedupError
from dedup.errors.cause import cause_of
from dedup.spark import machine
from dedup.spark.driver.checks import is_mount, local_cores
from dedup.spark.driver.shipping import shipped
from dedup.storage.location import FileSystemFactory
from dedup.storage.root import Root
from dedup.storage.timeouts import reach
from dedup.tools.check import machine_probe
from dedup.tools.check.findings import Finding
from dedup.tools.check.platform_rules import Platform, check_servers, judge
from dedup.tools.check.root_probe import MARK, RootProbe, text_of

#: A task on a cluster lasts this long at least, so that no executor does the work of another.
_PAUSE_S = 1.5
_NO_PROGRAM = re.compile(r"Cannot run program [^\n]*")
_one_at_a_time = Lock()
#: Tasks if Spark does not say how many run at once, as over Spark Connect.
_TASKS = 16


def check_platform(
    spark: SparkSession,
    *,
    catalog: str | os.PathLike[str] | FileSystemFactory | None = None,
    servers: Sequence[str] = (),
) -> list[Finding]:
    """Return what keeps queries from running on this platform, and what makes them slow.

    Two small Spark jobs look at the driver and every executor. They also work where this package
    is missing. They leave nothing behind, except an empty file in Spark's local folder if Python
    processes have different disks. `check_query` judges a query.

    Parameters
    ----------
    spark : SparkSession
        A session of the platform, classic or of Spark Connect, with the settings of your queries.
    catalog : path, URI or callable, optional
        The catalog root, as in `dedup_by_id`. Driver and executors create, read, list, copy and
        delete objects there, in a folder ``probe-<UUID>`` that is deleted at the end.
    servers : sequence of str, optional
        Addresses of brokers and databases, such as ``"kafka-1:9092"``. Driver and executors open a
        connection to each, and send nothing.

    Returns
    -------
    list of Finding
        Findings, the worst first, with `level`, `rule`, `evidence`, and a `change` if one is
        needed.

    Raises
    ------
    ConfigError
        If the path or URI of `catalog` is invalid, or a server is not a host and a port.

    Notes
    -----
    Over Spark Connect the machine of this program takes the place of the driver. The Python of the
    server is not looked at.
    """
    check_servers(servers, "servers")
    return judge(examine(spark, None if catalog is None else Root(catalog), servers))


def examine(spark: SparkSession, root: Root | None, servers: Sequence[str]) -> Platform:
    """Return the facts that `judge` judges."""
    is_local = local_cores(spark) is not None
    driver = machine_probe.machine_facts(servers)
    executors: dict[str, dict[str, Any]] = {}
    seen = problem = None
    try:
        with _by_value(machine_probe, machine), _probed(root, driver) as on_executor:
            probe = machine_probe.executor_facts(servers, 0 if is_local else _PAUSE_S, on_executor)
            tasks = 1 if is_local else _slots(spark)
            of_tasks = spark.range(0, tasks, 1, tasks)
            answers = of_tasks.select(F.udf(probe, "string", useArrow=False)("id")).collect()
            executors = {one["process"]: one for one in (json.loads(row[0]) for row in answers)}
            if not any(_lacks_arrow(one) for one in executors.values()):
                paths = of_tasks.mapInArrow(machine_probe.write_for_another, "path string")
                read = paths.mapInArrow(machine_probe.read_of_another, "host string, seen boolean")
                seen = {row.host: row.seen for row in read.collect()}
    except DedupError:
        raise
    except Exception as error:  # of Spark, such as a Python that executors cannot start
        no_program = _NO_PROGRAM.search(str(error))
        problem = no_program[0] if no_program else cause_of(str(error))
    return Platform(
        driver=driver,
        executors=list(executors.values()),
        problem=problem,
        expected_executors=None if is_local else _executors(spark),
        root=None if root is None else root.url(),
        is_mount=root is not None and not driver["root"]["problem"] and is_mount(spark, root),
        sees_files=seen,
    )


@contextmanager
def _by_value(*modules: ModuleType) -> Iterator[None]:
    """Let Spark send the functions of modules by value. Only one thread at a time can."""
    with _one_at_a_time:
        for module in modules:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


@contextmanager
def _probed(root: Root | None, driver: dict[str, Any]) -> Iterator[Callable[[], Any] | None]:
    """Add the root's facts to the driver's, and yield the function that finds them on executors."""
    if root is None:
        yield None
        return
    probe = RootProbe(root, f"probe-{uuid.uuid4()}", os.urandom(16))

    def begin() -> list[Path]:
        """Write the mark, and return the folders that did not exist before."""
        place = root.local_path(MARK)
        parents = () if place is None else place.parents
        missing = [each for each in parents if not os.path.exists(each)]
        root.put_bytes(f"{probe.folder}/{MARK}", probe.content)
        return missing

    try:
        missing = reach(root, begin)
    except Exception as error:  # of the storage, or of the user's function
        driver["root"] = {"problem": text_of(error)}
        yield None
        return
    try:
        driver["root"] = probe.facts()
        load = shipped(probe)
        yield lambda: load().facts()
    finally:
        with suppress(DedupError):
            root.delete_folder(probe.folder)
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()


def _lacks_arrow(facts: dict[str, Any]) -> bool:
    return any(facts["libraries"][name]["problem"] for name in ("pandas", "pyarrow"))


def _slots(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context
        return _TASKS


def _executors(spark: SparkSession) -> int | None:
    """Return the number of executors, or None if Spark does not say it."""
    try:
        # The driver has a block manager, too.
        return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1
    except Exception:
        return None
