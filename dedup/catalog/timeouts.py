"""The first contact with a storage: reported when slow, given up in time, open to Ctrl-C."""

from __future__ import annotations

import atexit
import logging
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

from dedup.catalog.root import Root
from dedup.errors import CatalogError

logger = logging.getLogger("dedup")
T = TypeVar("T")

#: A storage that answers at all does so within this time, new credentials included.
DEADLINE_S = 60.0
#: After so long a message says what is waited for.
TELL_AFTER_S = 5.0

#: Threads whose answer nobody awaits any more.
_given_up: list[threading.Thread] = []


def reach(
    root: Root,
    ask: Callable[[], T],
    *,
    deadline_s: float = DEADLINE_S,
    tell_s: float = TELL_AFTER_S,
) -> T:
    """Return what a first question to a catalog's storage gives.

    A storage client is deaf to Ctrl-C while it waits, and some try again for a quarter of an hour.
    So the question is asked in a thread of its own.

    Parameters
    ----------
    root : Root
        Whom the question goes to; named in what is logged and raised.
    ask : callable
        Without parameters. It may go on after this has returned, but does no harm then.
    deadline_s, tell_s : float
        When to give up, and when to log what is waited for, in seconds; the second is smaller.

    Raises
    ------
    CatalogError
        When there is no answer in time.
    Exception
        Whatever `ask` raises.
    """
    places: list[str] = []
    answers: list[T] = []
    errors: list[BaseException] = []
    answered = threading.Event()

    def work() -> None:
        try:
            places.append(root.url())  # calls a function given as catalog, which may wait too
            answers.append(ask())
        except BaseException as error:
            errors.append(error)
        finally:
            answered.set()

    thread = threading.Thread(target=work, name="dedup-first-contact", daemon=True)
    try:
        thread.start()
        if not answered.wait(tell_s):
            place = places[0] if places else "the function given as catalog"
            logger.warning("dedup waits for %s to answer, for %g s at most", place, deadline_s)
            answered.wait(deadline_s - tell_s)
    finally:
        if not answered.is_set():
            _give_up(thread)
    if errors:
        raise errors[0]
    if not answers:
        raise CatalogError(
            f"{place} has not answered within {deadline_s:g} seconds; check its name, the network "
            "and the credentials, then start again",
            remedy="storage",
        )
    return answers[0]


def is_waiting() -> bool:
    """Return whether a thread of this process still waits for a storage that was given up."""
    return any(thread.is_alive() for thread in _given_up)


def _give_up(thread: threading.Thread) -> None:
    """Leave a thread to itself.

    When the process ends, pyarrow waits until the requests that it has sent to S3 have failed for
    good: then Ctrl-C must work without Python. A Ctrl-C that comes at the very moment of the call
    makes it raise in place of doing its work, so it is called twice.
    """
    if not _given_up:
        for _ in range(2):
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)
    _given_up.append(thread)
