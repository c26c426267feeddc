"""`dedup watch`: read the metrics of queries repeatedly, and show them."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

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
from dedup.cli.watch_screen import STATUSES, WIDTH, fit, screen, waiting, worst
from dedup.errors import ConfigError
from dedup.spark.machine import wall_clock_ms
from dedup.tools.watch.endpoint import Endpoint
from dedup.tools.watch.query_log import LogFolder, QueryLog
from dedup.tools.watch.watched import Watched

#: Function that returns the queries, and why their figures may be outdated, else None.
Look = Callable[[], tuple[list[Watched], str | None]]
#: Longest time in seconds until the command notices a signal.
_STEP_S = 0.1


def watch(flags: WatchFlags) -> Done:
    look = looker(flags.where, flags.query)
    if flags.once or flags.as_json:
        return _once(look, as_json=flags.as_json)
    with stop_on_signals(tidy=True) as stop:
        follow(look, stop, every_s=flags.every, where=flags.where)
    return Done(OK, {})


def looker(where: str, query: str | None) -> Look:
    """Return a function that reads a folder of metrics logs, or a driver's endpoint.

    The returned function raises ConfigError as long as the folder or endpoint is missing, or does
    not show the query. `looker` itself raises ConfigError for a URL with a password.
    """
    is_url = where.lower().startswith(("http://", "https://"))
    endpoint = Endpoint(where) if is_url else None
    folders: dict[str, LogFolder] = {}

    def look() -> tuple[list[Watched], str | None]:
        now_ms = wall_clock_ms()
        if endpoint is not None:
            every, trouble = endpoint.look(now_ms), endpoint.trouble
        else:
            # Decide at every call, because a run that starts later creates its output only then.
            place = log_of(where)
            folder = folders.setdefault(place, LogFolder(place))
            logs = folder.look()
            chosen = [log for log in logs if log.query_id == query] or [*_in_use(logs)]
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


def _in_use(logs: Sequence[QueryLog]) -> Iterator[QueryLog]:
    """Yield all queries except those that a later query with the same name has replaced."""
    newest = {log.name: log for log in sorted(logs, key=lambda log: log.heard_ms or 0)}
    for log in logs:
        newer = newest[log.name]
        # If both queries run at the same time, the later one has not replaced the earlier one.
        silent = bool(newer.batches) and (log.heard_ms or 0) < newer.batches[0][0]
        if log.name is None or log is newer or (log.ended is None and not silent):
            yield log


def _once(look: Look, *, as_json: bool) -> Done:
    watched, trouble = look()
    if as_json and trouble is not None:
        say(trouble, as_error=True)
    console, status = Terminal(), worst(watched).health.status
    # Without a terminal the output is not limited to the lines of a screen.
    past, height = console.is_terminal, console.height if console.is_terminal else 1000
    lines = screen(watched, width=max(WIDTH, console.width), height=height, note=trouble, past=past)
    body = {"status": str(status), "queries": [one.to_json() for one in watched]}
    return Done(STATUSES[status][0], body, lines)


def follow(look: Look, stop: StopRequest, *, every_s: float, where: str) -> None:
    """Update the screen until the user quits. In a pipe, print a line for every new verdict."""
    console = Terminal()
    if not console.is_terminal or console.is_dumb_terminal:
        with while_read():
            _follow_plainly(look, stop, every_s)
        return
    # Open the keyboard first, because keys must be read until the screen is gone.
    with _keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        # Show what the command waits for, because an endpoint may be slow to answer.
        lines = waiting(f"for {where}", width=console.width)
        help_text = "Ctrl-C leaves" if keys is None else "q leaves, as Ctrl-C does"
        live.update(Group(*_with_help(lines, *console.size, help_text)), refresh=True)
        leaves = False
        while not leaves:
            width, height = console.size
            lines = _lines(look, width, height - 1)
            live.update(Group(*_with_help(lines, width, height, help_text)), refresh=True)
            leaves = _leaves(stop, keys, every_s)


def _lines(look: Look, width: int, height: int) -> list[Text]:
    try:
        watched, trouble = look()
    except ConfigError as error:
        return waiting(error.text, width=width)
    return screen(watched, width=width, height=height, note=trouble)


def _with_help(lines: list[Text], width: int, height: int, help_text: str) -> list[Text]:
    shown = fit(lines, width, max(1, height - 1))
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
            # Forget what was printed, so that verdicts are printed again after the trouble.
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


def _leaves(stop: StopRequest, keys: int | None, timeout_s: float) -> bool:
    """Wait for a request to stop or for the key `q`. Return False after `timeout_s` without one."""
    if keys is None:
        return stop.wait(timeout_s)
    end_s = time.monotonic() + timeout_s
    while not stop.is_set():
        left_s = end_s - time.monotonic()
        if select.select([keys], [], [], max(0.0, min(_STEP_S, left_s)))[0]:
            pressed = os.read(keys, 64)
            # If nothing can be read, the terminal is gone.
            if b"q" in pressed.lower() or not pressed:
                return True
        elif left_s <= 0:
            return False
    return True


@contextmanager
def _keys() -> Iterator[int | None]:
    """Yield stdin if it is a terminal, else None. The terminal returns every key at once.

    The context restores the terminal's mode at its end.
    """
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
        # A command in the background must not change the terminal.
        ours = os.tcgetpgrp(terminal) == os.getpgrp()
    except (AttributeError, OSError, ValueError, termios.error):
        ours = False
    if not ours:
        yield None
        return
    try:
        tty.setcbreak(terminal)
        yield terminal
    finally:
        with suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
