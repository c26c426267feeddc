"""The protocol of sinks in every interleaving of a small world, and what it catches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.sink_explorer import explore
from tests.model.sink_mistakes import MISTAKES, Mistake
from tests.model.sink_spark import Model
from tests.model.sink_world import MOVED, ONE, THREE, TWO, Scope, Start

WHOLE, WHOLE_OTHERWISE = Start(whole=True), Start(whole=True, variant=1)
MODES = (Start(), WHOLE, WHOLE_OTHERWISE, Start(ONE, whole=True), Start(MOVED), Start(variant=1))

#: For each scope at least so many states, so that an exploration cannot fall asleep unnoticed.
QUICK = {
    "three micro-batches": (Scope(), 34_000),
    "an ambiguous commit": (
        Scope(batches=2, ambiguous=1, retries=0, later=(Start(), Start(ONE))),
        47_000,
    ),
    "a transaction that times out": (Scope(batches=2, timeouts=1, retries=0), 39_000),
    "slots owned in any order": (Scope(batches=2, any_order=True), 14_500),
    "another division in each micro-batch": (Scope(batches=2, divisions=(TWO, ONE, MOVED)), 22_000),
    "modes": (Scope(batches=2, first=(Start(), WHOLE), later=MODES), 25_000),
    "two crashes": (Scope(batches=2, crashes=2, retries=0, later=(Start(ONE),)), 43_000),
}

TWO_CRASHES = Scope(batches=2, crashes=2, retries=0, later=(Start(), Start(ONE)))
FULL = {
    "three micro-batches and two crashes": (replace(TWO_CRASHES, batches=3), 1_767_000),
    "two crashes and an ambiguous commit": (replace(TWO_CRASHES, ambiguous=1), 6_200_000),
    "three micro-batches, an ambiguous commit and a timeout": (
        Scope(ambiguous=1, timeouts=1, retries=0, later=(Start(), Start(ONE))),
        810_000,
    ),
    "three slots": (replace(TWO_CRASHES, batches=1, later=(Start(ONE), Start(THREE))), 430_000),
    "from one slot to two": (replace(TWO_CRASHES, first=(Start(ONE),)), 199_000),
    "modes, two crashes": (
        replace(TWO_CRASHES, batches=1, first=(Start(), WHOLE), later=MODES),
        1_320_000,
    ),
    "atomic, two crashes": (
        replace(
            TWO_CRASHES, first=(WHOLE,), later=(WHOLE, WHOLE_OTHERWISE, Start(ONE, whole=True))
        ),
        155_000,
    ),
}
#: Too large to be walked through whole: as far as so many states, the nearest ones first.
IN_PART = {
    "three micro-batches, two crashes, rows that move": Scope(crashes=2, retries=0),
    "two crashes and a timeout": replace(TWO_CRASHES, timeouts=1),
    "two crashes, and an attempt that fails and is repeated": replace(TWO_CRASHES, retries=1),
}
PART = 200_000


def check(scope: Scope, at_least: int) -> None:
    model = Model(scope)
    found = explore(model)
    print(
        f"{found.states:,} states, {found.steps:,} steps; {found.finished:,} times finished, "
        f"{found.refusals:,} times refused"
    )
    assert found.violation is None, "\n" + found.violation
    assert found.states >= at_least
    assert found.finished > 100


@pytest.mark.parametrize("name", QUICK)
def test_every_row_is_visible_once_in_every_interleaving(name: str) -> None:
    check(*QUICK[name])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FULL)
def test_every_row_is_visible_once_in_every_interleaving_of_the_whole_scope(name: str) -> None:
    check(*FULL[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_PART)
def test_nothing_goes_wrong_in_the_nearest_states_of_a_larger_scope(name: str) -> None:
    found = explore(Model(IN_PART[name]), PART)
    assert found.violation is None, "\n" + found.violation
    assert found.states >= PART
    assert found.finished > 100


def test_the_model_meets_what_it_is_there_for() -> None:
    """Each answer that a sink may give, each end of a process, a worker that is warm in vain."""
    broker = Model(Scope(batches=2, crashes=0, ambiguous=1, timeouts=1))
    tasks = Model(Scope(later=(Start(ONE),)))
    for model in (broker, tasks):
        found = explore(model)
        assert found.violation is None, found.violation
    answers = {"ok", "Indefinite", "Fenced", "Aborted"}
    assert broker.answers() == {f"commit: {answer}" for answer in answers}
    assert tasks.answers() >= {"send: ok", "send: Fenced"}
    assert tasks.refusals
    assert broker.ends() | tasks.ends() == {"", "SinkError", "Fenced", "Aborted"}


def test_the_scopes_of_seeded_mistakes_show_none_of_their_own() -> None:
    for scope in {each.scope for each in MISTAKES} - {scope for scope, _ in QUICK.values()}:
        found = explore(Model(scope))
        assert found.violation is None, found.violation


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_seeded_mistake_is_caught(mistake: Mistake) -> None:
    found = explore(Model(mistake.scope, mistake.variant()))
    print(found.violation)
    assert found.violation is not None
    assert "visible twice" in found.violation or "are lost" in found.violation


def test_what_goes_wrong_is_told_step_by_step() -> None:
    (mistake,) = (each for each in MISTAKES if each.name == "markers are not revoked")
    story = explore(Model(mistake.scope, mistake.variant())).violation
    assert story is not None
    lines = story.splitlines()
    assert lines[0].startswith("  1  task 0 of run 1, micro-batch 0: initialises slot 0")
    woken = next(n for n, line in enumerate(lines) if "run 1, micro-batch 1: init" in line)
    assert any("driver of run 2, micro-batch 1: initialises" in line for line in lines[:woken])
    assert any("task 1 of run 1, micro-batch 1: commits slot 1" in line for line in lines[woken:])
    assert lines[-1] == "then: rows 1.1, 1.2 are visible twice"
