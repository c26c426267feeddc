"""Checks of the session and the query on the driver, before anything runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import uuid
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from dedup.errors import CatalogError, ConfigError, DedupWarning
from dedup.spark import machine
from dedup.spark.driver.plan_steps import makes_random_columns
from dedup.spark.machine import shuffle_partitions
from dedup.storage.root import Root
from dedup.storage.timeouts import reach

#: Settings that must be true, and what Spark would do if they were false.
_REQUIRED = {
    "spark.sql.streaming.unsupportedOperationCheck": (
        "Spark would not report two stateful Python operators in one query"
    ),
    "spark.sql.streaming.statefulOperator.useStrictDistribution": (
        "without it a shard's records may be judged with another partition's state"
    ),
    "spark.sql.streaming.stateStore.commitValidation.enabled": (
        "without it a sink that reads half of a micro-batch silently loses the other half"
    ),
}
#: The same, of a setting that must be true only under the option `window_delay`.
_OF_WINDOWS = {
    "spark.sql.streaming.statefulOperator.allowMultiple": (
        "Spark would judge a window after the operator by a newer watermark than window_delay "
        "assumes, and silently drop records that the operator has emitted"
    )
}
_ARROW_CODEC = "spark.sql.execution.arrow.compression.codec"
PARTITIONS = "spark.sql.shuffle.partitions"
#: We warn of more state partitions per core of a local master.
_PARTITIONS_PER_CORE = 4


def setting(spark: SparkSession, name: str, default: str) -> str:
    """Return a Spark setting, or the default if this Spark does not know it."""
    try:
        # With a default, `get` returns it for every setting that is not set.
        value = spark.conf.get(name)
    except Exception:  # Connect and classic raise different classes
        return default
    return default if value is None else str(value)


@contextmanager
def changed_setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Give a session another setting for a while."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name) if before is None else spark.conf.set(name, before)


def time_zone(spark: SparkSession) -> str:
    return setting(spark, "spark.sql.session.timeZone", "UTC")


def check_settings(spark: SparkSession, *, window: bool) -> None:
    """Raise ConfigError for a setting that breaks the operator, or, if any, the window after it."""
    for name, why in (_REQUIRED | (_OF_WINDOWS if window else {})).items():
        value = setting(spark, name, "true")
        if value.lower() != "true":
            raise ConfigError(f"{name}={value}: {why}. Set it to true.")


def check_workers(spark: SparkSession) -> None:
    """Reject a Python or a compression with which no worker could run."""
    # A client of Spark Connect does not know its server's Python.
    if local_cores(spark) is not None and not is_remote():
        check_python(spark.sparkContext.pythonExec)
    value = setting(spark, _ARROW_CODEC, "none")
    if value.lower() == "lz4":
        raise ConfigError(
            f"{_ARROW_CODEC}={value}: with lz4, Python cannot read a string or binary column of "
            "Spark in which every value is null or empty. The operator sends such columns in every "
            "micro-batch. Set it to zstd or none."
        )


def check_python(name: str) -> None:
    """Raise ConfigError if the workers' Python lacks the package or has another version."""
    path = shutil.which(name) or name
    here = Path(sys.executable)
    same = Path(path).resolve() == here.resolve() and Path(path).parent == here.parent
    if not same and (problem := _unfit(path)):
        raise ConfigError(
            f"Spark's Python workers would run {path}, not {here} as this program: {problem}. Set "
            f"PYSPARK_PYTHON={here} before the session starts.",
            remedy="executor-package",
        )


@cache
def _unfit(python: str) -> str | None:
    code = "import sys, pandas, pyarrow, rocksdict; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        return done.stderr.strip().rpartition("\n")[2]
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return None if done.stdout.strip() == ours else f"it is Python {done.stdout.strip()}"


def master_of(spark: SparkSession) -> str:
    """Return the master with which the session started. The setting may have changed since."""
    try:
        return str(spark.sparkContext.master)
    except Exception:  # Spark Connect has no context
        return setting(spark, "spark.master", "")


def local_cores(spark: SparkSession) -> int | None:
    """Return the number of cores of a local master, or None on a cluster."""
    return machine.local_cores(master_of(spark))


def is_mount(spark: SparkSession, root: Root) -> bool:
    """Return whether the catalog root is a local path and Spark runs on a cluster."""
    return root.local_path("certificate.json") is not None and local_cores(spark) is None


def a_stream_needs_a_catalog() -> ConfigError:
    return ConfigError(
        "A stream needs catalog=: a path or URI where its memory can live, such as "
        "catalog='s3://bucket/dedup/orders'."
    )


def check_root(spark: SparkSession, root: Root | None, *, shared_local: bool) -> None:
    """Check that the catalog root is given, shared by all executors, and writable."""
    if root is None:
        raise a_stream_needs_a_catalog()
    reach(root, lambda: _check_root(spark, root, shared_local=shared_local))


def _check_root(spark: SparkSession, root: Root, *, shared_local: bool) -> None:
    if is_mount(spark, root) and not shared_local:
        raise ConfigError(
            f"catalog={root.url()} is a local path, but Spark runs on "
            f"{master_of(spark) or 'a cluster'}: every executor would see another "
            "disk. Use a shared file system or an object store (s3://, hdfs://, ...), or set "
            "shared_local=True if the path is the same mount on every machine.",
            remedy="unshared-root",
        )
    probe = f"probe-{uuid.uuid4()}"
    try:
        root.put_bytes(probe, b"")
        root.delete([probe])
    except CatalogError as error:
        raise CatalogError(
            f"catalog={root.url()} cannot be written: {error.text}", remedy=error.remedy
        ) from error


def check_partitions(spark: SparkSession, shards: int | None) -> None:
    """Reject an unknown number of shards, and warn of many more state partitions than cores.

    More shards than partitions cost nothing, because all shards of a partition run in one task.
    """
    cores = local_cores(spark)
    value = setting(spark, PARTITIONS, "200")
    partitions = shuffle_partitions(value)
    if partitions is None and shards is None:
        raise ConfigError(
            f"{PARTITIONS} is {value!r}, so the number of shards is unknown. Set "
            f"{PARTITIONS} to a number, about the number of cores, or give the "
            "operator shards=. A query that has run before keeps the number of its first start."
        )
    if cores is None or partitions is None or partitions <= _PARTITIONS_PER_CORE * cores:
        return
    warnings.warn(
        f"{PARTITIONS}={partitions} on a local master with {cores} cores: each partition "
        "starts a Python session in every micro-batch, used or not (seconds in all). Set "
        f'spark.conf.set("{PARTITIONS}", "{cores}") before the query starts '
        "for the first time.",
        DedupWarning,
        stacklevel=4,
    )


def check_upstream(df: DataFrame, steps: Counter[str], operator: str) -> None:
    """Reject a watermark or another stateful Python operator before this operator.

    Warn if a step before the operator is nondeterministic.
    """
    if "EventTimeWatermark" in steps:
        marked = (f.name for f in df.schema.fields if "spark.watermarkDelayMs" in f.metadata)
        column = repr(next(marked, "..."))
        raise ConfigError(
            f"withWatermark({column}, ...) stands before {operator}, which would lose it. "
            f"Declare it after: events.transform({operator}(...)).withWatermark({column}, ...). "
            "De-duplication has its own clocks (`timestamp`, `lateness`)."
        )
    if "FlatMapGroupsInPandasWithState" in steps:
        raise ConfigError(
            f"This query already has a {operator} or another applyInPandasWithState; Spark runs "
            "one of them per query. Give one composite ID, or write the first result to a table "
            "or topic and read it with a second query."
        )
    if makes_random_columns(df):
        warnings.warn(
            f"Spark calls a step before {operator} nondeterministic, such as uuid() or "
            "input_file_name(). If ID or timestamp depend on a random function or on the current "
            "time, the operator will not recognise copies. It does not trace columns that you made "
            "earlier (dedup remedies unstable-id).",
            DedupWarning,
            stacklevel=4,
        )
