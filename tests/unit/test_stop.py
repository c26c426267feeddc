"""A request to stop that a signal handler makes in the thread that waits for it."""

from __future__ import annotations

import re
import threading
import time

import pytest

from dedup.cli.failures import INTERRUPTED
from dedup.cli.stop import StopRequest
from tests.support.processes import python

# Each signal interrupts the wait at its next line: in the midst of what holds a lock, too.
_SIGNALS = """
import signal, sys
from dedup.cli.stop import stop_on_signals

last = 0
while True:
    with stop_on_signals(tidy=True) as stop:
        lines = 0

        def trace(frame, event, argument):
            global lines
            lines += 1
            if lines == last + 1:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
            return trace

        sys.settrace(trace)
        stop.wait(0.01)
        sys.settrace(None)
        if lines <= last:
            break
        assert stop.wait(60) and stop.is_set()
        last += 1
print(f"{last} signals were heard")
"""

_TWICE = """
import signal, sys
from dedup.cli.stop import stop_on_signals

try:
    with stop_on_signals(tidy=sys.argv[1] == "tidy") as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
        signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_may_come_at_any_moment_of_a_wait() -> None:
    told = python("-c", _SIGNALS)
    heard = re.fullmatch(r"(\d+) signals were heard\n", told.stdout)
    assert heard, told.stderr
    assert int(heard[1]) >= 5


@pytest.mark.parametrize(("how", "code", "told"), [("tidy", 0, "interrupted\n"), ("", 130, "")])
def test_the_second_signal_ends_the_process(how: str, code: int, told: str) -> None:
    assert INTERRUPTED == 130
    ended = python("-c", _TWICE, how)
    assert (ended.returncode, ended.stdout) == (code, told)


def test_a_wait_ends_with_the_request_or_with_its_time() -> None:
    stop = StopRequest()
    begun = time.monotonic()
    assert not stop.wait(0.05)
    assert time.monotonic() - begun >= 0.05
    threading.Timer(0.05, stop.set).start()
    assert stop.wait(60)
    assert stop.wait(0), "it stays made"
