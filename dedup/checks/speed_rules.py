"""Rules about what costs speed or memory: each looks at the facts and says what it found."""

from __future__ import annotations

from collections.abc import Iterator

from dedup.checks.facts import HOW_CORES, HOW_SETTINGS, Facts, Source, size_bytes, whole_number
from dedup.checks.findings import Assessment, Takes, costs, fine, unknown
from dedup.checks.guarantee_rules import HDFS_STORE, ROCKSDB_STORE, STORE

#: Partitions per core up to which there is room to grow into for 6 to 13 % of a micro-batch.
PER_CORE_MAX = 4
_MIB = 1 << 20
#: Records in a micro-batch that a core is through with in about a second.
_RECORDS_PER_CORE = 500_000
#: Options that bound a micro-batch, by kind of source; any one of them does.
_LIMITS = {"kafka": ("maxOffsetsPerTrigger",), "file": ("maxFilesPerTrigger", "maxBytesPerTrigger")}
_BOUNDED = ("rate", "rate-micro-batch")
_PARTITIONS = "spark.sql.shuffle.partitions"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
_REUSE = "spark.python.worker.reuse"
_ARROW, _UNBOUNDED = "spark.sql.execution.arrow.maxBytesPerBatch", (1 << 31) - 1


def shuffle_partitions(facts: Facts) -> Assessment:
    """Every partition of the state costs a Python session in every micro-batch."""
    partitions, cores = facts.partitions, facts.cores
    if partitions is None:
        return unknown(
            f"Not known: {_PARTITIONS}. It becomes the number of state partitions, and "
            f"should be about the number of cores. {HOW_SETTINGS}"
        )
    have = f"{_PARTITIONS} is {partitions}"
    if facts.started:
        have = f"The state has {partitions} partitions"
        asked = whole_number(facts.settings.get(_PARTITIONS))
        if asked not in (None, partitions):
            have += f" (the checkpoint keeps that number, {_PARTITIONS}={asked} changes nothing)"
    if cores is None:
        return unknown(
            f"{have}, and each costs a Python session in every micro-batch; how many "
            f"cores there are is not known. {HOW_CORES}"
        )
    if cores <= partitions <= PER_CORE_MAX * cores:
        return fine(f"{have}, on {cores} cores: one to {PER_CORE_MAX} for each core is best.")
    harm = (
        f"{partitions / cores:.0f} for each of {cores} cores: each costs a "
        "Python session in every micro-batch, used or not (32 per core took three times as "
        "long as one per core)."
        if partitions > cores
        else f"so that {cores - partitions} of {cores} cores have nothing to do "
        "while records are judged."
    )
    return _fixed(facts, f"{have}, {harm}", f"{_PARTITIONS}={cores}")


def shard_layout(facts: Facts) -> Assessment | None:
    """Shards lie on partitions in turn: shard i on partition i modulo their number."""
    shards, partitions = facts.shards, facts.partitions
    if shards is None:
        return unknown(
            "How many shards the catalog has is not known. Give --catalog ROOT, or --log."
        )
    if partitions is None:
        return None
    have = f"There are {shards} shards on {partitions} state partitions"
    if shards < partitions:
        return _fixed(
            facts,
            f"{have}: {partitions - shards} tasks of every micro-batch start Python for nothing.",
            f"{_PARTITIONS}={shards}",
        )
    if shards % partitions:
        most = -(-shards // partitions)
        return _fixed(
            facts,
            f"{have}: some tasks have {most} of them, others {most - 1}, and the micro-batch waits "
            "for the former.",
            f"shards={partitions * most}",
        )
    return fine(f"{have}, {shards // partitions} on each.")


def _fixed(facts: Facts, evidence: str, change: str) -> Assessment:
    """Return the verdict on what costs time and cannot be changed once the query has begun."""
    if facts.started:
        evidence += " This query keeps it for as long as it has this checkpoint."
    return costs(evidence, change, Takes.BEGINNING)


def trigger_limit(facts: Facts) -> Iterator[Assessment]:
    """Without a limit, all that came during an outage is one micro-batch."""
    if facts.sources is None:
        yield unknown(
            "The sources of the query are not known, nor whether a micro-batch of them is limited."
        )
    for source in facts.sources or ():
        if source.kind not in _BOUNDED:
            yield _limit(facts, source)


def _limit(facts: Facts, source: Source) -> Assessment:
    names = _LIMITS.get(source.kind, ())
    given = [name for name in names if source.option(name) is not None]
    if given:
        text = " and ".join(f"{name} is {source.option(name)}" for name in given)
        return fine(f"A micro-batch of {source.name} is limited: {text}.")
    largest = _largest(source)
    if not names or not source.complete:
        how = f"{largest} Give it: --source-option {names[0]}=NUMBER." if names else ""
        return unknown(
            f"Whether a micro-batch of {source.name} is limited is not known; what "
            f"came during an outage should not come as one.{how}"
        )
    return costs(
        f"A micro-batch of {source.name} has no limit: after an outage all that "
        "came meanwhile is one, which has to fit into memory, and stops the query where a "
        f"shard's share is more than {facts.share_bytes // _MIB:,} MiB (max_shard_batch_bytes)."
        f"{largest}",
        f'.option("{names[0]}", {_advised_limit(facts, source)})',
    )


def _advised_limit(facts: Facts, source: Source) -> int:
    """Return twice the largest recent micro-batch, else what takes a second or so."""
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
    """Return the number to two digits, e.g. 1300 for 1234."""
    step = int(10 ** max(0, len(str(number)) - 2))
    return -(-number // step) * step


def state_store(facts: Facts) -> Assessment:
    """The provider: the state is a row per shard, whole in every micro-batch."""
    store, changelog = facts.setting(STORE, HDFS_STORE), facts.enabled(_CHANGELOG, "false")
    if store is None:
        return unknown(f"Not known: {STORE}. {HOW_SETTINGS}")
    if store == HDFS_STORE:
        row = "at most state_budget_bytes, so its heap and snapshots stay small"
        if facts.producers is not None:
            row = "all its producers"
        return fine(
            "The state store is Spark's default, HDFS-backed: the state is one row per shard of "
            f"{row}."
        )
    if store != ROCKSDB_STORE:
        return unknown(f"The state store is {store}, which was not tried with this operator.")
    if changelog is None:
        return unknown(
            f"The state store is RocksDB. Not known: {_CHANGELOG}, which should be "
            f"true. {HOW_SETTINGS}"
        )
    if changelog:
        return fine("The state store is RocksDB with changelog checkpointing.")
    return costs(
        "The state store is RocksDB without a changelog: every micro-batch uploads a "
        "snapshot of each partition, which took 160 ms where the changelog takes 75, and the "
        "HDFS-backed store 64.",
        f"{_CHANGELOG}=true",
    )


def worker_reuse(facts: Facts) -> Assessment:
    """Without reuse every task starts a Python and loads pandas and pyarrow."""
    enabled = facts.enabled(_REUSE)
    if enabled is None:
        return unknown(f"Not known: {_REUSE}. The default, true, is right. {HOW_SETTINGS}")
    if enabled:
        return fine("Python workers are used again.")
    return costs(
        f"{_REUSE} is {facts.setting(_REUSE, 'true')}: every task of every micro-batch starts a "
        "Python of its own, and loads pandas and pyarrow.",
        f"{_REUSE}=true",
    )


def arrow_batch_bytes(facts: Facts) -> Assessment:
    """Spark looks up the size of every row, unless the bound is the largest there is."""
    value = size_bytes(facts.setting(_ARROW, "64m"))
    if value is None:
        return unknown(
            f"Not known: {_ARROW}. {_UNBOUNDED} spares Spark a check of every row's size. "
            f"{HOW_SETTINGS}"
        )
    if value >= _UNBOUNDED:
        return fine(f"{_ARROW} is {value}: Spark need not look up the size of every row.")
    return costs(
        f"{_ARROW} is {value}: Spark looks up the size of every row, 5 to 45 % of the "
        f"executors' CPU in our runs. With {_UNBOUNDED} it does not; a batch then holds 10,000 "
        "rows however wide they are, which suits rows of up to some kilobytes.",
        f"{_ARROW}={_UNBOUNDED}",
    )
