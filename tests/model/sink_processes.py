"""Processes and world of the sink's model: the protocol itself, one call of a port at a time.

A process is one of the protocol's functions and the answers that its calls of a port have had. To
go one step further the function runs again with these answers, up to the first call without one.
The protocol has no other input, so that this is the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

from dedup.errors import SinkError
from dedup.sinks import protocol as real
from dedup.sinks.batch import Batch
from dedup.sinks.content import Content
from dedup.sinks.marker import BATCH_SLOT, Marker

#: Answers that are errors, by the name of the class.
ERRORS = ("Fenced", "Aborted", "Indefinite")


class Slice(NamedTuple):
    """What a task of a micro-batch has returned: slot, rows as a bit set, whether it is staged."""

    slot: int
    rows: int
    staged: bool


class Spec(NamedTuple):
    """Which function runs with what: a task (one slice) or the driver (all of them)."""

    run: int
    batch: int
    slot: int | None  # None: the driver
    rows: int = 0
    last: Marker | None = None
    slices: tuple[Slice, ...] = ()
    whole: bool = False

    def __str__(self) -> str:
        who = "driver" if self.slot is None else f"task {self.slot}"
        return f"{who} of run {self.run}, micro-batch {self.batch}"


class Call(NamedTuple):
    """What a process waits for: `init`, `read`, `slots`, `send`, `pre`, `commit`, `undo`, ..."""

    name: str
    slot: int = 0
    rows: int = 0
    marker: Marker | None = None
    slots: tuple[int, ...] = ()


class Ended(NamedTuple):
    """What became of a process: its slice (of a task), or the class of the error."""

    result: Slice | None
    error: str = ""
    text: str = ""


class Pause(BaseException):
    """A call that has no answer yet; no code of the protocol may catch it."""

    def __init__(self, call: Call) -> None:
        self.call = call


@dataclass(frozen=True)
class Variant:
    """Mistakes of a sink's own half, and the protocol's module, which may hold others."""

    protocol: ModuleType = real
    read_first: bool = False  # the marker is read, and only then the slot owned
    marker_early: bool = False  # the marker is visible before the transaction
    marker_late: bool = False  # and after it
    undo: bool = False  # abort takes back what is committed
    unfenced: bool = False  # a transactional ID for each micro-batch of a run
    only_given: bool = False  # the driver does not acquire the slots that were used before


def content_of(rows: int) -> Content:
    return Content(rows.bit_count(), rows, 0)


def rows_of(content: Content) -> int:
    return content.low


class _Answers:
    """The answers of a process, in the order of its calls."""

    def __init__(self, answers: tuple[Any, ...], protocol: ModuleType) -> None:
        self._left: Iterator[Any] = iter(answers)
        self._protocol = protocol

    def ask(self, call: Call) -> Any:
        try:
            answer = next(self._left)
        except StopIteration:
            raise Pause(call) from None
        if isinstance(answer, str) and answer in ERRORS:
            raise getattr(self._protocol, answer)(answer)
        return answer


class _Slot:
    """A slot's port. Steps that no other process can see join the commit."""

    def __init__(
        self, number: int, answers: _Answers, variant: Variant, last: Marker | None = None
    ) -> None:
        self.last = last
        self.rows = 0
        self._number, self._answers, self._variant = number, answers, variant
        self._marker: Marker | None = None
        self._untried = last is not None

    def acquire(self) -> Marker | None:
        self._untried = False
        first, second = Call("init", self._number), Call("read", slots=(self._number,))
        if self._variant.read_first:
            first, second = second, first
        answers = (self._answers.ask(first), self._answers.ask(second))
        (marker,) = answers[0 if self._variant.read_first else 1]
        return marker  # type: ignore[no-any-return]

    def begin(self) -> None:
        self.rows = 0

    def send_first(self) -> None:
        # Only an attempt that has not owned the slot takes another path when it is fenced.
        if self._untried:
            self._answers.ask(Call("send", self._number))

    def pre_commit(self, marker: Marker) -> None:
        self._marker = marker
        if self._variant.marker_early:
            self._answers.ask(Call("mark", self._number, 0, marker))

    def commit(self) -> None:
        apart = self._variant.marker_early or self._variant.marker_late
        marker = None if apart else self._marker
        self._answers.ask(Call("commit", self._number, self.rows, marker))
        if self._variant.marker_late:
            self._answers.ask(Call("mark", self._number, 0, self._marker))

    def abort(self) -> None:
        if self._variant.undo:
            self._answers.ask(Call("undo", self._number, self.rows))


class _Rows:
    def __init__(self, slot: int, rows: int, protocol: ModuleType) -> None:
        self._slot, self._rows, self._protocol = slot, rows, protocol

    def send_first(self, slot: _Slot) -> None:
        slot.send_first()

    def send_rest(self, slot: _Slot) -> Content:
        slot.rows = self._rows
        return content_of(self._rows)

    def consume(self) -> Content:
        return content_of(self._rows)

    def stage(self) -> Any:
        return self._protocol.StagedSlice(self._slot, content_of(self._rows), "")


class _Sink:
    def __init__(self, answers: _Answers, variant: Variant) -> None:
        self._answers, self._variant = answers, variant

    def acquire(self, slots: Sequence[int]) -> Mapping[int, Marker]:
        used = () if self._variant.only_given else self._answers.ask(Call("slots"))
        numbers = tuple(dict.fromkeys((*slots, *used)))
        read = Call("read", slots=numbers)
        early = self._answers.ask(read) if self._variant.read_first else None
        self._answers.ask(Call("init", numbers[0]))
        left = numbers[1:]
        while left:
            owned = self._answers.ask(Call("any", slots=left))
            left = tuple(number for number in left if number != owned)
        markers = self._answers.ask(read) if early is None else early
        return {n: m for n, m in zip(numbers, markers, strict=True) if m is not None}

    def slot(self, number: int) -> _Slot:
        return _Slot(number, self._answers, self._variant)

    def rows(self, slices: Sequence[real.StagedSlice]) -> _Rows:
        rows = sum(rows_of(piece.content) for piece in slices)
        return _Rows(BATCH_SLOT, rows, self._variant.protocol)


def next_of(spec: Spec, answers: tuple[Any, ...], variant: Variant) -> Call | Ended:
    """Return what a process does once its calls so far had these answers."""
    protocol = variant.protocol
    asked = _Answers(answers, protocol)
    batch = protocol.Batch(query_id="q", sink="s", run_id=f"run {spec.run}", batch_id=spec.batch)
    try:
        if spec.slot is None:
            _drive(spec, batch, asked, variant)
            return Ended(None)
        slot = _Slot(spec.slot, asked, variant, spec.last)
        rows = _Rows(spec.slot, spec.rows, protocol)
        found = protocol.publish_slice(batch, spec.slot, slot, rows)
        staged = isinstance(found, protocol.StagedSlice)
        return Ended(Slice(spec.slot, spec.rows, staged))
    except Pause as pause:
        return pause.call
    except SinkError as error:
        return Ended(None, error="SinkError", text=str(error))
    except (protocol.Fenced, protocol.Aborted, protocol.Indefinite) as error:
        return Ended(None, error=type(error).__name__)


def _drive(spec: Spec, batch: Batch, asked: _Answers, variant: Variant) -> None:
    protocol = variant.protocol

    def typed(slices: Sequence[Slice]) -> list[real.PublishedSlice | real.StagedSlice]:
        return [
            protocol.StagedSlice(piece.slot, content_of(piece.rows), "")
            if piece.staged
            else protocol.PublishedSlice(piece.slot, content_of(piece.rows))
            for piece in slices
        ]

    def manifest() -> Any:
        return typed(asked.ask(Call("manifest")))

    whole: Callable[[], Any] | None = manifest if spec.whole else None
    staged = protocol.StagedBatch(batch, typed(spec.slices))
    protocol.publish_staged(staged, _Sink(asked, variant), atomic=whole)


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
        return f"marker of micro-batch {answer.batch_id} by {answer.run_id or 'no run'}"
    if isinstance(answer, Slice):
        return f"slice {answer.slot}"
    if isinstance(answer, tuple):
        return "[" + "; ".join(said(each) for each in answer) + "]"
    return "none" if answer is None else str(answer)
