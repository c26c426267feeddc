"""Rules about memory: what Python may come to need against what it is allowed."""

from __future__ import annotations

from collections.abc import Iterator

from dedup.checks.facts import Facts, size_bytes, whole
from dedup.checks.findings import Finding, Level, Takes

_MIB = 1 << 20
#: `max_shard_batch_bytes` where nobody gave it.
SHARE_BYTES = 1 << 30
#: Resident memory of a worker that judges a shard: measured with shares of 50 to 900 MB.
_WORKER_BYTES, _PER_SHARE_BYTE = 240 * _MIB, 3
#: Address space of one without records: it works with 1 GiB in all, and not with 512 MiB.
_MAPPED_BYTES = 768 * _MIB
#: Advice does not go below such a share: some 100,000 records of a kilobyte or two.
_LEAST_SHARE = 128 * _MIB
_OVERHEAD = "spark.executor.memoryOverhead"
_PYSPARK = "spark.executor.pyspark.memory"
_SHARE = "max_shard_batch_bytes"


def batch_memory(facts: Facts) -> Iterator[Finding]:
    """Memory outside the JVM's heap against the largest share of a micro-batch.

    Each of an executor's cores judges a shard at a time, in a Python worker. The largest share that
    `max_shard_batch_bytes` lets through should fit into what the executor's container has for
    Python, so that the operator stops the query with an error that says what to do, before the
    container is killed.
    """
    rule = "batch-memory"
    if facts.local:
        yield from _on_this_machine(rule, facts)
        return
    allowed = _python_bytes(facts)
    tasks = _tasks(facts)
    if allowed is None or tasks is None:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence="How much memory Python has on an executor, and for how many cores, is not "
            f"known. Give it: --conf spark.master=..., spark.executor.memory, {_OVERHEAD}, "
            f"{_PYSPARK} and spark.executor.cores.",
        )
        return
    share = facts.max_shard_batch_bytes or SHARE_BYTES
    need, said = _need(facts, tasks, share)
    have = f"an executor has {allowed // _MIB:,} MiB outside of the JVM's heap"
    if need <= allowed:
        yield Finding(rule=rule, level=Level.FINE, evidence=f"{said}; {have}.")
        return
    change = f"{_SHARE}={_advised(facts)}"
    if _fitting(allowed, tasks) < _LEAST_SHARE:
        change = f"{_OVERHEAD}={workers_bytes(tasks, _LEAST_SHARE) // _MIB}m\n{change}"
    yield Finding(
        rule=rule,
        level=Level.COSTS,
        evidence=f"{said}, but {have} ({_OVERHEAD}, {_PYSPARK}): a micro-batch as large as that "
        "gets its container killed, again and again, where the operator could have stopped the "
        f"query with an error that says what to do.{_room(facts, allowed, tasks)}",
        change=change,
        takes=Takes.RESTART,
    )


def pyspark_memory(facts: Facts) -> Iterator[Finding]:
    """A limit of Python's address space, which counts what is mapped, not what is used."""
    rule = "pyspark-memory"
    limit = size_bytes(facts.settings.get(_PYSPARK), unit="m")
    tasks = _tasks(facts)
    if limit is None or tasks is None:
        return
    share = facts.max_shard_batch_bytes or SHARE_BYTES
    each = limit // tasks
    said = f"{_PYSPARK}={facts.settings[_PYSPARK]} gives each of {tasks} workers {each // _MIB:,} "
    said += "MiB of address space"
    if each >= _MAPPED_BYTES + _PER_SHARE_BYTE * share:
        yield Finding(
            rule=rule,
            level=Level.FINE,
            evidence=f"{said}, enough for shares of a micro-batch of {share // _MIB:,} MiB.",
        )
        return
    fits = _mappable(each)
    if fits < _LEAST_SHARE:
        what = "pyarrow and RocksDB alone map more than half a GiB: the query fails at once, or "
        what += "with its first larger micro-batch"
        change = f"{_PYSPARK}={tasks * (_MAPPED_BYTES + _PER_SHARE_BYTE * _LEAST_SHARE) // _MIB}m\n"
    else:
        what = (
            f"a share of a micro-batch of more than {fits // _MIB:,} MiB fails with a memory error"
        )
        change = ""
    yield Finding(
        rule=rule,
        level=Level.COSTS,
        evidence=f"{said}: {what}.",
        change=f"{change}{_SHARE}={_advised(facts)}",
        takes=Takes.RESTART,
    )


def _on_this_machine(rule: str, facts: Facts) -> Iterator[Finding]:
    allowed = _beside_heap(facts)
    if allowed is None or facts.cores is None:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence="How much memory the machine has beside the JVM (spark.driver.memory), and "
            "for how many cores, is not known. Give --conf spark.driver.memory=SIZE.",
        )
        return
    share = facts.max_shard_batch_bytes or SHARE_BYTES
    need, said = _need(facts, facts.cores, share)
    have = f"the machine has {allowed // _MIB:,} MiB beside the JVM's heap"
    if need <= allowed:
        yield Finding(rule=rule, level=Level.FINE, evidence=f"{said}; {have}.")
        return
    yield Finding(
        rule=rule,
        level=Level.COSTS,
        evidence=f"{said}, but {have}.",
        change=f"{_SHARE}={_advised(facts)}",
        takes=Takes.RESTART,
    )


def _need(facts: Facts, tasks: int, share: int) -> tuple[int, str]:
    """The bytes of all workers at work with the largest shares, and that in words."""
    need = workers_bytes(tasks, share)
    default = "" if facts.max_shard_batch_bytes else ", unless it was given otherwise"
    return need, (
        f"{tasks} Python worker{'s' if tasks > 1 else ''} with shares of a micro-batch of "
        f"{share // _MIB:,} MiB ({_SHARE}{default}) would need about {need // _MIB:,} MiB"
    )


def _room(facts: Facts, allowed: int, tasks: int) -> str:
    """What the memory means for the micro-batches that there were."""
    if not facts.batch_records_max or not facts.shards:
        return ""
    records = -(-facts.batch_records_max // facts.shards)
    return (
        f" The largest of the recent micro-batches had about {records:,} records a shard; there is "
        f"room for {_fitting(allowed, tasks) // records:,} bytes of each."
    )


def workers_bytes(tasks: int, share: int) -> int:
    """Memory of an executor's Python workers at work with shares of so many bytes."""
    return tasks * (_WORKER_BYTES + _PER_SHARE_BYTE * share)


def _fitting(allowed: int, tasks: int) -> int:
    """The largest share for which the memory is enough, in whole MiB; 0 where there is none."""
    return max(0, (allowed // tasks - _WORKER_BYTES) // _PER_SHARE_BYTE // _MIB * _MIB)


def _mappable(each: int) -> int:
    """The largest share that a worker's address space lets it judge, in whole MiB."""
    return (each - _MAPPED_BYTES) // _PER_SHARE_BYTE // _MIB * _MIB


def _advised(facts: Facts) -> int:
    """The share that both rules advise: the smaller one, so that one report says one thing."""
    tasks, found = _tasks(facts), []
    limit = size_bytes(facts.settings.get(_PYSPARK), unit="m")
    if limit is not None and tasks is not None:
        found.append(max(_mappable(limit // tasks), _LEAST_SHARE))
    if facts.local:
        beside = _beside_heap(facts)
        if beside is not None and facts.cores is not None:
            found.append(max(_fitting(beside, facts.cores), _MIB))
    else:
        allowed = _python_bytes(facts)
        if allowed is not None and tasks is not None:
            found.append(max(_fitting(allowed, tasks), _LEAST_SHARE))
    return min(found)


def _beside_heap(facts: Facts) -> int | None:
    """What the machine has beside the JVM's heap, None where it is not known."""
    heap = size_bytes(facts.setting("spark.driver.memory", "1g"), unit="m")
    if facts.machine_bytes is None or heap is None:
        return None
    return max(0, facts.machine_bytes - heap)


def _tasks(facts: Facts) -> int | None:
    """Tasks at a time on one executor."""
    cores = whole(facts.setting("spark.executor.cores", "1"))
    cpus = whole(facts.setting("spark.task.cpus", "1")) or 1
    return None if cores is None else max(1, cores // cpus)


def _python_bytes(facts: Facts) -> int | None:
    """What an executor's container has beside the JVM's heap, as Spark reckons it."""
    if facts.settings.get("spark.master") is None:
        return None
    own = size_bytes(facts.settings.get(_PYSPARK), unit="m") or 0
    given = size_bytes(facts.settings.get(_OVERHEAD), unit="m")
    if given is not None:
        return own + given
    heap = size_bytes(facts.setting("spark.executor.memory", "1g"), unit="m")
    if heap is None:
        return None
    kubernetes = facts.settings["spark.master"].startswith("k8s")
    factor = facts.settings.get("spark.executor.memoryOverheadFactor")
    try:
        share = float(factor) if factor is not None else 0.4 if kubernetes else 0.1
    except ValueError:
        return None
    return own + max(384 * _MIB, int(heap * share))
