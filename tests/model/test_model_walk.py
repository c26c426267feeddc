"""The model walked from a few seeds: all that can happen has happened, and nothing was wrong."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.model.walk import FAST_FOLDER, walk, walk_world

#: Short worlds; `make model` walks much further.
SEEDS = range(14)
STEPS = 60

#: What a selection of worlds must have seen, or it shows nothing.
HAPPENED = (
    "branched", "caches lost", "clones", "crashes", "damage reported", "deletions audited",
    "duplicate", "filters_rebuilt", "jumps", "late", "local files damaged",
    "lost before the commit", "orphans swept", "records", "resizes", "restarts",
    "returned_from_idle", "rollbacks", "rows refused", "segments damaged", "segments_deleted",
    "segments_merged", "segments_written", "sidecars damaged", "untimed", "vacuums",
    "views_rebuilt", "zombies",
)  # fmt: skip


def test_all_rules_from_a_few_seeds() -> None:
    tally: Counter[str] = Counter()
    for seed in SEEDS:
        with tempfile.TemporaryDirectory(dir=FAST_FOLDER) as folder:
            tally += walk_world(seed, STEPS, Path(folder))
    assert not [name for name in HAPPENED if not tally[name]]
    assert tally["micro-batches"] > len(SEEDS) * STEPS * 0.8


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_long_walk() -> None:
    steps = int(os.environ.get("MODEL_STEPS", "20000"))
    taken, _, failures = walk(10_000, steps)
    assert (taken, failures) == (steps, [])
