"""The model of the sinks' protocol: a broker, Spark above it, and every state that they can reach.

Reductions, none of which hides a behaviour: steps that no one else can see join the next one that
can be seen (opening a transaction, sending into it); a process that does not own the slot of its
commit fails at once, as it would at any later time; finished processes that Spark
does not wait for vanish; processes have no names, so either of two equal ones may go first.
A killed process is one that takes no further step, a frozen one may take it at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dedup.sinks.marker import BATCH_SLOT, Marker
from tests.model.sink_processes import (
    ROWS,
    Call,
    Ended,
    Label,
    Process,
    Scope,
    Slice,
    Spark,
    Spec,
    Variant,
    Violation,
    World,
    content_of,
    described,
    next_of,
    said,
    with_value,
    without,
)

Step = tuple[Label, World]


class Broker:
    """Answers of the broker, and the processes that ask; a variant has seeded mistakes."""

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


class Model(Broker):
    """Spark, which runs micro-batches, takes tasks for lost, and crashes: every step of a world."""

    def __init__(self, scope: Scope, variant: Variant | None = None) -> None:
        super().__init__(scope, variant)
        self.refusals = 0
        self.finished = 0

    def begin(self) -> Iterator[World]:
        """The states before the first run's first step."""
        none = (None,) * len(self.slots)
        for start in self.scope.first:
            spark = Spark(1, 0, start, ())
            yield self._execute(
                World(
                    none, none, none, 0, (None,) * self.scope.batches, (), spark,
                    self.scope.crashes, self.scope.timeouts, self.scope.ambiguous,
                    self.scope.retries,
                )
            )  # fmt: skip

    def steps(self, world: World) -> Iterator[Step]:
        """Every next state, and what leads to it."""
        before = None
        heard_first = self._heard_first(world)
        for place, process in enumerate(world.processes):
            if heard_first is not None and place != heard_first:
                continue
            if process == before:
                continue
            before = process
            todo = self._next[process.node]
            if isinstance(todo, Call):
                yield from self._perform(world, place, todo)
            else:
                yield from self._report(world, place, todo)
            if process.live and world.crashes and self._specs[process.node].slot is not None:
                lost = self._with(world, place, process._replace(live=False))
                lost = self._attempt(lost, self._specs[process.node])
                yield (
                    Label("Spark takes for lost, and starts again:", process.node),
                    self._tidy(lost._replace(crashes=world.crashes - 1)),
                )
        if heard_first is not None:
            return
        for place, pending in enumerate(world.pending):
            if pending is not None:
                later = with_value(world.pending, place, None)
                yield (
                    Label(f"the broker carries out the commit of slot {self.slots[place]} at last"),
                    self._apply(world._replace(pending=later), place, *pending),
                )
        if world.crashes and world.spark.batch < self.scope.batches:
            yield from self._restarts(world)

    def _heard_first(self, world: World) -> int | None:
        """Return a process whose end Spark may hear of, or miss, before anything else happens.

        While other slices are under way, hearing of one changes nothing that another step depends
        on: a crash forgets it either way.
        """
        if world.spark.results.count(None) < 2:
            return None
        for place, process in enumerate(world.processes):
            todo = self._next[process.node]
            if process.live and isinstance(todo, Ended) and not todo.error:
                return place
        return None

    def _restarts(self, world: World) -> Iterator[Step]:
        abandoned = tuple(process._replace(live=False) for process in world.processes)
        for start in self.scope.later:
            spark = Spark(world.spark.run + 1, world.spark.batch, start, ())
            idle = (None,) * len(self.slots)
            after = world._replace(
                processes=abandoned, spark=spark, idle=idle, crashes=world.crashes - 1
            )
            yield (
                Label(f"the query crashes; run {spark.run} starts at {spark.batch} with {start}"),
                self._execute(after),
            )

    def _execute(self, world: World) -> World:
        """Spark begins the micro-batch: an attempt for every slice."""
        spark = world.spark
        slices = tuple(
            Slice(slot, self._rows(spark.batch, spark.start.variant, rows), spark.start.whole)
            for slot, rows in enumerate(spark.start.division)
        )
        if spark.start.whole:  # tasks stage without asking anybody
            return self._drive(world._replace(spark=spark._replace(results=slices)))
        world = world._replace(spark=spark._replace(results=(None,) * len(slices)))
        for piece in slices:
            world = self._attempt(world, Spec(spark.run, spark.batch, piece.slot, piece.rows))
        return self._tidy(world)

    def _attempt(self, world: World, spec: Spec) -> World:
        node = self._node(spec._replace(last=None), ())
        return world._replace(processes=(*world.processes, Process(node, 0, True)))

    def _drive(self, world: World) -> World:
        spark = world.spark
        slices = tuple(piece for piece in spark.results if piece is not None)
        spec = Spec(spark.run, spark.batch, None, slices=slices, whole=spark.start.whole)
        node = self._node(spec, ())
        return self._tidy(world._replace(processes=(*world.processes, Process(node, 0, live=True))))

    def _report(self, world: World, place: int, ended: Ended) -> Iterator[Step]:
        """Spark hears of the end of a process that it waits for."""
        process, spark = world.processes[place], world.spark
        spec = self._specs[process.node]
        world = world._replace(processes=without(world.processes, place))
        if ended.error == "SinkError":
            if self._fits(world):
                raise Violation(f"{spec} is refused although all fits: {ended.text}")
            self.refusals += 1
            yield Label("Spark hears of a refusal:", process.node), self._fail(world)
        elif ended.error and spec.slot is not None and world.retries:
            world = self._attempt(world._replace(retries=world.retries - 1), spec)
            yield Label(f"Spark starts again after {ended.error}:", process.node), self._tidy(world)
        elif ended.error:
            yield Label(f"the run fails ({ended.error}):", process.node), self._fail(world)
        elif spec.slot is None:
            for after in self._go_on(world):
                yield Label("Spark commits the micro-batch after", process.node), after
        else:
            if process.owns and ended.result is not None and not ended.result.staged:
                last = world.newest[spec.slot]
                world = world._replace(idle=with_value(world.idle, spec.slot, last))
            results = with_value(spark.results, spec.slot, ended.result)
            world = world._replace(spark=spark._replace(results=results))
            for after in self._heard(world):
                yield Label("Spark hears of the end of", process.node), after

    def _heard(self, world: World) -> Iterator[World]:
        results = [piece for piece in world.spark.results if piece is not None]
        if len(results) < len(world.spark.results):
            yield world
        elif any(piece.staged for piece in results):
            yield self._drive(world)
        else:
            yield from self._go_on(world)

    def _fits(self, world: World) -> bool:
        """Whether every published part of Spark's micro-batch is a slice of its division."""
        spark = world.spark
        slices = [
            self._rows(spark.batch, spark.start.variant, rows) for rows in spark.start.division
        ]
        now = {slot: content_of(rows).hash for slot, rows in enumerate(slices)}
        now[BATCH_SLOT] = content_of(sum(slices)).hash
        published = [m for m in world.newest if m is not None and m.batch_id == spark.batch]
        return all(now.get(marker.slot) == marker.content for marker in published)

    def _fail(self, world: World) -> World:
        """The run is over; only another one can continue."""
        abandoned = tuple(process._replace(live=False) for process in world.processes)
        spark = world.spark._replace(failed=True)
        return self._tidy(world._replace(processes=abandoned, spark=spark))

    def _go_on(self, world: World) -> Iterator[World]:
        """Spark commits the micro-batch and begins the next."""
        spark = world.spark
        for batch, versions in enumerate(self._versions[: spark.batch + 1]):
            if all(rows & ~world.visible for rows in versions):
                raise Violation(f"rows of micro-batch {batch} are lost")
        following = spark.batch + 1
        if following == self.scope.batches:
            self.finished += 1
            yield self._tidy(world._replace(spark=Spark(spark.run, following, spark.start, ())))
            return
        for division in self.scope.divisions or (spark.start.division,):
            start = spark.start._replace(division=division)
            yield self._execute(world._replace(spark=Spark(spark.run, following, start, ())))

    def text(self, label: Label) -> str:
        """Return what a step did, for people."""
        if label.node < 0:
            return label.event
        who = self._specs[label.node]
        if label.call is None:
            return f"{label.event} {who}"
        return f"{who}: {described(label.call)} -> {said(label.answer)}"


@dataclass(frozen=True)
class Found:
    """What an exploration found."""

    states: int
    steps: int
    #: Steps that finished the last micro-batch, or refused one whose division changed.
    finished: int
    refusals: int
    #: What does not hold, and the steps that lead to it, a line each.
    violation: str | None


def explore(model: Model, limit: int | None = None) -> Found:
    """Visit states, breadth first, until all are visited or one violates a rule.

    A state that was visited is remembered by its 64-bit hash: among ten million states the chance
    that any two share one is below one in 300,000.
    """
    frontier = [(hash(world), world) for world in model.begin()]
    origin = {key: (0, number) for number, (key, _) in enumerate(frontier)}
    steps = 0
    while frontier and (limit is None or len(origin) < limit):
        after = []
        for here, world in frontier:
            number = -1
            try:
                for number, (_, following) in enumerate(model.steps(world)):
                    steps += 1
                    key = hash(following)
                    if key not in origin:
                        origin[key] = (here, number)
                        after.append((key, following))
            except Violation as violation:
                story = _story(model, origin, here)
                text = "\n".join([*story, f"then: {violation}"])
                return Found(len(origin), steps, model.finished, model.refusals, text)
        frontier = after
    return Found(len(origin), steps, model.finished, model.refusals, None)


def _story(model: Model, origin: dict[int, tuple[int, int]], key: int) -> list[str]:
    """The steps that lead to a state."""
    numbers = []
    while key:
        key, number = origin[key]
        numbers.append(number)
    numbers.reverse()
    world: World = list(model.begin())[numbers[0]]
    lines: list[str] = []
    for number in numbers[1:]:
        label, world = list(model.steps(world))[number]
        lines.append(f"{len(lines) + 1:3}  {model.text(label)}")
    return lines
