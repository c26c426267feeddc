"""A few seeded kills of a real query; `make faults` does many."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dedup.testing import faults
from tests.faults.campaigns import NUMBERED_INTO, SPIKE, Campaign
from tests.faults.fleet import fleet, key_of, verdicts_of
from tests.faults.harness import arm, judged_by, model_of, record, run, write_input
from tests.faults.query import MAX_LIVE_IDS
from tests.faults.truth import Outcome, judge, judge_spike
from tests.support.oracle import Oracle
from tests.support.sink_campaign import Round
from tests.support.small_state import HORIZON_S, LATENESS_S

_KILLED = (
    "scan.begin", "bodies.write", "pack.end", "segment.chunk", "sidecar.put.after",
    "segment.put.after", "sidecar.read.after", "group.update.before", "group.update.after",
    "group.end", "backup.put.after", "unpack.end", "files.group", "files.written",
    "files.collected", "sink.published",
)  # fmt: skip


def test_kills_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    """Python workers die at fifteen points, the driver at two, everything at random times."""
    campaign = Campaign(
        seed=3, batches=5, rows=800, points=_KILLED, per_point=1, visits_between=1,
        random_kill_s=40.0,
    )  # fmt: skip
    result = run(campaign, tmp_path / "query")
    assert set(result.fired) == {f"{name} kill" for name in _KILLED}
    assert result.starts > 1
    assert result.fine, result.line
    assert result.rows == 4000


@pytest.mark.parametrize(
    "point", ["segment.chunk", pytest.param("group.judged", marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_a_frozen_worker_that_wakes_after_a_restart_does_no_harm(
    tmp_path: Path, point: str
) -> None:
    campaign = Campaign(
        seed=4, batches=6, store="rocksdb", points=(point,), per_point=1,
        visits_between=2, kinds=("freeze",), zombies=True, random_kill_s=0,
    )  # fmt: skip
    result = run(campaign, tmp_path / "query")
    assert set(result.fired) == {f"{point} freeze"}
    assert result.besides["all but a frozen worker killed"] == 1
    assert result.fine, result.line
    assert result.rows == 2400


@pytest.mark.parametrize(
    ("sink", "points"),
    [
        ("staged", ("group.update.after", "unpack.end", "sink.published")),
        pytest.param("files", NUMBERED_INTO["files"], marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_numbered_records_are_judged_by_the_rule_despite_kills(
    tmp_path: Path, sink: str, points: tuple[str, ...]
) -> None:
    """Workers and driver die, and Spark replays the last micro-batch of the first portion."""
    campaign = Campaign(
        seed=7, batches=3, rows=150, numbered=sink, points=points, per_point=1, visits_between=1,
        portions=1, clone=False, random_kill_s=0,
    )  # fmt: skip
    result = run(campaign, tmp_path / "query")
    assert set(result.fired) == {f"{name} kill" for name in points}
    assert (result.starts > 1) == (sink == "staged")
    assert result.besides["replay"] == 1
    # So short a campaign does not meet each case.
    assert not result.wrong or result.wrong.startswith("never met")


@pytest.mark.slow
def test_a_spike_shortens_the_horizon_and_loses_nothing_despite_kills(tmp_path: Path) -> None:
    """At each start `max_live_ids` is another number, or none."""
    result = run(replace(SPIKE, seed=5), tmp_path / "query")
    assert result.fine, result.line
    assert result.starts > len(MAX_LIVE_IDS)
    assert result.besides["verdict passed early"] > 10


# --- the harness itself can tell


@pytest.fixture
def done(tmp_path: Path) -> tuple[Path, list[pa.Table]]:
    """What a right query would have published, made by the oracle."""
    given = write_input(Campaign(seed=1, batches=3, rows=200), tmp_path)
    oracle = Oracle(HORIZON_S, LATENESS_S)
    for number, table in enumerate(given):
        clamp = {at: oracle.clamped(at) for at in table["at"].to_pylist()}
        right = oracle.verdicts(table)
        told = []
        for name, at in zip(table["id"].to_pylist(), table["at"].to_pylist(), strict=True):
            goes_on = right[name, clamp[at], True] > 0
            right[name, clamp[at], goes_on] -= 1
            told.append("unique" if goes_on else "duplicate")
        folder = tmp_path / "output" / f"batch={number}"
        folder.mkdir(parents=True)
        pq.write_table(table.append_column("verdict", pa.array(told)), folder / "part.parquet")
    return tmp_path / "output", given


def judged(output: Path, given: list[pa.Table]) -> Outcome:
    return judge(output, given, Oracle(HORIZON_S, LATENESS_S))


def overrule(path: Path, was: str, says: str) -> None:
    """Change the first verdict of a kind."""
    table = pq.read_table(path, partitioning=None)
    verdicts = table["verdict"].to_pylist()
    verdicts[verdicts.index(was)] = says
    wrong = table.set_column(table.num_columns - 1, "verdict", pa.array(verdicts))
    pq.write_table(wrong, path)


def test_a_right_output_is_judged_as_right(done: tuple[Path, list[pa.Table]]) -> None:
    assert judged(*done) == Outcome(600, 0, 0)


@pytest.mark.parametrize(
    ("was", "says", "lost", "duplicated"),
    [("unique", "duplicate", 1, 0), ("duplicate", "unique", 0, 1)],
)
def test_one_wrong_verdict_counts_as_lost_or_duplicated(
    done: tuple[Path, list[pa.Table]], was: str, says: str, lost: int, duplicated: int
) -> None:
    output, given = done
    overrule(output / "batch=2" / "part.parquet", was, says)
    assert judged(output, given) == Outcome(600, lost, duplicated)


def test_a_missing_row_and_a_repeated_row_are_counted(done: tuple[Path, list[pa.Table]]) -> None:
    output, given = done
    path = output / "batch=2" / "part.parquet"
    table = pq.read_table(path, partitioning=None)
    pq.write_table(pa.concat_tables([table.slice(0, 50), table.slice(51), table.slice(7, 1)]), path)
    found = judged(output, given)
    assert found.lost >= 1
    assert found.duplicated >= 1


def test_a_copy_within_the_horizon_that_was_reported_counts_as_duplicated(
    done: tuple[Path, list[pa.Table]],
) -> None:
    output, given = done
    overrule(output / "batch=2" / "part.parquet", "duplicate", "unique")

    def judged_with(kept_s: int) -> Outcome:
        kept_ms = dict.fromkeys(range(3), 1000 * kept_s)
        return judge_spike(output, given, Oracle(HORIZON_S, LATENESS_S), kept_ms)

    assert judged_with(HORIZON_S) == Outcome(600, 0, 1)
    assert judged_with(-1) == Outcome(600, 0, 0)
    assert judged_with(-1).cases == {"passed early": 1}
    overrule(output / "batch=0" / "part.parquet", "unique", "duplicate")
    assert judged_with(-1).lost


@pytest.fixture
def numbered(tmp_path: Path) -> tuple[Campaign, Path, list[pa.Table]]:
    """What a right query would have published of numbered records, made by the model."""
    campaign = Campaign(seed=7, batches=5, rows=150, numbered="staged")
    given = fleet(5, 150, seed=7)
    model = model_of(campaign)
    for number, table in enumerate(given):
        folder = tmp_path / "output" / f"batch={number}"
        folder.mkdir(parents=True)
        right = verdicts_of(model, table.to_pylist())
        told = []
        for key in map(key_of, table.to_pylist()):
            verdict = next(v for (whose, v), n in right.items() if whose == key and n)
            right[key, verdict] -= 1
            told.append(verdict)
        pq.write_table(table.append_column("verdict", pa.array(told)), folder / "part.parquet")
    return campaign, tmp_path, given


def test_a_right_output_of_numbered_records_is_judged_as_right(
    numbered: tuple[Campaign, Path, list[pa.Table]],
) -> None:
    campaign, folder, given = numbered
    found = judged_by(campaign, folder, given)
    assert found == Outcome(sum(map(len, given)), 0, 0, 0)

    def wrong(*outcomes: Outcome) -> str:
        result = Round(7, "staged")
        record(campaign, result, [*outcomes])
        return result.wrong

    assert wrong(found) == ""
    assert "lost=1" in wrong(found, Outcome(9, 1, 0))
    found.cases.pop("wrapped")
    assert wrong(found) == "never met: wrapped"


@pytest.mark.parametrize(
    ("was", "says", "lost", "duplicated", "other"),
    [("gap", "duplicate", 1, 0, 0), ("duplicate", "accept", 0, 1, 0), ("accept", "gap", 0, 0, 1),
     ("duplicate", "fenced", 0, 0, 1), ("unnumbered", "fenced", 1, 0, 0)],
)  # fmt: skip
def test_one_wrong_verdict_on_a_numbered_record_is_counted(
    numbered: tuple[Campaign, Path, list[pa.Table]],
    was: str,
    says: str,
    lost: int,
    duplicated: int,
    other: int,
) -> None:
    campaign, folder, given = numbered
    overrule(folder / "output" / "batch=3" / "part.parquet", was, says)
    records = sum(map(len, given))
    assert judged_by(campaign, folder, given) == Outcome(records, lost, duplicated, other)


def test_a_seed_gives_the_same_faults(tmp_path: Path) -> None:
    armed = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        arm(Campaign(seed=9, kinds=("kill", "raise", "freeze")), random.Random(9), folder)
        armed.append(sorted(path.name for path in folder.iterdir()))
    assert armed[0] == armed[1]
    assert {name.split("~")[0] for name in armed[0]} == set(Campaign(seed=9).where())
    assert set(Campaign(seed=9).where()) < set(faults.POINTS)
