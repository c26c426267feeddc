"""The protocol of sinks in every interleaving of a small world, and what it catches."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, replace
from types import ModuleType

import pytest

from dedup.sinks import protocol
from tests.model.sink_model import Model, explore
from tests.model.sink_processes import MOVED, ONE, THREE, TWO, Scope, Start, Variant

# --- mistakes seeded into the protocol, or into a sink's own half of it

_QUICK = Scope(batches=2, later=(Start(ONE),))
_AMBIGUOUS = Scope(batches=2, ambiguous=1, retries=0, later=(Start(ONE),))
_SAME = Scope(batches=1, ambiguous=1, later=(Start(),))
_PORT = Variant()
_ONE = Start(ONE)
_WHOLE = Start(whole=True)
_MODES = Scope(first=(Start(), _WHOLE), later=(Start(), _WHOLE, Start(ONE, whole=True)), batches=1)

_COMMIT = """    slot.pre_commit(batch.marker(number, content, tasks))
    slot.commit()
"""
_ACQUIRED = "[BATCH_SLOT, *sorted(staged)]"
_COMPARE = "    _compare(staged_batch, published, is_atomic=atomic is not None)\n"
_SETTLE = """        if slot.acquire() != marker:
"""


@dataclass(frozen=True)
class Mistake:
    """A mistake, and the least scope that shows it.

    `port` is what the sink's own half does. Each text of `edits` occurs exactly once in the
    protocol, and is replaced by the other one.
    """

    name: str
    scope: Scope = _QUICK
    port: Variant = _PORT
    edits: tuple[tuple[str, str], ...] = ()

    def variant(self) -> Variant:
        """The protocol with the mistake."""
        source = inspect.getsource(protocol)
        for old, new in self.edits:
            if (found := source.count(old)) != 1:
                raise ValueError(f"{self.name}: {old!r} occurs {found} times, not once")
            source = source.replace(old, new)
        module = ModuleType("dedup_sinks_protocol_with_a_mistake")
        # Dataclasses look their module up by its name.
        sys.modules[module.__name__] = module
        exec(compile(source, module.__name__, "exec"), module.__dict__)
        return replace(self.port, protocol=module)


def _edited(name: str, old: str, new: str, scope: Scope = _QUICK) -> Mistake:
    return Mistake(name, scope, edits=((old, new),))


MISTAKES = (
    Mistake("the marker is read before the slot is owned", port=Variant(read_first=True)),
    Mistake("each micro-batch of a run has its own transactional ID", port=Variant(unfenced=True)),
    Mistake("the marker is visible before its transaction", port=Variant(marker_early=True)),
    Mistake("the marker is written after its transaction", port=Variant(marker_late=True)),
    Mistake(
        "a commit without an answer is taken back",
        _AMBIGUOUS,
        Variant(undo=True),
        ((_SETTLE, "        slot.abort()\n" + _SETTLE),),
    ),
    _edited(
        "a task repeats a commit without an answer",
        _SETTLE + "            raise Aborted(str(error)) from None\n",
        "        slot.commit()\n",
        _AMBIGUOUS,
    ),
    _edited(
        "the driver repeats a commit without an answer",
        _COMMIT,
        _COMMIT.replace(
            "    slot.commit()\n",
            "    try:\n        slot.commit()\n    except Indefinite:\n        slot.commit()\n",
        ),
        _AMBIGUOUS,
    ),
    _edited(
        "the driver settles a commit without an answer in its slot alone",
        "def _publish(",
        "def _publish(*arguments) -> None:\n"
        "    try:\n"
        "        _publish_once(*arguments)\n"
        "    except Indefinite:\n"
        "        batch, number, sink, slices, tasks = arguments\n"
        "        newest = sink.slot(number).acquire()\n"
        "        if newest is None or newest.content != slices[0].content.hash or (\n"
        "            newest.run_id != batch.run_id\n"
        "        ):\n"
        "            _publish_once(*arguments)\n\n\n"
        "def _publish_once(",
        _SAME,
    ),
    _edited(
        "what is published is not compared with the division",
        "        elif marker.rows:", "        elif False:",
    ),
    _edited(
        "what is published is compared after the rest is published",
        "    _compare(staged_batch, published,",
        "    _compare(staged_batch, {n: m for n, m in published.items() if n == BATCH_SLOT},",
    ),
    _edited(
        "other content is accepted",
        "    if (marker.rows, marker.content) == (content.rows, content.hash):\n",
        "    if True:\n",
    ),
    _edited(
        "tasks publish in the first micro-batch of a query",
        "        if newest is None or newest.run_id != batch.run_id:\n"
        "            return rows.stage()\n"
        "        if newest.batch_id",
        "        if newest is not None and newest.batch_id",
    ),
    _edited(
        "tasks publish in the first micro-batch of a run",
        "newest is None or newest.run_id != batch.run_id", "newest is None",
    ),
    Mistake("the driver does not own the slots of earlier runs", port=Variant(only_given=True)),
    _edited(
        "the driver reads only the markers of the division's slots",
        f"sink.acquire({_ACQUIRED})",
        "sink.acquire([BATCH_SLOT, *staged])\n"
        "    newest = {n: m for n, m in newest.items() if n in (BATCH_SLOT, *staged)}",
    ),
    _edited(
        "markers are not revoked",
        "        _revoke(batch, sink, newest)\n        # Sort", "        # Sort",
    ),
    _edited(
        "markers are revoked in the driver's own name",
        "replace(marker, run_id=NO_RUN)", "replace(marker, run_id=batch.run_id)",
        Scope(batches=2, crashes=2, retries=0, later=(_ONE,)),
    ),
    _edited(
        "markers are revoked only where slices are staged",
        "if earlier and number != BATCH_SLOT:", "if earlier and number == 0:",
    ),
    _edited(
        "the missing slices are published in descending order",
        "for number in missing:", "for number in reversed(missing):",
        Scope(batches=1, later=(_ONE,)),
    ),
    _edited(
        "drivers in different modes do not meet",
        "_commit_marker(sink.slot(BATCH_SLOT), newest.get(BATCH_SLOT, nothing))", "pass", _MODES,
    ),
    _edited(
        "the slot of whole micro-batches is owned last",
        _ACQUIRED, "[*sorted(staged), BATCH_SLOT]",
        Scope(_MODES.first, _MODES.later, batches=1, retries=0),
    ),
    Mistake(
        "a whole micro-batch is published again",
        Scope(first=(_WHOLE,), later=(Start(whole=True, variant=1),), batches=1),
        edits=((_COMPARE + "    if BATCH_SLOT in published:\n", "    if False:\n"),
               ("    if atomic and not published:\n", "    if atomic:\n")),
    ),
)  # fmt: skip


# --- every interleaving

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
def test_the_nearest_states_of_a_larger_scope_violate_nothing(name: str) -> None:
    found = explore(Model(IN_PART[name]), PART)
    assert found.violation is None, "\n" + found.violation
    assert found.states >= PART
    assert found.finished > 100


def test_the_model_meets_every_answer_and_every_end_of_a_process() -> None:
    """It also meets a warm worker whose publication is refused."""
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


def test_the_scopes_of_seeded_mistakes_are_free_of_violations() -> None:
    for scope in {each.scope for each in MISTAKES} - {scope for scope, _ in QUICK.values()}:
        found = explore(Model(scope))
        assert found.violation is None, found.violation


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_seeded_mistake_is_caught(mistake: Mistake) -> None:
    found = explore(Model(mistake.scope, mistake.variant()))
    print(found.violation)
    assert found.violation is not None
    assert "visible twice" in found.violation or "are lost" in found.violation


def test_a_violation_is_described_step_by_step() -> None:
    (mistake,) = (each for each in MISTAKES if each.name == "markers are not revoked")
    story = explore(Model(mistake.scope, mistake.variant())).violation
    assert story is not None
    lines = story.splitlines()
    assert lines[0].startswith("  1  task 0 of run 1, micro-batch 0: initialises slot 0")
    woken = next(n for n, line in enumerate(lines) if "run 1, micro-batch 1: init" in line)
    assert any("driver of run 2, micro-batch 1: initialises" in line for line in lines[:woken])
    assert any("task 1 of run 1, micro-batch 1: commits slot 1" in line for line in lines[woken:])
    assert lines[-1] == "then: rows 1.1, 1.2 are visible twice"
