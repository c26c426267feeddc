"""Ctrl-C and SIGTERM: a request to stop."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dedup.cli.failures import INTERRUPTED


class StopRequest:
    """A request to stop that a signal handler may make.

    `threading.Event` is none: a handler runs in the thread that waits, and would wait for ever
    for the lock that this very thread holds for a moment.
    """

    def __init__(self) -> None:
        self._made = False
        # Its put may interrupt any other call of it, says Python's manual.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        """Return whether it was made."""
        return self._made

    def set(self) -> None:
        """Make it."""
        self._made = True
        self._wakes.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for it, and return whether it was made."""
        if not self._made:
            with suppress(queue.Empty):
                self._wakes.get(timeout=timeout_s)
        return self._made


@contextmanager
def stop_on_signals(*, tidy: bool = False) -> Iterator[StopRequest]:
    """Turn the first Ctrl-C (or SIGTERM) into a request, the second into the end.

    Parameters
    ----------
    tidy : bool
        The second is a KeyboardInterrupt, so that the terminal is left in order. Default: the
        process ends at once, since Spark may hang.
    """
    stop = StopRequest()

    def ask(number: int, frame: Any) -> None:
        if stop.is_set() and tidy:
            raise KeyboardInterrupt
        if stop.is_set():
            os._exit(INTERRUPTED)
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
