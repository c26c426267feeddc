"""Kills and restarts a real query again and again, and compares what came out with the truth.

    python -m tests.faults.harness --kills 1000 --seed 1

A campaign is one query over seeded input, with its own state store and catalog: faults are
armed at named points, and processes are killed at random times besides. It ends
when all input is done; then every record is compared. A seed gives the same faults again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dedup.sinks.batch_folders import published_batches
from dedup.testing import faults
from tests.faults.campaigns import Campaign, campaigns, numbered_campaigns
from tests.faults.fleet import CASES, EXPIRE_S, fleet, judge_numbered
from tests.faults.numbered_query import CLONE, FILES_PER_BATCH, LATER, REPLAYED
from tests.faults.query import SIDE, SPECULATED
from tests.faults.subject import Subject
from tests.faults.truth import Outcome, judge
from tests.support.object_store import BUCKET, ObjectStore, running_store
from tests.support.oracle import Oracle
from tests.support.processes import stands_still
from tests.support.sequence_model import SequenceModel
from tests.support.small_state import HORIZON_S, LATENESS_S
from tests.support.spark_cluster import Cluster, running_cluster
from tests.support.spark_query import seeded

RESULTS = Path(__file__).resolve().with_name("results")

_POLL_S = 0.05
_CAMPAIGN_TIMEOUT_S = 1800.0


@dataclass
class Result:
    """What a campaign did."""

    campaign: Campaign
    outcome: Outcome
    fired: Counter[tuple[str, str]] = field(default_factory=Counter)
    killed: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    speculated: int = 0
    seconds: float = 0.0
    armed: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Micro-batches that were run again after their commit had been forgotten.
    replayed: int = 0
    #: What became of a copy of all that the query has on disk.
    clone: Outcome | None = None

    @property
    def wrong(self) -> str:
        """What is wrong; of numbered records also a fault, or a case, that has not been met."""
        harm = [str(found) for found in (self.outcome, self.clone) if found and found.harm]
        if harm or not self.campaign.numbered:
            return "; ".join(harm)
        missed = [" ".join(fault) for fault in self.armed - self.fired]
        wanted = [*CASES, *["missing", "recovered"] * (self.campaign.options["gaps"] == "emit")]
        missed += [case for case in wanted if not self.outcome.cases.get(case)]
        return f"never met: {', '.join(missed)}" if missed else ""

    @property
    def kills(self) -> int:
        """Processes that were killed, at points and at random."""
        return sum(n for (_, kind), n in self.fired.items() if kind == "kill") + self.killed.total()


class UnexpectedStop(AssertionError):
    """The query ended with an error that no fault accounts for."""


def run(
    campaign: Campaign,
    folder: Path,
    store: ObjectStore | None = None,
    cluster: Cluster | None = None,
) -> Result:
    """Run one campaign to its end and judge it."""
    begun_s = time.monotonic()
    rng = random.Random(campaign.seed)
    given = write_input(campaign, folder)
    config: dict[str, Any] = {
        "options": campaign.options,
        "settings": campaign.settings(cluster.url if cluster else None),
        "side": campaign.side,
        "by_spark": campaign.by_spark,
        "numbered": campaign.numbered,
        "clone": campaign.clone,
        "input": str(folder / "input"),
    }
    if campaign.s3:
        assert store is not None
        config["s3"] = {"endpoint": store.endpoint, "folder": f"{BUCKET}/{folder.name}"}
    subject = Subject(folder, config, cluster)
    subject.faults.mkdir(parents=True)
    armed = arm(campaign, rng, subject.faults)
    killed: Counter[str] = Counter()
    try:
        _drive(campaign, subject, rng, killed)
    finally:
        if subject.process is not None:
            subject.kill_all()
        for _, _, pid in faults.fired(subject.faults):
            if stands_still(pid):
                subject.go_on(pid)
    clone = None
    if (folder / CLONE).exists():
        _run_clone(folder / CLONE, config)
        clone = judged_by(campaign, folder / CLONE, given)
    replayed = folder / REPLAYED
    return Result(
        campaign,
        judged_by(campaign, folder, given),
        Counter((point, kind) for point, kind, _ in faults.fired(subject.faults)),
        killed,
        subject.starts,
        int((folder / SPECULATED).read_text()),
        time.monotonic() - begun_s,
        armed,
        len(replayed.read_text().splitlines()) if replayed.exists() else 0,
        clone,
    )


def judged_by(campaign: Campaign, folder: Path, given: list[pa.Table]) -> Outcome:
    """Compare what came out of a campaign with the truth."""
    if campaign.numbered:
        return judge_numbered(folder / "output", given, model_of(campaign))
    side = folder / SIDE if campaign.side else None
    return judge(folder / "output", given, Oracle(HORIZON_S, LATENESS_S), side)


def model_of(campaign: Campaign) -> SequenceModel:
    """Return the rule of a campaign of numbered records, before the first of them."""
    options = campaign.options
    return SequenceModel(
        options["gaps"], options["unknown"], options["ranges"], expire_ms=1000 * EXPIRE_S
    )


def _run_clone(folder: Path, config: dict[str, Any]) -> None:
    """Run a copy of the query, which no one disturbs, into the copy of its output."""
    subject = Subject(folder, config | {"numbered": "staged", "clone": False})
    subject.start()
    assert subject.process is not None
    try:
        if subject.process.wait(_CAMPAIGN_TIMEOUT_S):
            tail = subject.log(0).read_text(errors="replace")[-3000:]
            raise UnexpectedStop(f"the copy in {folder} stopped:\n{tail}")
    finally:
        subject.kill_all()


def write_input(campaign: Campaign, folder: Path) -> list[pa.Table]:
    """The campaign's files, one per micro-batch; of numbered records, see `numbered_query`."""
    if campaign.numbered:
        return _write_fleet(campaign, folder)
    ids = campaign.rows * campaign.batches // 2
    given = seeded(
        batches=campaign.batches, rows=campaign.rows, ids=ids, step_s=60, spread_s=150,
        seed=campaign.seed,
    )  # fmt: skip
    source = folder / "input"
    source.mkdir(parents=True)
    for number, table in enumerate(given):
        pq.write_table(table, source / f"{number:05d}.parquet")
    return given


def _write_fleet(campaign: Campaign, folder: Path) -> list[pa.Table]:
    given = fleet(campaign.batches, campaign.rows, campaign.seed)
    now = campaign.batches - campaign.portions
    for number, table in enumerate(given):
        into = folder / ("input" if number < now else LATER)
        into.mkdir(parents=True, exist_ok=True)
        for part in range(FILES_PER_BATCH):
            rows = table.take(pa.array(range(part, len(table), FILES_PER_BATCH)))
            path = into / f"{number:05d}-{part}.parquet"
            pq.write_table(rows, path)
            # Spark reads the oldest first.
            at_s = 1_700_000_000 + FILES_PER_BATCH * number + part
            os.utime(path, (at_s, at_s))
    return given


def arm(campaign: Campaign, rng: random.Random, folder: Path) -> Counter[tuple[str, str]]:
    """Arm every fault of the campaign, with visits between them that go by; return how many."""
    armed: Counter[tuple[str, str]] = Counter()
    for name in campaign.where():
        number = 0
        for _ in range(campaign.faults_at(name)):
            for _ in range(rng.randint(0, campaign.visits_at(name))):
                faults.arm(folder, name, "skip", number)
                number += 1
            kind = rng.choice(campaign.kinds_at(name))
            faults.arm(folder, name, kind, number)
            armed[name, kind] += 1
            number += 1
    return armed


def _drive(campaign: Campaign, subject: Subject, rng: random.Random, killed: Counter[str]) -> None:
    subject.start()
    deadline_s = time.monotonic() + _CAMPAIGN_TIMEOUT_S
    published = 0
    next_kill_s = float("inf")
    frozen: dict[int, float] = {}
    accounted = _deadly(subject)
    while True:
        code = subject.ended()
        if code == 0:
            break
        if code is not None:
            if _deadly(subject) == accounted and not killed["since start"]:
                tail = subject.log(subject.starts - 1).read_text(errors="replace")[-3000:]
                raise UnexpectedStop(f"exit {code} in {subject.folder}:\n{tail}")
            accounted = _deadly(subject)
            killed["since start"] = 0
            if campaign.cold and subject.starts % 2:
                shutil.rmtree(subject.folder / "cache", ignore_errors=True)
            subject.start()
            published = _published(subject)
            next_kill_s = float("inf")
        now_s = time.monotonic()
        if now_s > deadline_s:
            raise UnexpectedStop(f"{subject.folder} does not end")
        for _, kind, pid in faults.fired(subject.faults):
            if kind != "freeze" or not stands_still(pid):
                continue
            since_s = frozen.setdefault(pid, now_s)
            if campaign.zombies and since_s == now_s and pid not in subject.drivers:
                subject.kill_all(but=pid)
                killed["all but a frozen worker"] += 1
                killed["since start"] += 1
            elif now_s > since_s + campaign.frozen_s:
                subject.go_on(pid)
        # Else a slow machine would never come to its first micro-batch.
        if next_kill_s == float("inf") and _published(subject) > published:
            next_kill_s = _next_kill(campaign, rng)
        if now_s > next_kill_s:
            _kill(campaign, subject, rng, killed)
            next_kill_s = _next_kill(campaign, rng)
        time.sleep(_POLL_S)
    del killed["since start"]


def _published(subject: Subject) -> int:
    return len(published_batches(subject.folder / "output"))


def _next_kill(campaign: Campaign, rng: random.Random) -> float:
    if not campaign.random_kill_s:
        return float("inf")
    return time.monotonic() + rng.expovariate(1 / campaign.random_kill_s)


def _kill(campaign: Campaign, subject: Subject, rng: random.Random, killed: Counter[str]) -> None:
    kinds = ["worker", "worker", "daemon", "jvm", "all"]
    if campaign.cluster:
        kinds += ["executor"] * 3
    kind = rng.choice(kinds)
    if kind == "all":
        done = subject.kill_all() > 0
    else:
        done = subject.kill_one(kind, rng.randrange(100)) is not None
    if done:
        killed[kind] += 1
        # A sink's part of the driver runs in a worker, of which there is one attempt.
        if kind in ("jvm", "all") or campaign.numbered == "files":
            killed["since start"] += 1


def _deadly(subject: Subject) -> int:
    """How many faults have struck a driver so far."""
    return sum(pid in subject.drivers for *_, pid in faults.fired(subject.faults))


# --- many campaigns


def table(results: list[Result]) -> str:
    """Faults fired by point and kind, those at random times, and the sums."""
    fired: Counter[tuple[str, str]] = sum((r.fired for r in results), Counter())
    killed: Counter[str] = sum((r.killed for r in results), Counter())
    kinds = [kind for kind in faults.KINDS if any(kind == k for _, k in fired)]
    lines = [f"| where | {' | '.join(kinds)} |", f"|---{'|---:' * len(kinds)}|"]
    visited = {name for r in results for name in r.campaign.where()}
    for name in filter(visited.__contains__, faults.POINTS):
        counts = (str(fired[name, kind] or "") for kind in kinds)
        lines.append(f"| `{name}` | {' | '.join(counts)} |")
    lines += ["", "At random times: " + ", ".join(f"{n} x {k}" for k, n in sorted(killed.items()))]
    records = sum(r.outcome.records for r in results)
    lost = sum(r.outcome.lost for r in results)
    duplicated = sum(r.outcome.duplicated for r in results)
    total = fired.total() + killed.total()
    lines.append("")
    lines.append(
        f"{records:,} records in {len(results)} campaigns, {total:,} faults fired "
        f"({sum(r.kills for r in results):,} kills, {sum(r.starts for r in results):,} starts, "
        f"{sum(r.speculated for r in results):,} tasks run twice): "
        f"{lost} lost, {duplicated} duplicated."
    )
    if any(r.campaign.numbered for r in results):
        cases: Counter[str] = sum((Counter(r.outcome.cases) for r in results), Counter())
        clones = [r.clone for r in results if r.clone is not None]
        lines += [
            "",
            f"{sum(r.outcome.other for r in results)} other verdicts; "
            f"{sum(r.replayed for r in results)} micro-batches run again after their commit; "
            f"{len(clones)} copies with {sum(c.records for c in clones):,} records, of which "
            f"{sum(c.harm for c in clones)} came out wrong. "
            + ", ".join(f"{n:,} {case}" for case, n in sorted(cases.items())),
        ]
    return "\n".join(lines)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=1000, help="stop after so many")
    options.add_argument("--each", type=int, default=0, help="and so many at each step")
    options.add_argument("--numbered", action="store_true", help="dedup_by_sequence")
    options.add_argument("--minutes", type=float, default=1e9, help="or after so long")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--work", help="folder for the campaigns; those that fail stay")
    options.add_argument("--keep", type=Path)
    arguments = options.parse_args()
    which = numbered_campaigns if arguments.numbered else campaigns
    keep_at = arguments.keep or RESULTS / f"{'sequences' if arguments.numbered else 'kills'}.json"
    work = Path(tempfile.mkdtemp(prefix="dedup-kills-", dir=arguments.work))
    results: list[Result] = []
    end_s = time.monotonic() + 60 * arguments.minutes
    with ExitStack() as stack:
        # So that what was started goes with this process.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        store = stack.enter_context(running_store(work / "store.log"))
        (work / "cluster").mkdir()
        for campaign in which(arguments.seed):
            folder = work / f"seed-{campaign.seed}"
            # A new cluster: workers of the last cluster may be frozen or lost.
            with ExitStack() as own:
                cluster = None
                if campaign.cluster:
                    place = work / "cluster" / str(campaign.seed)
                    place.mkdir()
                    cluster = own.enter_context(running_cluster(place))
                result = run(campaign, folder, store, cluster)
            results.append(result)
            where = [campaign.store, "s3" if campaign.s3 else "local"]
            where += ["cluster"] * campaign.cluster + [campaign.numbered] * bool(campaign.numbered)
            print(
                f"{', '.join(where)}, seed {campaign.seed}: {result.kills} kills, "
                f"{result.fired.total()} at points, {result.starts} starts, "
                f"{result.speculated} run twice, {result.seconds:.0f} s, "
                f"{result.outcome.lost} lost, {result.outcome.duplicated} duplicated",
                result.wrong,
                flush=True,
            )
            if not result.wrong:
                shutil.rmtree(folder, ignore_errors=True)
            keep(results, keep_at)
            enough = sum(r.kills for r in results) >= arguments.kills
            if (enough and _fewest_kills(results) >= arguments.each) or time.monotonic() > end_s:
                break
    print(table(results))
    # A campaign in which no fault fired has shown nothing.
    return int(any(r.wrong or not r.fired for r in results))


def _fewest_kills(results: list[Result]) -> int:
    """At which point the fewest were, of those that campaigns armed: how many."""
    kills: Counter[str] = Counter()
    for result in results:
        kills.update({point: n for (point, kind), n in result.fired.items() if kind == "kill"})
    return min(kills[point] for result in results for point in result.campaign.where())


def keep(results: list[Result], path: Path) -> None:
    """Every campaign with its faults, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = [
        {
            "campaign": asdict(r.campaign),
            "outcome": asdict(r.outcome),
            "fired": {f"{name} {kind}": n for (name, kind), n in sorted(r.fired.items())},
            "killed": dict(r.killed),
            "starts": r.starts,
            "speculated": r.speculated,
            "replayed": r.replayed,
            "clone": r.clone and asdict(r.clone),
            "seconds": round(r.seconds, 1),
        }
        for r in results
    ]
    path.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
