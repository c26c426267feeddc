"""Lineage: which runs a state descends from, and whether its history went two ways."""

from __future__ import annotations

import pytest

from dedup.catalog.gc.lineage import MAX_RUNS, Lineage, Run

P, Q, R = Run("p", 0), Run("q", 11), Run("r", 21)
HISTORY = Lineage((P, Q, R))


@pytest.mark.parametrize(
    ("known", "branched"),
    [
        pytest.param([], [], id="nothing known"),
        pytest.param([Run("p", 0, 10), Run("q", 11, 20), Run("r", 21, 99)], [], id="one line"),
        pytest.param([Run("p", 0, 11)], ["p"], id="continued after its successor began"),
        pytest.param([Run("q", 11, 40)], ["q"], id="rolled back, or its checkpoint was copied"),
        pytest.param([Run("x", 21, None)], [], id="began beside us, committed nothing"),
        pytest.param([Run("x", 21, 21)], ["x"], id="began beside us and continued"),
        pytest.param([Run("y", 22, 22)], ["y"], id="continues from one of our states"),
        pytest.param([Run("x", 5, 5), Run("y", 6, 9)], ["x", "y"], id="two"),
    ],
)
def test_branches_of_the_history_are_found(known: list[Run], branched: list[str]) -> None:
    assert [run.run_id for run in HISTORY.branches(known)] == branched


def test_the_current_run_is_not_a_branch_of_itself() -> None:
    assert HISTORY.branches([Run("r", 21, 1000)]) == ()
    assert Lineage((P, Q)).branches([Run("r", 21, 1000)]) == (Run("r", 21, 1000),)


def test_a_full_lineage_forgets_its_oldest_runs_without_taking_them_for_branches() -> None:
    lineage = Lineage(())
    runs = [Run(f"run-{n}", 10 * n, 10 * n + 9) for n in range(MAX_RUNS + 2)]
    for run in runs:
        lineage = lineage.followed_by(Run(run.run_id, run.began_epoch))
    assert len(lineage.runs) == MAX_RUNS
    assert not lineage.holds("run-1")
    assert lineage.holds("run-2")
    assert lineage.branches(runs) == ()
    assert lineage.branches([Run("x", 30, 31)]) == (Run("x", 30, 31),)


@pytest.mark.parametrize(
    ("run_id", "epoch", "found"),
    [
        ("p", 10, None),
        ("p", 11, None),  # an attempt that died, which its successor did over
        ("p", 12, P),
        ("q", 21, None),
        ("q", 40, Q),
        ("r", 10_000, None),
        ("x", 12, None),
    ],
)
def test_a_run_that_works_past_its_successors_start_is_detected(
    run_id: str, epoch: int, found: Run | None
) -> None:
    assert HISTORY.outran(run_id, epoch) == found


def test_a_branch_that_began_before_a_full_lineage_still_counts() -> None:
    runs = tuple(Run(f"run-{n}", 10 * n) for n in range(1, MAX_RUNS + 1))
    lineage = Lineage(runs)
    copy = Run("a copy since long ago", 5, through_epoch=90_000)
    ended = Run("ended before", 0, through_epoch=4)
    assert lineage.branches([*runs, copy, ended]) == (copy,)


def test_a_lineage_contains_a_runs_micro_batches_up_to_its_successor() -> None:
    lineage = Lineage((Run("a", 0), Run("b", 5), Run("c", 9)))
    assert lineage.contains("a", 4)
    assert not lineage.contains("a", 5)
    assert lineage.contains("b", 8)
    assert lineage.contains("c", 99)
    assert not lineage.contains("d", 1)
