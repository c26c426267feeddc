"""`dedup watch`: where the figures come from, and how often they are looked at."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from dedup.cli.printing import say, while_read
from dedup.cli.run.output_folder import log_of
from dedup.cli.stop import StopRequest
from dedup.cli.terminal import Terminal
from dedup.cli.watch.figure_line import WIDTH
from dedup.cli.watch.key_presses import keys
from dedup.cli.watch.screen import STATUSES, fit, is_large_enough, screen, waiting, worst
from dedup.errors import ConfigError
from dedup.spark.machine import wall_clock_ms
from dedup.tools.watch.endpoint import Endpoint
from dedup.tools.watch.query_log import LogFolder, QueryLog
from dedup.tools.watch.watched import Watched

#: Gives every query as it is now, and why that is not news, None where it is.
Look = Callable[[], tuple[list[Watched], str | None]]


def looker(where: str, query: str | None) -> Look:
    """Return what looks at a folder of metrics logs, or at a driver's endpoint.

    Raises
    ------
    ConfigError
        On a look, when it is neither, or tells of no query, or not of that one, as yet; at once
        for a URL with a password.
    """
    is_url = where.lower().startswith(("http://", "https://"))
    look_at_all = _endpoint(where) if is_url else _folder(where, query)

    def look() -> tuple[list[Watched], str | None]:
        watched, trouble = look_at_all(wall_clock_ms())
        found = [one for one in watched if query is None or query in (one.query_id, one.name)]
        if not found:
            subject = f"nothing of query {query}" if query else "of no query yet"
            raise ConfigError(
                f"{where} tells {subject}: `dedup run`, or a query with a DedupListener, appears "
                "with its first micro-batch; one that failed before that is in the driver's log "
                f"alone{f'. {trouble}' if trouble else ''}"
            )
        return found, trouble

    return look


def _folder(where: str, query: str | None) -> Callable[[int], tuple[list[Watched], str | None]]:
    folders: dict[str, LogFolder] = {}

    def look(now_ms: int) -> tuple[list[Watched], str | None]:
        # A run that begins meanwhile makes its output only now.
        log = log_of(where)
        folder = folders.setdefault(log, LogFolder(log))
        logs = folder.look()
        asked = [log for log in logs if log.query_id == query] or _in_use(logs)
        return [log.watched(now_ms) for log in asked], folder.trouble

    return look


def _in_use(logs: Iterable[QueryLog]) -> list[QueryLog]:
    """All but those whose query was replaced by one of the same name, with a new checkpoint."""
    newest: dict[str, QueryLog] = {}
    for log in sorted(logs, key=_heard_ms):
        if log.name is not None:
            newest[log.name] = log
    return [log for log in logs if log.name is None or not _replaced(log, newest[log.name])]


def _replaced(log: QueryLog, newer: QueryLog) -> bool:
    if log is newer:
        return False
    # Two that run at the same time are both shown, whatever their names.
    return log.ended is not None or (bool(newer.batches) and _heard_ms(log) < newer.batches[0][0])


def _heard_ms(log: QueryLog) -> int:
    return log.heard_ms or 0


def _endpoint(where: str) -> Callable[[int], tuple[list[Watched], str | None]]:
    endpoint = Endpoint(where)
    return lambda now_ms: (endpoint.look(now_ms), endpoint.trouble)


def once(look: Look, *, as_json: bool) -> tuple[int, dict[str, Any]]:
    """Look once, print the screen unless JSON is wanted; the exit code is the worst verdict."""
    watched, trouble = look()
    status = worst(watched).health.status
    if not as_json:
        console = Terminal(width=max(WIDTH, Terminal().width))
        # What goes into a file need not fit a screen.
        height = console.height if console.is_terminal else 1000
        with while_read():
            # The console itself would leave with an exit code of its own.
            with console.capture() as printed:
                past, width = console.is_terminal, console.width
                for line in screen(watched, width=width, height=height, note=trouble, past=past):
                    console.print(line, no_wrap=True)
            sys.stdout.write(printed.get())
    elif trouble is not None:
        say(trouble, as_error=True)
    code, _ = STATUSES[status]
    return code, {"status": str(status), "queries": [one.to_json() for one in watched]}


def follow(look: Look, stop: StopRequest, *, every_s: float, where: str) -> None:
    """Renew the screen until someone asks to stop; on a pipe, a line for every new verdict.

    What is not there yet, or for a while, is waited for.
    """
    console = Terminal()
    if not console.is_terminal or console.is_dumb_terminal:
        with while_read():
            _follow_plainly(look, stop, every_s)
        return
    # Keys first: they are read until the screen is gone.
    with keys(stop) as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        # An endpoint may take its time to answer.
        first = waiting(f"for {where}", width=console.width)
        live.update(Group(*_with_keys(first, *console.size, pressed.help)), refresh=True)
        while True:
            width, height = console.size
            lines = _lines(look, width, height - 1)
            live.update(Group(*_with_keys(lines, width, height, pressed.help)), refresh=True)
            if pressed.leave(every_s):
                return


def _lines(look: Look, width: int, height: int) -> list[Text]:
    try:
        watched, trouble = look()
    except ConfigError as error:
        return waiting(error.text, width=width)
    return screen(watched, width=width, height=height, note=trouble)


def _with_keys(lines: list[Text], width: int, height: int, help_text: str) -> list[Text]:
    if not is_large_enough(width, height - 1):
        return fit(lines, width, height)
    shown = fit(lines, width, height - 1)
    below = [Text()] * (height - 1 - len(shown))
    return [*shown, *below, Text(help_text, style="dim")]


def _follow_plainly(look: Look, stop: StopRequest, every_s: float) -> None:
    said: dict[str, str] = {}
    before: str | None = None
    while True:
        try:
            watched, trouble = look()
        except ConfigError as error:
            watched, trouble = [], f"waiting: {error.text}"
        if trouble != before:
            # When it has gone, the verdicts are told once more.
            said, before = {}, trouble
            if trouble is not None:
                _say(trouble)
        for one in watched:
            if said.get(one.query_id) != one.health.status:
                said[one.query_id] = one.health.status
                _say(f"{one.name or one.query_id} {one.health.status}: {one.health.reason}")
        if stop.wait(every_s):
            return


def _say(line: str) -> None:
    say(f"{time.strftime('%H:%M:%S')} {line}")
    sys.stdout.flush()
