"""The model walked from a few seeds: all that can happen has happened, and nothing was wrong."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.model import rules as model_rules
from tests.model.walk import FAST_FOLDER, walk, walk_world
from tests.model.world import World

#: Short worlds in which much happens; `make model` walks much further.
SEEDS = (2, 4, 7, 13, 23, 35, 41, 60, 64, 70)
STEPS = 150

#: What a selection of worlds must have seen, or it shows nothing.
HAPPENED = (
    "branched", "caches lost", "clones", "crashes", "damage reported", "deletions audited",
    "duplicate", "filters evicted", "filters returned", "filters_rebuilt", "jumps", "late",
    "local files damaged", "lost before the commit", "orphans swept", "records", "resizes",
    "restarts", "returned_from_idle", "rollbacks", "rows refused", "segments damaged",
    "segments_deleted", "segments_merged", "segments_written", "sidecars damaged", "untimed",
    "vacuums", "views_rebuilt", "zombies",
)  # fmt: skip


def test_walks_from_a_few_seeds_meet_every_rule() -> None:
    tally: Counter[str] = Counter()
    for seed in SEEDS:
        with tempfile.TemporaryDirectory(dir=FAST_FOLDER) as folder:
            tally += walk_world(seed, STEPS, Path(folder))
    assert not [name for name in HAPPENED if not tally[name]]
    assert tally["micro-batches"] > len(SEEDS) * STEPS * 0.8


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_long_walk_meets_no_failure() -> None:
    steps = int(os.environ.get("MODEL_STEPS", "20000"))
    taken, _, failures = walk(10_000, steps)
    assert (taken, failures) == (steps, [])


ANY_SEED = st.integers(0, 2**32 - 1)


class QueryMachine(RuleBasedStateMachine):
    """A query, its checkpoints and its catalog; every rule draws its details from a seed."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=FAST_FOLDER)
        self.world: World | None = None

    @initialize(seed=ANY_SEED)
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
    decorated: Callable[..., None] = rule(seed=ANY_SEED)(taken)
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
