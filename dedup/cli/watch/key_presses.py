"""Keys that are pressed while a screen is shown."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dedup.cli.stop import StopRequest

#: A signal is noticed so much later, at most.
_STEP_S = 0.1


class KeyPresses:
    """What leaves the screen: a request to stop, or the key `q` where keys can be read.

    Parameters
    ----------
    stop : StopRequest
        The request.
    descriptor : int or None
        Of a terminal that gives each key at once, None where there is none.
    """

    def __init__(self, stop: StopRequest, descriptor: int | None) -> None:
        self._stop, self._descriptor = stop, descriptor

    @property
    def help(self) -> str:
        """What to press."""
        return "Ctrl-C leaves" if self._descriptor is None else "q leaves, as Ctrl-C does"

    def leave(self, timeout_s: float) -> bool:
        """Wait, and return whether to leave; at once where that is asked for."""
        if self._descriptor is None:
            return self._stop.wait(timeout_s)
        end_s = time.monotonic() + timeout_s
        while not self._stop.is_set():
            left_s = end_s - time.monotonic()
            if select.select([self._descriptor], [], [], max(0.0, min(_STEP_S, left_s)))[0]:
                pressed = os.read(self._descriptor, 64)
                if b"q" in pressed.lower():
                    return True
                if not pressed:  # the terminal is gone
                    self._descriptor = None
                    return self._stop.wait(max(0.0, left_s))
            elif left_s <= 0:
                return False
        return True


@contextmanager
def keys(stop: StopRequest) -> Iterator[KeyPresses]:
    """Read keys from the terminal, where stdin is one, and leave it as it was."""
    try:
        import termios
        import tty

        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
        # A command in the background may not change the terminal.
        ours = os.tcgetpgrp(descriptor) == os.getpgrp()
    except (ImportError, AttributeError, OSError, ValueError, termios.error):
        ours = False
    if not ours:
        yield KeyPresses(stop, None)
        return
    try:
        tty.setcbreak(descriptor)
        yield KeyPresses(stop, descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
