"""Campaigns: one query each, how it is set up, and which faults are armed in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, cycle, islice, product
from random import Random
from typing import Any

from dedup.testing import faults
from tests.support.quick_spark import QUICK_JAVA
from tests.support.small_state import OPTIONS
from tests.support.state_stores import CHANGELOG, CHANGELOG_V2

STORES = {"hdfs": {}, "rocksdb": CHANGELOG, "rocksdb, checkpoint v2": CHANGELOG_V2}
#: Points of the driver alone, where an exception adds nothing to a kill.
_DRIVER = ("sink.", "files.collected")
#: Points that some campaigns never reach.
_S3_ONLY = ("upload.before", "upload.after")
_LOCAL_ONLY = ("publish.synced", "publish.named")
#: Nothing reaches these if Spark itself reads and writes the files.
_FILES_ONLY = ("scan.begin", "files.group", "files.written", "files.collected")
_SIDE_ONLY = ("sink.side.published",)
_PENDING_LISTS_ONLY = ("pending_list.put.before", "pending_list.put.after")
#: A micro-batch reaches only one of them if the first one strikes.
_ONCE = ("files.planned", "files.published")
#: Twice the faults there.
_SELDOM = (*_S3_ONLY, *_LOCAL_ONLY, "sweep.before", "sweep.after")
#: A filter is fetched once it has left the state, and the cache is lost.
_FETCHES_ONLY = ("sidecar.fetch.after",)
#: Visited while a query is born, and never again.
BIRTH = ("certificate.put.before", "certificate.put.after")
#: Where a query of numbered records is struck, by its sink.
NUMBERED_INTO = {
    # The driver's part of this sink runs in its own process.
    "files": (
        "pack.begin", "bodies.write", "pack.end", "group.begin", "group.read", "group.judged",
        "group.update.before", "group.update.after", "group.end", "unpack.begin", "unpack.end",
        "files.task.begin", "files.group", "files.written", "files.task.end",
        "files.driver.before", "files.laid.out", "files.planned", "files.published",
        "files.driver.published", "files.driver.after",
    ),
    # The last two are of the driver itself, with which everything ends.
    "staged": ("group.update.after", "unpack.end", "sink.staged", "sink.published"),
}  # fmt: skip
#: So many segments expire, and are kept for so long, that their names leave the state.
MANY_EXPIRED = {"bucket_length": "2 seconds", "keep_expired": "300 seconds"}
#: Two executors on their own hosts; a task that stands still is started again beside itself.
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.quantile": "0.5",
    # What lost against its copy lives on for so long.
    "spark.python.task.killTimeout": "60s",
}
_CLUSTER = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.locality.wait": "0s",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}
_FROZEN_S = 1.5
#: A restarted query has done some micro-batches by then.
_ZOMBIE_S = 12.0


@dataclass(frozen=True)
class Campaign:
    """One query, and how it is treated; the seed is that of input, faults and times of kills."""

    seed: int
    batches: int = 24
    rows: int = 400
    store: str = "hdfs"
    s3: bool = False
    #: On a standalone cluster of two executors; with speculation slow tasks are run twice there.
    cluster: bool = False
    speculation: bool = False
    #: So many segments expire that their names leave the state.
    pending_lists: bool = False
    #: Ten times the rows for a third of the micro-batches, and at each start another
    #: `max_live_ids`, or none.
    spike: bool = False
    #: Duplicates go to a side output.
    side: bool = False
    #: Spark reads and writes the files, instead of the tasks.
    by_spark: bool = False
    #: The sink of numbered records, which `dedup_by_sequence` judges.
    numbered: str = ""
    #: How many micro-batches of those come only once the query rests and has replayed the last one.
    portions: int = 6
    #: Whether a copy of that query continues beside it, from its first rest.
    clone: bool = True
    #: The local cache is lost before every other start.
    cold: bool = False
    kinds: tuple[str, ...] = ("kill",)
    points: tuple[str, ...] = ()
    per_point: int = 3
    #: At most so many visits go by before each fault.
    visits_between: int = 8
    #: A frozen process continues once its query was killed, started again and is well under way.
    zombies: bool = False
    #: Mean time between kills at random times, once a start has published a micro-batch; 0: none.
    random_kill_s: float = 40.0

    @property
    def mode(self) -> str:
        """Where it runs, in words."""
        where = [self.store, "s3" if self.s3 else "local", *["cluster"] * self.cluster]
        return " ".join([*where, self.numbered]).rstrip()

    @property
    def options(self) -> dict[str, Any]:
        """What the operator is given."""
        if self.numbered:
            rng = Random(self.seed)
            return {
                "gaps": rng.choice(("emit", "emit", "emit", "drop")),
                "unknown": rng.choice(("emit", "emit", "drop")),
                "ranges": rng.choice((64, 5)),
            }
        return OPTIONS | (MANY_EXPIRED if self.pending_lists else {})

    def settings(self, cluster_url: str | None) -> dict[str, str]:
        """What Spark is given."""
        made = {"spark.sql.streaming.minBatchesToRetain": "2", **STORES[self.store]}
        if self.cluster:
            assert cluster_url is not None
            made |= {"spark.master": cluster_url, **_CLUSTER}
        return made | (SPECULATION if self.speculation else {})

    @property
    def frozen_s(self) -> float:
        """How long a process stands still: long enough for its successor to overtake it."""
        return _ZOMBIE_S if self.zombies or self.speculation else _FROZEN_S

    def where(self) -> tuple[str, ...]:
        """The points that faults are armed at."""
        if self.numbered:
            return self.points or NUMBERED_INTO[self.numbered]
        left_out: tuple[str, ...] = _FETCHES_ONLY + BIRTH[1:]
        left_out += _LOCAL_ONLY if self.s3 else _S3_ONLY
        left_out += () if self.side else _SIDE_ONLY
        left_out += _FILES_ONLY if self.by_spark else ()
        left_out += () if self.pending_lists else _PENDING_LISTS_ONLY
        return self.points or tuple(name for name in faults.POINTS if name not in left_out)

    def kinds_at(self, name: str) -> tuple[str, ...]:
        """What armed faults at a point may do."""
        return ("kill",) if name.startswith(_DRIVER) else self.kinds

    def faults_at(self, name: str) -> int:
        """How many are armed there."""
        return self.per_point * (1 + (name in _SELDOM))

    def visits_at(self, name: str) -> int:
        """At most so many visits go by before each."""
        if name in _ONCE:
            return 0
        return min(self.visits_between, 1) if name in _SELDOM else self.visits_between


MIXED = ("kill", "raise", "enospc", "eacces", "freeze", "slow")
MANY_PENDING_LISTS = Campaign(
    0, batches=32, pending_lists=True, points=_PENDING_LISTS_ONLY, per_point=3, visits_between=0,
    random_kill_s=0,
)  # fmt: skip
#: So many IDs that their filters leave the state; the lost cache makes it fetch them.
FETCHES = Campaign(
    0, batches=12, rows=8000, s3=True, cold=True, per_point=10, visits_between=1, random_kill_s=0,
    points=("sink.published", *_FETCHES_ONLY),
)  # fmt: skip
SPIKE = Campaign(
    0, batches=36, rows=60, spike=True, per_point=6, visits_between=4, random_kill_s=8.0,
    points=("segment.put.after", "group.update.after", "sink.published"),
)  # fmt: skip
BIRTHS = Campaign(0, batches=2, points=BIRTH, visits_between=0, random_kill_s=0)
ON_CLUSTER = Campaign(0, cluster=True, per_point=2, random_kill_s=25)
ZOMBIES = Campaign(0, kinds=MIXED, zombies=True)
#: Of two attempts at a task, the one that stands still loses, and continues when the other has won.
TWICE = Campaign(
    0, batches=12, cluster=True, speculation=True, kinds=("freeze",), per_point=1, random_kill_s=0,
    points=(
        "group.begin", "group.read", "merge.read.after", "segment.chunk", "segment.write.after",
        "sidecar.put.after", "segment.put.after", "group.judged", "group.update.before",
    ),
)  # fmt: skip


def campaigns(seed: int) -> Iterator[Campaign]:
    """Endlessly many: all state stores, both kinds of catalog, births, zombies, a cluster.

    The next seed begins half a round further on.
    """
    numbers = count(seed * 10_000)
    places = list(product(STORES, (False, True)))
    half = len(places) // 2
    for turn, (store, s3) in enumerate(islice(cycle(places), seed % 2 * half, None), start=1):
        usual = Campaign(0, store=store, s3=s3, side=True, cold=s3)
        of_a_kind = [BIRTHS, BIRTHS, BIRTHS, MANY_PENDING_LISTS] + [FETCHES] * s3
        if turn % 2 == 0:
            of_a_kind.append(replace(usual, by_spark=True))
        if turn % half == 0:
            of_a_kind += [ON_CLUSTER, TWICE, ZOMBIES, SPIKE]
        for campaign in (usual, *of_a_kind):
            yield replace(campaign, seed=next(numbers), store=store, s3=s3)


def numbered_campaigns(seed: int) -> Iterator[Campaign]:
    """Endlessly many of `dedup_by_sequence`: all state stores, both sinks.

    A round has ten kills at each point on each state store.
    """
    usual = Campaign(0, batches=24, rows=150, per_point=10, visits_between=1)
    places = cycle(product(STORES, NUMBERED_INTO))
    for number, (store, sink) in enumerate(places, start=seed * 10_000):
        yield replace(usual, seed=number, store=store, numbered=sink)
