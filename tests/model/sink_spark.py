"""Spark in the model of the sink: it runs micro-batches, takes tasks for lost, and crashes."""

from __future__ import annotations

from collections.abc import Iterator

from dedup.sinks.marker import BATCH_SLOT
from tests.model.sink_broker import Broker, Step
from tests.model.sink_processes import Call, Ended, Slice, Spec, Variant, content_of
from tests.model.sink_world import (
    Label,
    Process,
    Scope,
    Spark,
    Violation,
    World,
    described,
    said,
    with_value,
    without,
)


class Model(Broker):
    """Every step of a world."""

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
            yield Label(f"Spark starts anew after {ended.error}:", process.node), self._tidy(world)
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
