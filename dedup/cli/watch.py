"""`dedup watch`: read the figures of queries again and again, and show them."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.text import Text

from dedup.cli.commands import Done
from dedup.cli.failures import OK
from dedup.cli.flags import WatchFlags
from dedup.cli.printing import say, while_read
from dedup.cli.run.record import log_of
from dedup.cli.stop import StopRequest, stop_on_signals
from dedup.cli.terminal import Terminal
from dedup.cli.watch_screen import STATUSES, WIDTH, fit, is_large_enough, screen, waiting, worst
from dedup.errors import ConfigError
from dedup.spark.machine import wall_clock_ms
from dedup.tools.watch.endpoint import Endpoint
from dedup.tools.watch.query_log import LogFolder, QueryLog
from dedup.tools.watch.watched import Watched

#: Returns the queries, and why their figures may be outdated, or None.
Look = Callable[[], tuple[list[Watched], str | None]]
#: Most seconds until a signal is noticed.
_STEP_S = 0.1


def watch(flags: WatchFlags) -> Done:
    """Show the screen until someone leaves, or once."""
    look = looker(flags.where, flags.query)
    if flags.once or flags.as_json:
        return _once(look, as_json=flags.as_json)
    with stop_on_signals(tidy=True) as stop:
        follow(look, stop, every_s=flags.every, where=flags.where)
    return Done(OK, {})


def looker(where: str, query: str | None) -> Look:
    """Return a function that reads a folder of metrics logs, or a driver's endpoint.

    The function raises ConfigError while there is neither, or while it does not show the query.
    A URL with a password raises it at once.
    """
    is_url = where.lower().startswith(("http://", "https://"))
    endpoint = Endpoint(where) if is_url else None
    folders: dict[str, LogFolder] = {}

    def look() -> tuple[list[Watched], str | None]:
        now_ms = wall_clock_ms()
        if endpoint is not None:
            every, trouble = endpoint.look(now_ms), endpoint.trouble
        else:
            # A run that starts later creates its output only then.
            place = log_of(where)
            folder = folders.setdefault(place, LogFolder(place))
            logs = folder.look()
            chosen = [log for log in logs if log.query_id == query] or _in_use(logs)
            every, trouble = [log.watched(now_ms) for log in chosen], folder.trouble
        watched = [one for one in every if query is None or query in (one.query_id, one.name)]
        if not watched:
            raise ConfigError(
                f"{where} does not show {f'query {query}' if query else 'any query yet'}: "
                "`dedup run`, or a query with a DedupListener, appears with its first micro-batch. "
                "If it failed before that, see the driver's log."
                f"{f' {trouble}' if trouble else ''}"
            )
        return watched, trouble

    return look


def _in_use(logs: Iterable[QueryLog]) -> list[QueryLog]:
    """Omit queries that another one of the same name replaced, with a new checkpoint."""
    newest = {log.name: log for log in sorted(logs, key=_heard_ms)}
    return [log for log in logs if log.name is None or not _replaced(log, newest[log.name])]


def _replaced(log: QueryLog, newer: QueryLog) -> bool:
    if log is newer:
        return False
    # Show both of two that run at the same time.
    return log.ended is not None or (bool(newer.batches) and _heard_ms(log) < newer.batches[0][0])


def _heard_ms(log: QueryLog) -> int:
    return log.heard_ms or 0


def _once(look: Look, *, as_json: bool) -> Done:
    """Look once; the exit code is the worst verdict."""
    watched, trouble = look()
    if as_json and trouble is not None:
        say(trouble, as_error=True)
    console, status = Terminal(), worst(watched).health.status
    # A file takes more lines than a screen.
    past, height = console.is_terminal, console.height if console.is_terminal else 1000
    lines = screen(watched, width=max(WIDTH, console.width), height=height, note=trouble, past=past)
    body = {"status": str(status), "queries": [one.to_json() for one in watched]}
    return Done(STATUSES[status][0], body, lines)


def follow(look: Look, stop: StopRequest, *, every_s: float, where: str) -> None:
    """Update the screen until someone leaves; on a pipe, print a line for every new verdict."""
    console = Terminal()
    if not console.is_terminal or console.is_dumb_terminal:
        with while_read():
            _follow_plainly(look, stop, every_s)
        return
    # Keys first: they must be read until the screen is gone.
    with _keys(stop) as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        # An endpoint may be slow to answer.
        lines = waiting(f"for {where}", width=console.width)
        live.update(Group(*_with_help(lines, *console.size, keys.help)), refresh=True)
        while True:
            width, height = console.size
            lines = _lines(look, width, height - 1)
            live.update(Group(*_with_help(lines, width, height, keys.help)), refresh=True)
            if keys.leave(every_s):
                return


def _lines(look: Look, width: int, height: int) -> list[Text]:
    try:
        watched, trouble = look()
    except ConfigError as error:
        return waiting(error.text, width=width)
    return screen(watched, width=width, height=height, note=trouble)


def _with_help(lines: list[Text], width: int, height: int, help_text: str) -> list[Text]:
    if not is_large_enough(width, height - 1):
        return fit(lines, width, height)
    shown = fit(lines, width, height - 1)
    below = [Text()] * (height - 1 - len(shown))
    return [*shown, *below, Text(help_text, style="dim")]


def _follow_plainly(look: Look, stop: StopRequest, every_s: float) -> None:
    printed: dict[str, str] = {}
    before: str | None = None
    while True:
        try:
            watched, trouble = look()
        except ConfigError as error:
            watched, trouble = [], f"waiting: {error.text}"
        if trouble != before:
            # When the trouble is over, print the verdicts once more.
            printed, before = {}, trouble
            if trouble is not None:
                _say(trouble)
        for one in watched:
            if printed.get(one.query_id) != one.health.status:
                printed[one.query_id] = one.health.status
                _say(f"{one.name or one.query_id} {one.health.status}: {one.health.reason}")
        if stop.wait(every_s):
            return


def _say(line: str) -> None:
    say(f"{time.strftime('%H:%M:%S')} {line}")
    sys.stdout.flush()


class _Keys:
    """Waits for a request to stop, or for the key `q` of a terminal that returns each key."""

    def __init__(self, stop: StopRequest, terminal: int | None) -> None:
        self._stop, self._terminal = stop, terminal

    @property
    def help(self) -> str:
        return "Ctrl-C leaves" if self._terminal is None else "q leaves, as Ctrl-C does"

    def leave(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s`, and return whether to leave."""
        if self._terminal is None:
            return self._stop.wait(timeout_s)
        end_s = time.monotonic() + timeout_s
        while not self._stop.is_set():
            left_s = end_s - time.monotonic()
            if select.select([self._terminal], [], [], max(0.0, min(_STEP_S, left_s)))[0]:
                pressed = os.read(self._terminal, 64)
                if b"q" in pressed.lower():
                    return True
                if not pressed:  # the terminal is gone
                    self._terminal = None
                    return self._stop.wait(max(0.0, left_s))
            elif left_s <= 0:
                return False
        return True


@contextmanager
def _keys(stop: StopRequest) -> Iterator[_Keys]:
    """Read keys if stdin is a terminal, and restore its mode."""
    try:
        import termios
        import tty

        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
        # A command in the background must not change the terminal.
        ours = os.tcgetpgrp(terminal) == os.getpgrp()
    except (ImportError, AttributeError, OSError, ValueError, termios.error):
        ours = False
    if not ours:
        yield _Keys(stop, None)
        return
    try:
        tty.setcbreak(terminal)
        yield _Keys(stop, terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
