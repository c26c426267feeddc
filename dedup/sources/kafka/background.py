"""Work for a listener that must not wait: the newest job of each kind, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger("dedup")


class Newest:
    """Runs jobs one after another; one that has not begun gives way to a newer one.

    An exception in a job is logged and goes no further.

    Parameters
    ----------
    name : str
        Of the thread, and of the work in the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._change = threading.Condition()
        self._job: Callable[[], None] | None = None
        self._running = False
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job soon, in place of one that has not begun."""
        with self._change:
            self._job = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._change.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Wait until all is done; return whether it is."""
        with self._change:
            return self._change.wait_for(lambda: self._job is None and not self._running, timeout_s)

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._job is not None)
                job, self._job, self._running = self._job, None, True
            try:
                if job is not None:
                    job()
            except Exception as error:
                logger.warning("%s: %s", self._name, error)
            finally:
                with self._change:
                    self._running = False
                    self._change.notify_all()
