"""A long random walk over the model, from a seed: the same rules as the state machine.

    python -m tests.model.walk --steps 100000 --seed 1

A failure names the seed and the step of its world, with which it happens again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import traceback
from collections import Counter, deque
from pathlib import Path
from random import Random

from tests.model.rules import WEIGHTS
from tests.model.world import World

#: Syncs to memory cost nothing; None: the system's folder for temporary files.
FAST_FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None
#: A world that gets old gets slow: its ledger grows.
WORLD_STEPS = 250
REPORT_EVERY_S = 30


class WalkFailed(AssertionError):
    """Says how to see it again."""


def walk_world(seed: int, steps: int, folder: Path) -> Counter[str]:
    """Take so many steps in the world of a seed; return what happened in it."""
    rng = Random(seed)
    world = World(folder, rng)
    lately: deque[str] = deque(maxlen=12)
    rules, weights = list(WEIGHTS), list(WEIGHTS.values())
    try:
        for step in range(steps):
            rule = rng.choices(rules, weights)[0]
            lately.append(rule.__name__)
            try:
                rule(world, rng)
            except Exception as exc:
                raise WalkFailed(
                    f"seed {seed}, step {step}, {world.checkpoints[0].policy}, "
                    f"{world.shards} shards: {', '.join(lately)}: {exc}"
                ) from exc
        return world.tally
    finally:
        world.close()


def walk(
    seed: int, steps: int, *, until_s: float = float("inf"), keep_going: bool = False
) -> tuple[int, Counter[str], list[str]]:
    """Walk through world after world; return steps taken, what happened, and failures."""
    tally: Counter[str] = Counter()
    failures: list[str] = []
    taken, reported_s = 0, time.monotonic()
    while taken < steps and time.monotonic() < until_s:
        here = min(WORLD_STEPS, steps - taken)
        with tempfile.TemporaryDirectory(dir=FAST_FOLDER) as folder:
            try:
                tally += walk_world(seed, here, Path(folder))
            except WalkFailed as exc:
                if not keep_going:
                    raise
                failures.append(str(exc))
                print(f"FAILED {exc}", flush=True)
                traceback.print_exception(exc.__cause__, limit=-3)
        taken, seed = taken + here, seed + 1
        if time.monotonic() - reported_s > REPORT_EVERY_S:
            reported_s = time.monotonic()
            print(f"{taken} steps, {len(failures)} worlds failed", flush=True)
    return taken, tally, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--keep-going", action="store_true", help="continue with the next world")
    given = parser.parse_args()
    began_s = time.monotonic()
    taken, tally, failures = walk(
        given.seed, given.steps, until_s=began_s + 60 * given.minutes, keep_going=given.keep_going
    )
    for name, count in sorted(tally.items()):
        print(f"{count:>10,}  {name}")
    print(f"{taken:,} steps in {time.monotonic() - began_s:.0f} s, {len(failures)} worlds failed")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
