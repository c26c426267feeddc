"""Start a query again after a failure that a new start may overcome."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from dedup.errors import cause, restart_helps
from dedup.errors.cause import cause_of
from dedup.errors.redaction import without_secrets
from dedup.spark.driver.fail_query import error_of
from dedup.values.duration import duration_ms
from dedup.values.option import Kind, duration, number, whole

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("dedup")


class QueryFailure(NamedTuple):
    """A failure of a query. Both fields are in seconds, `at_s` by an arbitrary clock."""

    at_s: float
    #: Time from the start of the query to the failure.
    ran_s: float


#: Returns the seconds until the next start, given all failures so far, or None to give up.
Strategy: TypeAlias = Callable[[Sequence[QueryFailure]], float | None]


@dataclass(frozen=True)
class FixedDelay:
    """Restart strategy that waits the same time before each of a fixed number of new starts.

    Parameters
    ----------
    attempts : int, default 3
        Largest number of new starts in the life of the process.
    delay : str, default "10 seconds"
        Time from a failure to the next start.
    """

    attempts: int = 3
    delay: str = "10 seconds"

    def __post_init__(self) -> None:
        _check(self, attempts=whole(0), delay=duration())

    def __call__(self, failures: Sequence[QueryFailure]) -> float | None:
        return None if len(failures) > self.attempts else _seconds(self.delay)


@dataclass(frozen=True)
class ExponentialDelay:
    """Restart strategy whose delay grows from failure to failure, until the query runs well again.

    Parameters
    ----------
    initial, most : str, default "1 second" and "5 minutes"
        First and longest delay.
    factor : float, default 2.0
        Ratio of a delay to the delay before it, at least 1.
    attempts : int, default 12
        Largest number of new starts in a row. With the other defaults the last one is 23 minutes
        after the first failure.
    reset_after : str, default "1 hour"
        If the query runs for this time, the next failure counts as the first one.
    jitter : float, default 0.1
        Each delay is longer or shorter by a random part of up to this share, from 0 to 1, so that
        many queries do not return to a server at the same moment.
    """

    initial: str = "1 second"
    most: str = "5 minutes"
    factor: float = 2.0
    attempts: int = 12
    reset_after: str = "1 hour"
    jitter: float = 0.1

    def __post_init__(self) -> None:
        _check(
            self, initial=duration(), most=duration(), attempts=whole(0), reset_after=duration(),
            factor=number(lambda x: x >= 1, "of at least 1"),
            jitter=number(lambda x: 0 <= x <= 1, "from 0 to 1"),
        )  # fmt: skip

    def __call__(self, failures: Sequence[QueryFailure]) -> float | None:
        reset_s, most_s = _seconds(self.reset_after), _seconds(self.most)
        in_a_row = len(list(takewhile(lambda each: each.ran_s < reset_s, reversed(failures))))
        # The failure that ended a long run is the first of its row.
        in_a_row = min(in_a_row + 1, len(failures))
        if in_a_row > self.attempts:
            return None
        delay_s = _seconds(self.initial)
        for _ in range(in_a_row - 1):
            delay_s = min(delay_s * self.factor, most_s)
        return min(delay_s, most_s) * random.uniform(1 - self.jitter, 1 + self.jitter)


@dataclass(frozen=True)
class FailureRate:
    """Restart strategy that gives up if the query fails too often in an interval.

    Parameters
    ----------
    most : int, default 3
        Largest number of failures within `interval` after which the query starts again.
    interval : str, default "10 minutes"
        Time in which failures are counted.
    delay : str, default "10 seconds"
        Time from a failure to the next start.
    """

    most: int = 3
    interval: str = "10 minutes"
    delay: str = "10 seconds"

    def __post_init__(self) -> None:
        _check(self, most=whole(0), interval=duration(), delay=duration())

    def __call__(self, failures: Sequence[QueryFailure]) -> float | None:
        since_s = failures[-1].at_s - _seconds(self.interval)
        count = sum(each.at_s > since_s for each in failures)
        return None if count > self.most else _seconds(self.delay)


def run_with_restarts(
    start: Callable[[], StreamingQuery],
    strategy: Strategy | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> StreamingQuery:
    """Run a query to its end, and start it again after failures that may pass.

    Parameters
    ----------
    start : callable
        Defines and starts the query, and returns it. It is called for every start, always with the
        same checkpoint.
    strategy : callable, optional
        `ExponentialDelay`, the default with its defaults, `FixedDelay` or `FailureRate`. Or a
        function of yours: it gets the list of all failures so far, and returns the seconds until
        the next start, or None to give up.
    clock, sleep : callable
        Functions that return a time in seconds and wait for some seconds, for tests.

    Returns
    -------
    StreamingQuery
        The query, after it was stopped, or had read everything with the trigger ``availableNow``.

    Raises
    ------
    DedupError
        The error of this package that a new start does not overcome, as `dedup.errors.cause`
        returns it; or the last error, if the strategy gives up.
    Exception
        The last error, if it is not of this package, and the strategy gives up or the Java process
        of Spark has ended. Only a new process helps then.

    Notes
    -----
    Every failure is logged as a warning of the logger ``dedup``, with its cause and the delay.
    """
    strategy = ExponentialDelay() if strategy is None else strategy
    failures: list[QueryFailure] = []
    while True:
        begun_s = clock()
        try:
            query = start()
            query.awaitTermination()
            if (error_after_stop := error_of(query)) is not None:
                raise error_after_stop
        except Exception as error:
            failed_s = clock()
            failures.append(QueryFailure(failed_s, failed_s - begun_s))
            ours = cause(error)
            may_pass = restart_helps(error) and not _java_has_ended()
            delay_s = strategy(failures) if may_pass else None
            if delay_s is None:
                raised = ours or error
                raised.add_note(f"The query was started {len(failures)} times in this process.")
                if raised is error:
                    raise
                raise raised from error
            why = f"{type(ours).__name__}: {ours.text}" if ours else cause_of(str(error))
            logger.warning(
                "The query has failed, and starts again in %.0f s (failure %d in this process): %s",
                delay_s, len(failures), without_secrets(why, {}),
            )  # fmt: skip
        else:
            return query
        sleep(delay_s)


def _java_has_ended() -> bool:
    """Return whether the Java process has ended that this process started for Spark."""
    import pyspark

    # The client package of Spark Connect has no SparkContext.
    gateway = getattr(getattr(pyspark, "SparkContext", None), "_gateway", None)
    java = getattr(gateway, "proc", None)
    return java is not None and java.poll() is not None


def _check(strategy: Strategy, **kinds: Kind) -> None:
    for name, kind in kinds.items():
        kind.check(getattr(strategy, name), name)


def _seconds(text: str) -> float:
    return duration_ms(text, option="duration") / 1000
