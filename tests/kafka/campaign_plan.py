"""What a campaign does to the sink: rounds of starts with faults, made from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

#: Steps of a task that publishes by itself, of one that stages, of the driver, and of `atomic`.
TASK = (
    "kafka.task.begin", "kafka.init.before", "kafka.init.after", "kafka.rows.first",
    "kafka.rows.sent", "kafka.marker.before", "kafka.marker.after", "kafka.commit.before",
    "kafka.commit.after", "kafka.task.end",
)  # fmt: skip
STAGE = ("kafka.stage.before", "kafka.stage.after")
DRIVER = ("kafka.driver.before", "kafka.driver.published", "kafka.driver.after")
MANIFEST = ("kafka.manifest.before", "kafka.manifest.after")
POINTS = (*TASK, *STAGE, *DRIVER, *MANIFEST)

#: Who is killed at a random time: a worker of tasks, the process that commits, all processes.
RANDOM_KILLS = ("worker", "committer", "all")
#: What the proxy does to the next request that commits.
PROXY = ("lose_reply", "cut_after", "cut_before", "hold")
#: A start has one of these besides the kills at points.
BESIDES = (*RANDOM_KILLS, "freeze", *PROXY, "worker", "freeze", "committer", "broker")
#: What the driver does in both modes, and tasks in one of them.
_PUBLISHING = TASK[1:9]
#: The first visits after a start are the driver's.
_VISITS = (0, 1, 3, 5, 7, 9)
#: Points at which a frozen attempt holds all, something, or nothing yet of its slice.
_FROZEN = (*TASK[:8], *STAGE)


@dataclass(frozen=True)
class Kill:
    """A fault at a point.

    Parameters
    ----------
    point : str
    after : int
        So many visits go by before.
    kind : str
        Of `dedup.testing.faults.KINDS`.
    """

    point: str
    after: int
    kind: str = "kill"


@dataclass(frozen=True)
class Start:
    """The query is started over some new micro-batches, and runs until they are done.

    Parameters
    ----------
    tasks : int
    batches : int
    kills : tuple of Kill
    besides : str
        One of `BESIDES`.
    at_s : float
        When that happens, where it is a matter of time.
    choice : int
        Which of several processes it is.
    """

    tasks: int
    batches: int
    kills: tuple[Kill, ...]
    besides: str
    at_s: float
    choice: int


@dataclass(frozen=True)
class Round:
    """One query, from its first start until all has fired and all input is done."""

    seed: int
    number: int
    mode: str
    starts: tuple[Start, ...]


def rounds(seed: int) -> Iterator[Round]:
    """Endlessly many rounds: two of mode `exactly-once`, then one of mode `atomic`.

    In three of them each point is armed at least twice, and `BESIDES` are taken in turns.
    """
    rng = random.Random(seed)
    besides, aside = _shuffled(rng, BESIDES), _shuffled(rng, (*STAGE, *DRIVER))
    for number in count():
        if number % 3 < 2:
            task = rng.sample(TASK, len(TASK))
            parts = [(*task[n::3], next(aside)) for n in range(3)]
            mode, batches = "exactly-once", 3
        else:
            mixed = [*MANIFEST, *MANIFEST, *STAGE, *DRIVER, *rng.sample(_PUBLISHING, 3)]
            rng.shuffle(mixed)
            parts = [tuple(mixed[n::4]) for n in range(4)]
            mode, batches = "atomic", 2
        starts = [_start(rng, mode, part, batches, next(besides)) for part in parts]
        yield Round(seed, number, mode, tuple(starts))


def _start(
    rng: random.Random, mode: str, points: tuple[str, ...], batches: int, besides: str
) -> Start:
    # Of what comes once in a start or two, no visit goes by.
    often = TASK if mode == "exactly-once" else ()
    kills = [Kill(point, rng.choice(_VISITS) if point in often else 0) for point in points]
    if besides == "freeze":
        point = rng.choice(_FROZEN if mode == "exactly-once" else (TASK[0], *STAGE))
        kills.append(Kill(point, rng.randint(0, 2), "freeze"))
    return Start(
        tasks=rng.randint(1, 4),
        batches=batches,
        kills=tuple(kills),
        besides=besides,
        at_s=rng.uniform(0.1, 2.0),
        choice=rng.randrange(100),
    )


def _shuffled(rng: random.Random, deck: tuple[str, ...]) -> Iterator[str]:
    while True:
        yield from rng.sample(deck, len(deck))
