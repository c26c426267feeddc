"""Kills and restarts a real query again and again, and compares what came out with the truth.

    python -m tests.faults.harness --kills 1000 --seed 1

A campaign is one query over seeded input, with its own state store and catalog: faults are
armed at named points, and processes are killed at random times besides. It ends
when all input is done; then every record is compared. A seed gives the same faults again.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dedup import BatchMetrics
from dedup.sinks.batch_folders import published_batches
from dedup.testing import faults
from dedup.tools.watch.query_log import read_logs
from tests.faults.campaigns import NUMBERED_INTO, Campaign, campaigns, numbered_campaigns
from tests.faults.fleet import CASES, EXPIRE_S, fleet, judge_numbered
from tests.faults.query import CLONE, FILES_PER_BATCH, LATER, METRICS, REPLAYED, SIDE, SPECULATED
from tests.faults.subject import Subject
from tests.faults.truth import Outcome, judge, judge_spike
from tests.support.object_store import BUCKET, ObjectStore, running_store
from tests.support.oracle import Oracle
from tests.support.processes import stands_still
from tests.support.sequence_model import SequenceModel
from tests.support.sink_campaign import Round, arm_next, run_campaign
from tests.support.small_state import HORIZON_S, LATENESS_S
from tests.support.spark_cluster import Cluster, running_cluster
from tests.support.spark_query import seeded

_POLL_S = 0.05
_CAMPAIGN_TIMEOUT_S = 1800.0


class UnexpectedStop(AssertionError):
    """The query ended with an error that no fault accounts for."""


def run(
    campaign: Campaign,
    folder: Path,
    store: ObjectStore | None = None,
    cluster: Cluster | None = None,
) -> Round:
    """Run one campaign to its end and judge it."""
    rng = random.Random(campaign.seed)
    given = write_input(campaign, folder)
    config: dict[str, Any] = {
        "options": campaign.options,
        "settings": campaign.settings(cluster.url if cluster else None),
        "side": campaign.side,
        "spike": campaign.spike,
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
    result = Round(campaign.seed, campaign.mode, armed=arm(campaign, rng, subject.faults))
    try:
        _drive(campaign, subject, rng, result.besides)
    finally:
        if subject.process is not None:
            subject.kill_all()
        for _, _, pid in faults.fired(subject.faults):
            if stands_still(pid):
                subject.go_on(pid)
    result.starts = subject.starts
    result.fired.update(f"{point} {kind}" for point, kind, _ in faults.fired(subject.faults))
    if twice := int((folder / SPECULATED).read_text()):
        result.besides["task run twice"] = twice
    if (folder / REPLAYED).exists():
        result.besides["replay"] = len((folder / REPLAYED).read_text().splitlines())
    outcomes = [judged_by(campaign, folder, given)]
    if (folder / CLONE).exists():
        _run_clone(folder / CLONE, config)
        outcomes.append(judged_by(campaign, folder / CLONE, given))
        result.besides["copy of the query"] += 1
    record(campaign, result, outcomes)
    return result


def record(campaign: Campaign, result: Round, outcomes: list[Outcome]) -> None:
    """Note what became of the records of a query, and of its copy if there is one.

    A campaign of numbered records must meet each fault and each case, another one some faults.
    """
    found = outcomes[0]
    result.rows, result.lost, result.duplicated = found.records, found.lost, found.duplicated
    result.besides.update({f"verdict {case}": n for case, n in found.cases.items()})
    harm = "; ".join(str(each) for each in outcomes if each.harm)
    if campaign.numbered:
        wanted = [*CASES, *["missing", "recovered"] * (campaign.options["gaps"] == "emit")]
        missed = ", ".join(case for case in wanted if not found.cases.get(case))
    else:
        missed = "" if result.fired else "any fault"
        early, unknown = (found.cases.get(case, 0) for case in ("passed early", "not in the log"))
        if campaign.spike and early <= 10 * unknown:
            missed = "enough IDs that were forgotten early, in micro-batches that the log has"
        result.armed = result.fired
    result.seen_wrong = harm or (f"never met: {missed}" if missed else "")


def judged_by(campaign: Campaign, folder: Path, given: list[pa.Table]) -> Outcome:
    """Compare what came out of a campaign with the truth."""
    if campaign.numbered:
        return judge_numbered(folder / "output", given, model_of(campaign))
    side = folder / SIDE if campaign.side else None
    if campaign.spike:
        (log,) = read_logs(folder / METRICS)
        kept_ms = {
            batch.batch_id: batch.horizon_kept_ms
            for _, batch in log.batches
            if isinstance(batch, BatchMetrics)
        }
        return judge_spike(folder / "output", given, Oracle(HORIZON_S, LATENESS_S), kept_ms)
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
            raise UnexpectedStop(f"the copy in {folder} stopped:\n{subject.last_words()}")
    finally:
        subject.kill_all()


def write_input(campaign: Campaign, folder: Path) -> list[pa.Table]:
    """The campaign's files, one per micro-batch; of numbered records, in portions."""
    if campaign.numbered:
        return _write_fleet(campaign, folder)
    ids = campaign.rows * campaign.batches // 2
    given = seeded(
        batches=campaign.batches, rows=(10 if campaign.spike else 1) * campaign.rows, ids=ids,
        step_s=60, spread_s=150, seed=campaign.seed,
    )  # fmt: skip
    if campaign.spike:
        third = len(given) // 3
        calm = (*range(third), *range(2 * third, len(given)))
        given = [t.slice(0, campaign.rows) if n in calm else t for n, t in enumerate(given)]
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


def arm(campaign: Campaign, rng: random.Random, folder: Path) -> Counter[str]:
    """Arm every fault of the campaign, with visits between them that go by; return how many."""
    armed: Counter[str] = Counter()
    for name in campaign.where():
        for _ in range(campaign.faults_at(name)):
            visits = rng.randint(0, campaign.visits_at(name))
            kind = rng.choice(campaign.kinds_at(name))
            arm_next(folder, name, kind, visits)
            armed[f"{name} {kind}"] += 1
    return armed


def _drive(campaign: Campaign, subject: Subject, rng: random.Random, killed: Counter[str]) -> None:
    subject.start()
    deadline_s = time.monotonic() + _CAMPAIGN_TIMEOUT_S
    published = 0
    next_kill_s = float("inf")
    frozen: dict[int, float] = {}
    accounted = _deadly(subject)
    is_accounted_for = False
    while True:
        code = subject.ended()
        if code == 0:
            break
        if code is not None:
            if _deadly(subject) == accounted and not is_accounted_for:
                raise UnexpectedStop(f"exit {code} in {subject.folder}:\n{subject.last_words()}")
            accounted, is_accounted_for = _deadly(subject), False
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
                killed["all but a frozen worker killed"] += 1
                is_accounted_for = True
            elif now_s > since_s + campaign.frozen_s:
                subject.go_on(pid)
        # Else a slow machine would never come to its first micro-batch.
        if next_kill_s == float("inf") and _published(subject) > published:
            next_kill_s = _next_kill(campaign, rng)
        if now_s > next_kill_s:
            is_accounted_for |= _kill(campaign, subject, rng, killed)
            next_kill_s = _next_kill(campaign, rng)
        time.sleep(_POLL_S)


def _published(subject: Subject) -> int:
    return len(published_batches(subject.folder / "output"))


def _next_kill(campaign: Campaign, rng: random.Random) -> float:
    if not campaign.random_kill_s:
        return float("inf")
    return time.monotonic() + rng.expovariate(1 / campaign.random_kill_s)


def _kill(campaign: Campaign, subject: Subject, rng: random.Random, killed: Counter[str]) -> bool:
    """Kill something; return whether the query may end with it."""
    kinds = ["worker", "worker", "daemon", "jvm", "all"]
    if campaign.cluster:
        kinds += ["executor"] * 3
    kind = rng.choice(kinds)
    done = subject.kill_all() if kind == "all" else subject.kill_one(kind, rng.randrange(100))
    if not done:
        return False
    killed[f"{kind} killed"] += 1
    # A sink's part of the driver runs in a worker, of which there is one attempt.
    return kind in ("jvm", "all") or campaign.numbered == "files"


def _deadly(subject: Subject) -> int:
    """How many faults have struck a driver so far."""
    return sum(pid in subject.drivers for *_, pid in faults.fired(subject.faults))


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--numbered", action="store_true", help="dedup_by_sequence")
    numbered = options.parse_known_args()[0].numbered
    work = Path(tempfile.mkdtemp(prefix="dedup-kills-"))
    (work / "cluster").mkdir()
    with ExitStack() as stack:
        # So that what was started goes with this process.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        store = stack.enter_context(running_store(work / "store.log"))
        made: Iterator[Campaign] = iter(())

        def next_round(seed: int, _: Counter[str]) -> Round:
            nonlocal made
            campaign = next(made, None)
            if campaign is None:
                made = numbered_campaigns(seed) if numbered else campaigns(seed)
                campaign = next(made)
            folder = work / f"seed-{campaign.seed}"
            # A new cluster: workers of the last cluster may be frozen or lost.
            with ExitStack() as own:
                cluster = None
                if campaign.cluster:
                    place = work / "cluster" / str(campaign.seed)
                    place.mkdir()
                    cluster = own.enter_context(running_cluster(place))
                result = run(campaign, folder, store, cluster)
            if result.fine:  # the folder of one that fails stays
                shutil.rmtree(folder, ignore_errors=True)
            return result

        of_numbered = tuple(dict.fromkeys(p for points in NUMBERED_INTO.values() for p in points))
        points = of_numbered if numbered else tuple(faults.POINTS)
        return run_campaign(__doc__, points, next_round, options)


if __name__ == "__main__":
    raise SystemExit(main())
