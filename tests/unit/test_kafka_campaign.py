"""What a campaign against the sink arms, and how it judges, without a broker."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from dedup.testing import faults
from tests.kafka import campaign_plan, campaign_results
from tests.kafka.campaign_plan import BESIDES, POINTS, rounds
from tests.kafka.campaign_results import Result


def test_every_point_is_armed_and_the_campaign_knows_all_of_them() -> None:
    assert set(POINTS) == {name for name in faults.POINTS if name.startswith("kafka.")}
    armed: Counter[str] = Counter()
    besides: Counter[str] = Counter()
    for planned in islice(rounds(5), 45):
        for start in planned.starts:
            armed.update(kill.point for kill in start.kills if kill.kind == "kill")
            besides[start.besides] += 1
            assert {kill.kind for kill in start.kills} <= set(faults.KINDS)
    assert set(armed) == set(POINTS)
    assert min(armed.values()) >= 30
    assert set(besides) == set(BESIDES)
    assert {start.tasks for one in islice(rounds(5), 9) for start in one.starts} == {1, 2, 3, 4}


def test_a_seed_gives_the_same_faults() -> None:
    assert list(islice(rounds(7), 4)) == list(islice(rounds(7), 4))
    assert list(islice(rounds(7), 4)) != list(islice(rounds(8), 4))


def test_points_of_atomic_are_armed_in_that_mode_alone() -> None:
    for planned in islice(rounds(1), 6):
        points = {kill.point for start in planned.starts for kill in start.kills}
        manifest = not points.isdisjoint(campaign_plan.MANIFEST)
        assert manifest == (planned.mode == "atomic")


@pytest.mark.parametrize(
    ("harm", "fine"),
    [({}, True), ({"lost": 1}, False), ({"duplicated": 1}, False), ({"seen_twice": 1}, False)],
)
def test_what_is_lost_repeated_or_seen_twice_is_told(harm: dict[str, int], fine: bool) -> None:
    place = ("kafka.rows.first", "kill")
    result = Result(1, 0, "atomic", armed=Counter([place]), fired=Counter([place]), **harm)  # type: ignore[arg-type]
    assert result.fine == fine
    result.fired.clear()
    assert not result.fine, "what did not fire has shown nothing"
    assert "not fired" in result.line


def test_rounds_are_kept_and_summed(tmp_path: Path) -> None:
    path = tmp_path / "results" / "kills.json"
    for number in range(2):
        place = ("kafka.rows.first", "kill")
        result = Result(1, number, "atomic", armed=Counter([place] * 3), records=1_000)
        result.fired[place] = 2 + number
        result.random["worker"] = 4
        result.random["broker"] = 1
        assert result.kills == 6 + number
        campaign_results.add(result, path)
    told = campaign_results.table(campaign_results.load(path))
    assert "| `kafka.rows.first` | kill | 6 | 5 | 0 | 0 |" in told
    assert "| worker, at random times | kill | 8 | 8 | 0 | 0 |" in told
    assert "2,000 records in 2 rounds, 13 kills, 15 faults in all" in told
