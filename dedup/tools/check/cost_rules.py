"""Rules about cost: partitions of the state, and memory for Python."""

from __future__ import annotations

from dedup.tools.check.facts import HOW_CORES, HOW_SETTINGS, Facts, whole_number
from dedup.tools.check.findings import Assessment, Takes, costs, fine, unknown
from dedup.values.duration import size_bytes

#: Largest number of partitions per core that is fine. Up to this number, spare partitions cost at
#: most 13 % of a micro-batch.
PER_CORE_MAX = 4
_PARTITIONS = "spark.sql.shuffle.partitions"
_MIB = 1 << 20
#: Resident memory of a Python worker that judges a shard's share of a micro-batch: a fixed part,
#: and bytes per byte of the share. Measured with shares of 50 to 900 MB.
_WORKER_BYTES, _PER_SHARE_BYTE = 240 * _MIB, 3
#: Address space that a worker without records needs. As measured, the limit is between 512 MiB and
#: 1 GiB.
_MAPPED_BYTES = 768 * _MIB
#: Smallest share that a rule advises, enough for 100,000 records of one kilobyte.
_LEAST_SHARE = 128 * _MIB
_OVERHEAD = "spark.executor.memoryOverhead"
_PYSPARK = "spark.executor.pyspark.memory"
_SHARE = "max_shard_batch_bytes"
ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ARROW_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
#: Spark's defaults, and the value with which Spark does not measure rows.
_ARROW_BATCH_BYTES, _ARROW_RECORDS_DEFAULT, NO_ARROW_LIMIT = 64 * _MIB, 10_000, (1 << 31) - 1
#: Mean size of a batch that needs no limit, because large rows among small ones may lie together.
_SMALL_BATCH_BYTES = 8 * _MIB


def shuffle_partitions(facts: Facts) -> Assessment:
    """Compare partitions of the state with cores, because every partition starts a Python task."""
    partitions, cores = facts.partitions, facts.cores
    if partitions is None:
        return unknown(
            f"Not known: {_PARTITIONS}. It becomes the number of state partitions, and should be "
            f"about the number of cores. {HOW_SETTINGS}"
        )
    have = f"{_PARTITIONS} is {partitions}"
    if facts.started:
        have = f"The state has {partitions} partitions"
        setting = whole_number(facts.settings.get(_PARTITIONS))
        if setting not in (None, partitions):
            have += f" (the checkpoint keeps that number, {_PARTITIONS}={setting} changes nothing)"
    if cores is None:
        return unknown(
            f"{have}, and each costs a Python session in every micro-batch. The number of cores is "
            f"not known. {HOW_CORES}"
        )
    if cores <= partitions <= PER_CORE_MAX * cores:
        return fine(f"{have}, on {cores} cores: one to {PER_CORE_MAX} per core is best.")
    harm = (
        f"{partitions / cores:.0f} for each of {cores} cores: each costs a Python session in every "
        "micro-batch, used or not (32 per core took three times as long as one per core)."
        if partitions > cores
        else f"so that {cores - partitions} of {cores} cores are idle while records are judged."
    )
    if facts.started:
        harm += " This query keeps it as long as it has this checkpoint."
    return costs(f"{have}, {harm}", f"{_PARTITIONS}={cores}", Takes.BEGINNING)


def batch_memory(facts: Facts) -> Assessment:
    """Compare memory outside the JVM's heap with the largest share of a micro-batch.

    Each core of an executor judges one shard at a time, in a Python worker. If the container's
    memory for Python holds the largest share that `max_shard_batch_bytes` permits, the operator can
    stop the query with a helpful error before a larger share kills the container.
    """
    allowed, workers = _allowed(facts)
    if allowed is None or workers is None:
        return unknown(
            "The machine's memory beside the JVM (spark.driver.memory), or the number of cores, is "
            "not known. Give --conf spark.driver.memory=SIZE."
            if facts.local
            else "Python's memory on an executor, or the number of cores, is not known. Give "
            f"--conf spark.master=..., spark.executor.memory, {_OVERHEAD}, {_PYSPARK} and "
            "spark.executor.cores."
        )
    need = _need(facts, workers)
    have = (
        f"the machine has {allowed // _MIB:,} MiB beside the JVM's heap"
        if facts.local
        else f"an executor has {allowed // _MIB:,} MiB outside the JVM's heap"
    )
    if workers_bytes(workers, facts.share_bytes) <= allowed:
        return fine(f"{need}; {have}.")
    change = f"{_SHARE}={_advised(facts)}"
    if facts.local:
        return costs(f"{need}, but {have}.", change)
    if _fitting(allowed // workers) < _LEAST_SHARE:
        change = f"{_OVERHEAD}={workers_bytes(workers, _LEAST_SHARE) // _MIB}m\n{change}"
    return costs(
        f"{need}, but {have} ({_OVERHEAD}, {_PYSPARK}): with such a micro-batch the container is "
        "killed again and again. With a smaller share the operator stops the query with an error "
        f"that names the remedy.{_room(facts, allowed, workers)}",
        change,
    )


def pyspark_memory(facts: Facts) -> Assessment | None:
    """Check the limit that Spark sets on Python's address space, which counts all mapped memory."""
    limit, tasks = size_bytes(facts.settings.get(_PYSPARK), unit="m"), _tasks(facts)
    if limit is None or tasks is None:
        return None
    each, share = limit // tasks, facts.share_bytes
    have = (
        f"{_PYSPARK}={facts.settings[_PYSPARK]} gives each of {tasks} workers {each // _MIB:,} "
        "MiB of address space"
    )
    if each >= _MAPPED_BYTES + _PER_SHARE_BYTE * share:
        return fine(f"{have}, enough for shares of a micro-batch of {share // _MIB:,} MiB.")
    change = f"{_SHARE}={_advised(facts)}"
    fits = _fitting(each, _MAPPED_BYTES)
    if fits >= _LEAST_SHARE:
        return costs(
            f"{have}: a share of a micro-batch of more than {fits // _MIB:,} MiB fails with a "
            "memory error.",
            change,
        )
    needed = tasks * (_MAPPED_BYTES + _PER_SHARE_BYTE * _LEAST_SHARE)
    return costs(
        f"{have}. pyarrow and RocksDB alone map more than half a GiB: the query fails at once, or "
        "in its first larger micro-batch.",
        f"{_PYSPARK}={needed // _MIB}m\n{change}",
    )


def arrow_batches(facts: Facts) -> Assessment | None:
    """Compare the size of rows with Spark's limit of bytes in a batch for Python.

    With a limit Spark measures the batch after each row (``ArrowPythonRunner``). This is wasted if
    the number of records ends each batch earlier. The largest number is no limit.
    """
    if not facts.row_bytes:
        return None
    max_records = facts.settings.get(_ARROW_RECORDS, str(_ARROW_RECORDS_DEFAULT))
    rows = float(whole_number(max_records) or "inf")  # Spark takes 0 and less for no limit
    if not facts.local and facts.batch_records_max and facts.shards:
        # On a cluster the second pass may get all rows of a shard in one batch.
        rows = max(rows, facts.batch_records_max / facts.shards)
    nbytes, limit = rows * facts.row_bytes, facts.setting(ARROW_BYTES, f"{_ARROW_BATCH_BYTES}")
    have = (
        f"Rows have {facts.row_bytes:,.0f} bytes on average: {rows:,.0f} of them make a batch of "
        f"{nbytes / _MIB:,.1f} MiB for Python"
    )
    is_small, is_large = nbytes <= _SMALL_BATCH_BYTES, nbytes > _ARROW_BATCH_BYTES
    is_limited = limit is not None and size_bytes(limit) != NO_ARROW_LIMIT
    if limit is not None and not (is_small if is_limited else is_large):
        return fine(f"{have}. {ARROW_BYTES} fits that.")
    harm = "without a limit of bytes, Java and Python each hold such a batch"
    if is_small:
        harm = "a limit of bytes makes Spark measure the batch after each row"
    change = f"{ARROW_BYTES}={NO_ARROW_LIMIT if is_small else _ARROW_BATCH_BYTES}"
    return (costs if limit is not None else unknown)(f"{have}; {harm}.", change, Takes.RESTART)


def _need(facts: Facts, tasks: int) -> str:
    share = facts.share_bytes
    default = "" if facts.max_shard_batch_bytes else ", the default"
    return (
        f"{tasks} Python worker{'s' if tasks > 1 else ''} with shares of a micro-batch of "
        f"{share // _MIB:,} MiB ({_SHARE}{default}) would need about "
        f"{workers_bytes(tasks, share) // _MIB:,} MiB"
    )


def _room(facts: Facts, allowed: int, tasks: int) -> str:
    if not facts.batch_records_max or not facts.shards:
        return ""
    records = -(-facts.batch_records_max // facts.shards)
    return (
        f" The largest of the recent micro-batches had about {records:,} records per shard. Memory "
        f"is enough for {_fitting(allowed // tasks) // records:,} bytes of each."
    )


def workers_bytes(tasks: int, share: int) -> int:
    return tasks * (_WORKER_BYTES + _PER_SHARE_BYTE * share)


def _fitting(each: int, without_records: int = _WORKER_BYTES) -> int:
    """Return the largest share that fits a worker's memory, in bytes, in whole MiB."""
    return max(0, (each - without_records) // _PER_SHARE_BYTE // _MIB * _MIB)


def _advised(facts: Facts) -> int:
    (allowed, workers), tasks, shares = _allowed(facts), _tasks(facts), []
    limit = size_bytes(facts.settings.get(_PYSPARK), unit="m")
    if limit is not None and tasks is not None:
        shares.append(max(_fitting(limit // tasks, _MAPPED_BYTES), _LEAST_SHARE))
    if allowed is not None and workers is not None:
        shares.append(max(_fitting(allowed // workers), _MIB if facts.local else _LEAST_SHARE))
    return min(shares)


def _allowed(facts: Facts) -> tuple[int | None, int | None]:
    """Return the memory for Python on a machine, and the number of workers that share it."""
    if not facts.local:
        return _python_bytes(facts), _tasks(facts)
    heap = size_bytes(facts.setting("spark.driver.memory", "1g"), unit="m")
    if facts.machine_bytes is None or heap is None:
        return None, facts.cores
    return max(0, facts.machine_bytes - heap), facts.cores


def _tasks(facts: Facts) -> int | None:
    cores = whole_number(facts.setting("spark.executor.cores", "1"))
    cpus = whole_number(facts.setting("spark.task.cpus", "1")) or 1
    return None if cores is None else max(1, cores // cpus)


def _python_bytes(facts: Facts) -> int | None:
    """Return the memory that Spark gives a container outside the JVM's heap."""
    if facts.settings.get("spark.master") is None:
        return None
    pyspark = size_bytes(facts.settings.get(_PYSPARK), unit="m") or 0
    overhead = size_bytes(facts.settings.get(_OVERHEAD), unit="m")
    if overhead is not None:
        return pyspark + overhead
    heap = size_bytes(facts.setting("spark.executor.memory", "1g"), unit="m")
    if heap is None:
        return None
    kubernetes = facts.settings["spark.master"].startswith("k8s")
    factor = facts.settings.get("spark.executor.memoryOverheadFactor")
    try:
        share = float(factor) if factor is not None else 0.4 if kubernetes else 0.1
    except ValueError:
        return None
    return pyspark + max(384 * _MIB, int(heap * share))
