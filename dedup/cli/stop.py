"""Turn Ctrl-C and SIGTERM into requests to stop."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dedup.cli.failures import INTERRUPTED


class StopRequest:
    """A request to stop that a signal handler can make.

    `threading.Event` could deadlock, because the handler interrupts the waiting thread, which may
    hold the event's lock.
    """

    def __init__(self) -> None:
        self._made = False
        # A signal handler may call `SimpleQueue.put`, because it is reentrant.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        return self._made

    def set(self) -> None:
        self._made = True
        self._wakes.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        if not self._made:
            with suppress(queue.Empty):
                self._wakes.get(timeout=timeout_s)
        return self._made


@contextmanager
def stop_on_signals(*, tidy: bool = False) -> Iterator[StopRequest]:
    """Turn the first Ctrl-C or SIGTERM into a request. A second signal ends the process at once.

    With `tidy`, a second signal raises KeyboardInterrupt instead, so that the terminal is restored.
    Do not use `tidy` with Spark, which may hang then.
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
