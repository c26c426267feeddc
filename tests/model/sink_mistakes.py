"""Mistakes seeded into the protocol of sinks, or into a sink's own half of it.

Those of the protocol are exact replacements in its source, so that what runs is the protocol as it
stays except for the mistake. A replacement that no longer applies fails.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from types import ModuleType

from dedup.sinks import protocol
from tests.model.sink_processes import Variant
from tests.model.sink_world import ONE, Scope, Start

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
_ACQUIRED = "[BATCH_SLOT, *sorted({*self.sink.slots(), *staged} - {BATCH_SLOT})]"
_NEWEST = f"        newest = self.sink.acquire(\n            {_ACQUIRED}\n        )\n"
_READ_OWN = "        newest = self.sink.acquire([BATCH_SLOT, *sorted(staged)])\n"
_SETTLE = """        if slot.acquire() != marker:
"""


@dataclass(frozen=True)
class Mistake:
    """A mistake, and the least scope that shows it.

    Parameters
    ----------
    name : str
    scope : Scope
    port : Variant
        What the sink's own half does.
    edits : tuple of (str, str)
        What is replaced in the protocol, each text occurring exactly once, and by what.
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
        port = self.port
        return Variant(
            module, port.read_first, port.marker_early, port.marker_late, port.undo, port.unfenced
        )


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
    Mistake(
        "a task repeats a commit without an answer",
        _AMBIGUOUS,
        edits=(
            (
                _SETTLE + "            raise Aborted(str(error)) from None\n",
                "        slot.commit()\n",
            ),
        ),
    ),
    Mistake(
        "the driver repeats a commit without an answer",
        _AMBIGUOUS,
        edits=(
            (
                _COMMIT,
                _COMMIT.replace(
                    "    slot.commit()\n",
                    "    try:\n        slot.commit()\n    except Indefinite:\n"
                    "        slot.commit()\n",
                ),
            ),
        ),
    ),
    Mistake(
        "the driver settles a commit without an answer in its slot alone",
        _SAME,
        edits=(
            (
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
            ),
        ),
    ),
    Mistake(
        "what is published is not compared with the division",
        edits=(
            (
                "            elif marker.rows:",
                "            elif False:",
            ),
        ),
    ),
    Mistake(
        "what is published is compared after the rest is published",
        edits=(
            (
                "        self._compare(published)\n",
                "        self._compare({n: m for n, m in published.items() if n == BATCH_SLOT})\n",
            ),
        ),
    ),
    Mistake(
        "other content is accepted",
        edits=(
            (
                "    if (marker.rows, marker.content) == (content.rows, content.hash):\n",
                "    if True:\n",
            ),
        ),
    ),
    Mistake(
        "tasks publish in the first micro-batch of a query",
        edits=(
            (
                "        if newest is None or newest.run_id != batch.run_id:\n"
                "            return rows.stage()\n"
                "        if newest.batch_id",
                "        if newest is not None and newest.batch_id",
            ),
        ),
    ),
    Mistake(
        "tasks publish in the first micro-batch of a run",
        edits=(("newest is None or newest.run_id != batch.run_id", "newest is None"),),
    ),
    Mistake(
        "the driver does not own the slots of earlier runs",
        edits=(("{*self.sink.slots(), *staged}", "{*staged}"),),
    ),
    Mistake(
        "the driver reads the markers of its own slots alone",
        edits=(
            (_NEWEST, f"        self.sink.acquire({_ACQUIRED})\n{_READ_OWN}"),
        ),
    ),
    Mistake(
        "markers are not revoked",
        edits=(
            ("            _revoke(batch, sink, newest)\n            # In", "            # In"),
        ),
    ),
    Mistake(
        "markers are revoked in the driver's own name",
        Scope(batches=2, crashes=2, retries=0, later=(_ONE,)),
        edits=(("replace(marker, run_id=NO_RUN)", "replace(marker, run_id=batch.run_id)"),),
    ),
    Mistake(
        "markers are revoked only where slices are staged",
        edits=(("if earlier and number != BATCH_SLOT:", "if earlier and number == 0:"),),
    ),
    Mistake(
        "the missing slices are published in descending order",
        Scope(batches=1, later=(_ONE,)),
        edits=(("for number in missing:", "for number in reversed(missing):"),),
    ),
    Mistake(
        "drivers in different modes do not meet",
        _MODES,
        edits=(
            ("_commit_marker(sink.slot(BATCH_SLOT), newest.get(BATCH_SLOT, nothing))", "pass"),
        ),
    ),
    Mistake(
        "the slot of whole micro-batches is owned last",
        Scope(_MODES.first, _MODES.later, batches=1, retries=0),
        edits=(
            (
                _ACQUIRED,
                "[*sorted({*self.sink.slots(), *staged} - {BATCH_SLOT}), BATCH_SLOT]",
            ),
        ),
    ),
    Mistake(
        "a whole micro-batch is published again",
        Scope(first=(_WHOLE,), later=(Start(whole=True, variant=1),), batches=1),
        edits=(("        self._compare(published)\n        if BATCH_SLOT in published:\n",
                "        if False:\n"),
               ("        if self.atomic and not published:\n", "        if self.atomic:\n")),
    ),
)  # fmt: skip
