"""Every state that a model can reach, breadth first: what goes wrong is shown at its shortest."""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.sink_spark import Model
from tests.model.sink_world import Violation, World


@dataclass(frozen=True)
class Found:
    """What an exploration found.

    Parameters
    ----------
    states, steps : int
    finished, refusals : int
        Steps that finished the last micro-batch, or refused a micro-batch whose division changed.
    violation : str or None
        What does not hold, and the steps that lead to it, a line each.
    """

    states: int
    steps: int
    finished: int
    refusals: int
    violation: str | None


def explore(model: Model, limit: int | None = None) -> Found:
    """Visit states until all are visited, or one violates a rule.

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
