"""The rules as a hypothesis state machine: what it breaks, it makes short."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.model import rules as model_rules
from tests.model.walk import FAST_FOLDER
from tests.model.world import World

SEEDS = st.integers(0, 2**32 - 1)


class QueryMachine(RuleBasedStateMachine):
    """A query, its checkpoints and its catalog; every rule draws its details from a seed."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=FAST_FOLDER)
        self.world: World | None = None

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        self.world = World(Path(self.folder.name), Random(seed))

    @invariant()
    def states_are_whole(self) -> None:
        if self.world is not None:
            self.world.check_files(self.world.checkpoints[0])

    def teardown(self) -> None:
        if self.world is not None:
            self.world.close()
        self.folder.cleanup()


def _add(step: model_rules.Rule) -> None:
    def taken(self: QueryMachine, seed: int) -> None:
        assert self.world is not None
        step(self.world, Random(seed))

    taken.__name__ = step.__name__
    decorated: Callable[..., None] = rule(seed=SEEDS)(taken)
    setattr(QueryMachine, step.__name__, decorated)


for each in model_rules.WEIGHTS:
    _add(each)

TestQuery = QueryMachine.TestCase
TestQuery.settings = settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
