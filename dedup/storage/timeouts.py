"""Make the first request to a storage: report a slow answer, give up in time, and obey Ctrl-C."""

from __future__ import annotations

import atexit
import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from dedup.errors import CatalogError
from dedup.storage.root import Root

logger = logging.getLogger("dedup")
T = TypeVar("T")

#: Time within which a working storage answers, even if it needs new credentials.
DEADLINE_S = 60.0
#: Time after which a message says which storage has not answered yet.
WARN_AFTER_S = 5.0

#: Threads whose result nobody needs any more.
_given_up: list[threading.Thread] = []


def reach(
    root: Root,
    ask: Callable[[], T],
    *,
    deadline_s: float = DEADLINE_S,
    warn_after_s: float = WARN_AFTER_S,
) -> T:
    """Return ``ask()``, the first request to a catalog's storage, or raise its error.

    A storage client ignores Ctrl-C while it waits, and some clients retry for a quarter of an hour.
    So the request runs in a separate thread. The thread may continue after this function has
    returned, and ``ask`` must do no harm then.

    Logs a message if the answer is slow. Raises CatalogError if the deadline passes.
    """
    places: list[str] = []
    answer: Future[T] = Future()

    def work() -> None:
        try:
            places.append(root.url())  # calls the catalog function, which may wait too
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    thread = threading.Thread(target=work, name="dedup-first-contact", daemon=True)
    try:
        thread.start()
        if not wait([answer], warn_after_s).done:
            place = places[0] if places else "the function given as catalog"
            logger.warning("dedup waits for %s to answer, for %g s at most", place, deadline_s)
            wait([answer], deadline_s - warn_after_s)
    finally:
        if not answer.done():
            _give_up(thread)
    if not answer.done():
        raise CatalogError(
            f"{place} has not answered within {deadline_s:g} seconds. Check its name, the network "
            "and the credentials, then start again.",
            remedy="storage",
        )
    return answer.result()


def is_waiting() -> bool:
    """Return whether an abandoned thread of this process still waits for its storage."""
    return any(thread.is_alive() for thread in _given_up)


def _give_up(thread: threading.Thread) -> None:
    """Abandon a thread.

    When the process ends, pyarrow waits until its requests to S3 have failed for good. Ctrl-C must
    end the process even then, when Python no longer runs. If Ctrl-C interrupts `atexit.register`,
    the call raises and does not register. That is why a second call follows.
    """
    if not _given_up:
        for _ in range(2):
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)
    _given_up.append(thread)
