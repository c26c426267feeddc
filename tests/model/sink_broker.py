"""The broker of the sink's model, which answers the calls of processes.

Reductions, none of which hides a behaviour: steps that no one else can see join the next one that
can be seen (opening a transaction, sending into it); a process that does not own the slot of its
commit fails at once, as it would at any later time; finished processes that Spark
does not wait for vanish; processes have no names, so either of two equal ones may go first.
A killed process is one that takes no further step, a frozen one may take it at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dedup.sinks.marker import BATCH_SLOT, Marker
from tests.model.sink_processes import Call, Ended, Spec, Variant, next_of
from tests.model.sink_world import ROWS, Label, Process, Scope, Violation, World, with_value

Step = tuple[Label, World]


class Broker:
    """Answers of the broker, and the processes that ask.

    Parameters
    ----------
    scope : Scope
    variant : Variant, optional
        Seeded mistakes.
    """

    def __init__(self, scope: Scope, variant: Variant | None = None) -> None:
        self.scope = scope
        self.variant = variant or Variant()
        starts = (*scope.first, *scope.later)
        self.slots = (*range(max(len(start.division) for start in starts)), BATCH_SLOT)
        self._place = {slot: place for place, slot in enumerate(self.slots)}
        #: Of each micro-batch the rows that a plan gives, and those that one gives otherwise.
        self._versions = [
            (self._rows(batch, 0, range(ROWS)), self._rows(batch, 1, range(ROWS)))
            for batch in range(scope.batches)
        ]
        self._specs: list[Spec] = []
        self._answers: list[tuple[Any, ...]] = []
        self._next: list[Call | Ended] = []
        self._nodes: dict[tuple[Any, ...], int] = {}

    def answers(self) -> set[str]:
        """Return every answer that a commit, or a first attempt to send, has had."""
        return {
            f"{call.name}: {answers[len(before)]}"
            for spec, answers in self._nodes
            for before in [answers[:-1]]
            if answers and isinstance(call := self._next[self._nodes[spec, before]], Call)
            if call.name in ("commit", "send")
        }

    def ends(self) -> set[str]:
        """Return every error that ended a process, and "" for none."""
        return {each.error for each in self._next if isinstance(each, Ended)}

    def _perform(self, world: World, place: int, call: Call) -> Iterator[Step]:
        """The broker answers a call."""
        process = world.processes[place]
        node = process.node
        if call.name == "commit":
            for outcome, after in self._commit(world, place, call):
                yield Label("", node, call, outcome), self._answer(after, place, outcome)
            return
        if call.name == "any":
            for slot in call.slots if self.scope.any_order else call.slots[:1]:
                after = self._fence(world, place, slot)
                yield Label("", node, call, slot), self._answer(after, place, slot)
            return
        answer: Any = "ok"
        if call.name == "init":
            yield from self._goes_on_warm(world, place, call.slot)
            world = self._fence(world, place, call.slot)
        elif call.name == "read":
            answer = tuple(world.newest[self._place[slot]] for slot in call.slots)
        elif call.name == "slots":
            answer = tuple(
                slot for slot, marker in zip(self.slots, world.newest, strict=True) if marker
            )
        elif call.name == "manifest":
            spec = self._specs[node]
            answer = world.manifests[spec.batch] or spec.slices
            world = world._replace(manifests=with_value(world.manifests, spec.batch, answer))
        elif call.name == "mark":
            at = self._place[call.slot]
            world = world._replace(newest=with_value(world.newest, at, call.marker))
        elif call.name == "undo":
            world = world._replace(visible=world.visible & ~call.rows)
        yield Label("", node, call, answer), self._answer(world, place, answer)

    def _goes_on_warm(self, world: World, place: int, slot: int) -> Iterator[Step]:
        """A new attempt may run in a worker that still owns the slot."""
        last = world.idle[self._place[slot]]
        process = world.processes[place]
        if last is None or not process.live or self._answers[process.node]:
            return
        spec = self._specs[process.node]._replace(last=last)
        owning = Process(self._node(spec, ()), 1 << self._place[slot], live=True)
        idle = with_value(world.idle, self._place[slot], None)
        after = self._with(world._replace(idle=idle), place, owning)
        yield Label("runs in a worker that owns the slot:", process.node), self._tidy(after)

    def _fence(self, world: World, place: int, slot: int) -> World:
        """Initialise a slot's transactional ID for a process."""
        at = self._place[slot]
        bit = 1 << at
        mine = self._specs[world.processes[place].node]
        processes = []
        for other, process in enumerate(world.processes):
            if other == place:
                process = process._replace(owns=process.owns | bit)
            elif process.owns & bit and self._same_id(mine, self._specs[process.node]):
                process = process._replace(owns=process.owns & ~bit)
            processes.append(process)
        return world._replace(
            processes=tuple(processes),
            pending=with_value(world.pending, at, None),
            idle=with_value(world.idle, at, None),
        )

    def _same_id(self, one: Spec, other: Spec) -> bool:
        return not self.variant.unfenced or (one.run, one.batch) == (other.run, other.batch)

    def _commit(self, world: World, place: int, call: Call) -> Iterator[tuple[str, World]]:
        """A commit by the owner, and all that may become of it."""
        at = self._place[call.slot]
        applied = self._apply(world, at, call.rows, call.marker, tidy=False)
        yield "ok", applied
        if world.ambiguous:
            left = world.ambiguous - 1
            yield "Indefinite", applied._replace(ambiguous=left)
            later = with_value(world.pending, at, (call.rows, call.marker))
            yield "Indefinite", world._replace(ambiguous=left, pending=later)
            # A client repeats the request on its own, and may find the slot in other hands by then.
            yield "Fenced", self._disowned(applied._replace(ambiguous=left), place, at)
        if world.timeouts:
            left = world.timeouts - 1
            yield "Aborted", world._replace(timeouts=left)
            yield "Fenced", self._disowned(world._replace(timeouts=left), place, at)

    def _disowned(self, world: World, place: int, at: int) -> World:
        process = world.processes[place]
        return self._with(world, place, process._replace(owns=process.owns & ~(1 << at)))

    def _apply(
        self, world: World, at: int, rows: int, marker: Marker | None, *, tidy: bool = True
    ) -> World:
        """Rows and marker of a transaction become visible."""
        if twice := world.visible & rows:
            raise Violation(f"rows {self._named(twice)} are visible twice")
        visible = world.visible | rows
        for batch, (one, other) in enumerate(self._versions):
            if visible & one and visible & other:
                raise Violation(f"two versions of micro-batch {batch} are visible")
        world = world._replace(visible=visible)
        if marker is not None:
            world = world._replace(newest=with_value(world.newest, at, marker))
        return self._tidy(world) if tidy else world

    def _rows(self, batch: int, variant: int, rows: Any) -> int:
        shift = (variant * self.scope.batches + batch) * ROWS
        return sum(1 << (shift + row) for row in rows)

    def _named(self, rows: int) -> str:
        found = [bit for bit in range(rows.bit_length()) if rows >> bit & 1]
        return ", ".join(f"{bit // ROWS % self.scope.batches}.{bit % ROWS}" for bit in found)

    def _node(self, spec: Spec, answers: tuple[Any, ...]) -> int:
        key = (spec, answers)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = len(self._specs)
            self._specs.append(spec)
            self._answers.append(answers)
            self._next.append(next_of(spec, answers, self.variant))
        return node

    def _answer(self, world: World, place: int, answer: Any) -> World:
        process = world.processes[place]
        node = self._after(process.node, answer)
        return self._tidy(self._with(world, place, process._replace(node=node)))

    def _after(self, node: int, answer: Any) -> int:
        return self._node(self._specs[node], (*self._answers[node], answer))

    @staticmethod
    def _with(world: World, place: int, process: Process) -> World:
        return world._replace(processes=with_value(world.processes, place, process))

    def _tidy(self, world: World) -> World:
        """The same world in its one form."""
        kept = []
        for process in world.processes:
            todo = self._next[process.node]
            while (
                isinstance(todo, Call)
                and todo.name in ("send", "commit")
                and not process.owns >> self._place[todo.slot] & 1
            ):
                process = process._replace(node=self._after(process.node, "Fenced"))
                todo = self._next[process.node]
            if process.live or isinstance(todo, Call):
                kept.append(process)
        kept.sort()
        return world._replace(processes=tuple(kept))
