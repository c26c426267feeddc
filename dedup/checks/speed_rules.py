"""Rules about what costs speed or memory: each looks at the facts and says what it found."""

from __future__ import annotations

from collections.abc import Iterator

from dedup.checks.facts import HOW_CORES, HOW_SETTINGS, Facts, Source, size_bytes, whole
from dedup.checks.findings import Finding, Level, Takes
from dedup.checks.guarantee_rules import HDFS_STORE, ROCKSDB_STORE
from dedup.checks.memory_rules import SHARE_BYTES

_PARTITIONS = "spark.sql.shuffle.partitions"
#: Partitions per core up to which there is room to grow into for 6 to 13 % of a micro-batch.
PER_CORE_MAX = 4
_MIB = 1 << 20
#: Records in a micro-batch that a core is through with in about a second.
_RECORDS_PER_CORE = 500_000
#: Options that bound a micro-batch, by kind of source; any one of them does.
_LIMITS = {
    "kafka": ("maxOffsetsPerTrigger",),
    "file": ("maxFilesPerTrigger", "maxBytesPerTrigger"),
}
_BOUNDED = ("rate", "rate-micro-batch")


def shuffle_partitions(facts: Facts) -> Iterator[Finding]:
    """Every partition of the state costs a Python session in every micro-batch."""
    rule = "shuffle-partitions"
    partitions, cores = facts.partitions, facts.cores
    if partitions is None:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence=f"Not known: {_PARTITIONS}. It becomes the number of state partitions, and "
            f"should be about the number of cores. {HOW_SETTINGS}",
        )
        return
    have = (
        f"The state has {partitions} partitions"
        if facts.started
        else f"{_PARTITIONS} is {partitions}"
    )
    asked = whole(facts.settings.get(_PARTITIONS))
    if facts.started and asked not in (None, partitions):
        have += f" (the checkpoint keeps that number, {_PARTITIONS}={asked} changes nothing)"
    if cores is None:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence=f"{have}, and each costs a Python session in every micro-batch; how many "
            f"cores there are is not known. {HOW_CORES}",
        )
    elif partitions > PER_CORE_MAX * cores:
        yield Finding(
            rule=rule,
            level=Level.COSTS,
            evidence=f"{have}, {partitions / cores:.0f} for each of {cores} cores: each costs a "
            "Python session in every micro-batch, used or not (32 per core took three times as "
            "long as one per core)." + _once_started(facts),
            change=f"{_PARTITIONS}={cores}",
            takes=Takes.BEGINNING,
        )
    elif partitions < cores:
        yield Finding(
            rule=rule,
            level=Level.COSTS,
            evidence=f"{have}, so that {cores - partitions} of {cores} cores have nothing to do "
            "while records are judged." + _once_started(facts),
            change=f"{_PARTITIONS}={cores}",
            takes=Takes.BEGINNING,
        )
    else:
        yield Finding(
            rule=rule,
            level=Level.FINE,
            evidence=f"{have}, on {cores} cores: one to {PER_CORE_MAX} for each core is best.",
        )


def shard_layout(facts: Facts) -> Iterator[Finding]:
    """Shards lie on partitions in turn: shard i on partition i modulo their number."""
    rule = "shard-layout"
    shards, partitions = facts.shards, facts.partitions
    if shards is None:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence="How many shards the catalog has is not known. Give --catalog ROOT, or --log.",
        )
    elif partitions is None:
        return
    elif shards < partitions:
        yield Finding(
            rule=rule,
            level=Level.COSTS,
            evidence=f"There are {shards} shards on {partitions} state partitions: "
            f"{partitions - shards} tasks of every micro-batch start Python for nothing."
            + _once_started(facts),
            change=f"{_PARTITIONS}={shards}",
            takes=Takes.BEGINNING,
        )
    elif shards % partitions:
        most = -(-shards // partitions)
        yield Finding(
            rule=rule,
            level=Level.COSTS,
            evidence=f"There are {shards} shards on {partitions} state partitions: some tasks "
            f"have {most} of them, others {most - 1}, and the micro-batch waits for the former."
            + _once_started(facts),
            change=f"shards={partitions * most}",
            takes=Takes.BEGINNING,
        )
    else:
        yield Finding(
            rule=rule,
            level=Level.FINE,
            evidence=f"There are {shards} shards on {partitions} state partitions, "
            f"{shards // partitions} on each.",
        )


def trigger_limit(facts: Facts) -> Iterator[Finding]:
    """Without a limit, all that came during an outage is one micro-batch."""
    rule = "trigger-limit"
    if facts.sources is None:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence="The sources of the query are not known, nor whether a micro-batch of them "
            "is limited.",
        )
    for source in facts.sources or ():
        names = _LIMITS.get(source.kind, ())
        given = [name for name in names if source.option(name) is not None]
        if source.kind in _BOUNDED:
            continue
        if given:
            text = " and ".join(f"{name} is {source.option(name)}" for name in given)
            yield Finding(
                rule=rule,
                level=Level.FINE,
                evidence=f"A micro-batch of {source.name} is limited: {text}.",
            )
        elif not names:
            yield Finding(
                rule=rule,
                level=Level.UNKNOWN,
                evidence=f"Whether a micro-batch of {source.name} is limited is not known; what "
                "came during an outage should not come as one.",
            )
        elif not source.complete:
            yield Finding(
                rule=rule,
                level=Level.UNKNOWN,
                evidence=f"Whether a micro-batch of {source.name} is limited is not known; what "
                f"came during an outage should not come as one.{_largest(source)} Give it: "
                f"--source-option {names[0]}=NUMBER.",
            )
        else:
            share = facts.max_shard_batch_bytes or SHARE_BYTES
            yield Finding(
                rule=rule,
                level=Level.COSTS,
                evidence=f"A micro-batch of {source.name} has no limit: after an outage all that "
                "came meanwhile is one, which has to fit into memory, and stops the query where a "
                f"shard's share is more than {share // _MIB:,} MiB (max_shard_batch_bytes)."
                f"{_largest(source)}",
                change=f'.option("{names[0]}", {_limit(facts, source)})',
                takes=Takes.RESTART,
            )


def _limit(facts: Facts, source: Source) -> int:
    """Twice the largest recent micro-batch, else what takes a second or so."""
    if source.batch_max:
        return _rounded_up(2 * source.batch_max)
    return 10 if source.kind == "file" else _RECORDS_PER_CORE * (facts.cores or 2)


def _largest(source: Source) -> str:
    if not source.batch_max:
        return ""
    unit = "file" if source.kind == "file" else "record"
    several = "" if source.batch_max == 1 else "s"
    return f" The largest of the recent micro-batches had {source.batch_max:,} {unit}{several}."


def _rounded_up(number: int) -> int:
    """To two digits, e.g. 1234 to 1300."""
    step = int(10 ** max(0, len(str(number)) - 2))
    return -(-number // step) * step


def state_store(facts: Facts) -> Iterator[Finding]:
    """The provider: the state is a row per shard, whole in every micro-batch."""
    rule = "state-store"
    name = "spark.sql.streaming.stateStore.providerClass"
    store = facts.setting(name, HDFS_STORE)
    changelog_name = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
    changelog = facts.setting(changelog_name, "false")
    if store is None:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence=f"Not known: {name}. {HOW_SETTINGS}",
        )
    elif store == HDFS_STORE:
        yield Finding(
            rule=rule,
            level=Level.FINE,
            evidence="The state store is Spark's default, HDFS-backed: the state is one row per "
            "shard of at most state_budget_bytes, so its heap and snapshots stay small.",
        )
    elif store != ROCKSDB_STORE:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence=f"The state store is {store}, which was not tried with dedup_by_id.",
        )
    elif changelog is None:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence=f"The state store is RocksDB. Not known: {changelog_name}, which should be "
            f"true. {HOW_SETTINGS}",
        )
    elif changelog.strip().lower() != "true":
        yield Finding(
            rule=rule,
            level=Level.COSTS,
            evidence="The state store is RocksDB without a changelog: every micro-batch uploads a "
            "snapshot of each partition, which took 160 ms where the changelog takes 75, and the "
            "HDFS-backed store 64.",
            change=f"{changelog_name}=true",
            takes=Takes.RESTART,
        )
    else:
        yield Finding(
            rule=rule,
            level=Level.FINE,
            evidence="The state store is RocksDB with changelog checkpointing.",
        )


def worker_reuse(facts: Facts) -> Iterator[Finding]:
    """Without reuse every task starts a Python and loads pandas and pyarrow."""
    rule = "worker-reuse"
    name = "spark.python.worker.reuse"
    value = facts.setting(name, "true")
    if value is None:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence=f"Not known: {name}. The default, true, is right. {HOW_SETTINGS}",
        )
    elif value.strip().lower() == "true":
        yield Finding(rule=rule, level=Level.FINE, evidence="Python workers are used again.")
    else:
        yield Finding(
            rule=rule,
            level=Level.COSTS,
            evidence=f"{name} is {value}: every task of every micro-batch starts a Python of its "
            "own, and loads pandas and pyarrow.",
            change=f"{name}=true",
            takes=Takes.RESTART,
        )


def arrow_batch_bytes(facts: Facts) -> Iterator[Finding]:
    """Spark looks up the size of every row, unless the bound is the largest there is."""
    rule = "arrow-batch-bytes"
    name = "spark.sql.execution.arrow.maxBytesPerBatch"
    unbounded = (1 << 31) - 1
    value = size_bytes(facts.setting(name, "64m"))
    if value is None:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence=f"Not known: {name}. {unbounded} spares Spark a check of every row's size. "
            f"{HOW_SETTINGS}",
        )
    elif value >= unbounded:
        yield Finding(
            rule=rule,
            level=Level.FINE,
            evidence=f"{name} is {value}: Spark need not look up the size of every row.",
        )
    else:
        yield Finding(
            rule=rule,
            level=Level.COSTS,
            evidence=f"{name} is {value}: Spark looks up the size of every row, 5 to 45 % of the "
            f"executors' CPU in our runs. With {unbounded} it does not; a batch then holds 10,000 "
            "rows however wide they are, which suits rows of up to some kilobytes.",
            change=f"{name}={unbounded}",
            takes=Takes.RESTART,
        )


def _once_started(facts: Facts) -> str:
    if not facts.started:
        return ""
    return " This query keeps it for as long as it has this checkpoint."
