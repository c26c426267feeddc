"""The world of the sink's model, as one value that can be hashed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from dedup.sinks.marker import Marker
from tests.model.sink_processes import Call, Slice

#: A micro-batch divided into slices: for each slot the numbers of its rows.
Division = tuple[tuple[int, ...], ...]
TWO: Division = ((0,), (1, 2))
MOVED: Division = ((0, 1), (2,))
ONE: Division = ((0, 1, 2),)
THREE: Division = ((0,), (1,), (2,))
ROWS = 3


class Start(NamedTuple):
    """How a run of the query is started."""

    division: Division = TWO
    whole: bool = False  # the mode `atomic`
    variant: int = 0  # a plan that is not deterministic gives other rows


@dataclass(frozen=True)
class Scope:
    """What may happen, and how often."""

    first: tuple[Start, ...] = (Start(),)
    later: tuple[Start, ...] = (Start(), Start(ONE), Start(MOVED))
    batches: int = 3
    crashes: int = 1
    timeouts: int = 0
    ambiguous: int = 0
    retries: int = 1
    divisions: tuple[Division, ...] = ()  # of a run's next micro-batch; none: as before
    any_order: bool = False  # in which a driver owns slots; False: ascending


class Process(NamedTuple):
    """A process; `node` identifies function and answers, `owns` is a bit set of slots."""

    node: int
    owns: int
    live: bool  # Spark waits for it


class Spark(NamedTuple):
    """What Spark knows. `results` holds None for each slice that is under way."""

    run: int
    batch: int
    start: Start
    results: tuple[Slice | None, ...]
    failed: bool = False


class World(NamedTuple):
    """A state; tuples by slot where nothing else is said."""

    newest: tuple[Marker | None, ...]
    pending: tuple[tuple[int, Marker | None] | None, ...]  # delayed commits
    idle: tuple[Marker | None, ...]  # workers that still own a slot, by what they committed last
    visible: int
    manifests: tuple[tuple[Slice, ...] | None, ...]
    processes: tuple[Process, ...]
    spark: Spark
    crashes: int
    timeouts: int
    ambiguous: int
    retries: int


class Label(NamedTuple):
    """What leads from one world to the next: an event, or the answer to a call of a process."""

    event: str
    node: int = -1
    call: Call | None = None
    answer: Any = None


class Violation(Exception):
    """The guarantee does not hold."""


def with_value(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])


def without(values: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return (*values[:place], *values[place + 1 :])


def described(call: Call) -> str:
    """Return what a call asks for, for people."""
    if call.name == "read":
        return f"reads the markers of {call.slots}"
    if call.name == "init":
        return f"initialises slot {call.slot}"
    if call.name == "any":
        return "initialises one slot"
    if call.name == "slots":
        return "lists the slots that ever published"
    if call.name == "mark":
        return f"writes outside of the transaction {said(call.marker)}"
    if call.name == "commit":
        return f"commits slot {call.slot}, rows {call.rows:b}, {said(call.marker)}"
    return f"{call.name} {call.slot}"


def said(answer: Any) -> str:
    """Return what an answer says, for people."""
    if isinstance(answer, Marker):
        return f"marker of micro-batch {answer.batch_id} by {answer.run_id or 'nobody'}"
    if isinstance(answer, Slice):
        return f"slice {answer.slot}"
    if isinstance(answer, tuple):
        return "[" + "; ".join(said(each) for each in answer) + "]"
    return "none" if answer is None else str(answer)
