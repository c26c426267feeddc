"""`dedup watch`: where the figures come from, and how often they are looked at."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from dedup.cli.watch_screen import STATUSES, WIDTH, screen, waiting, worst
from dedup.core.watched import Watched
from dedup.errors import ConfigError
from dedup.machine import wall_clock_ms
from dedup.monitor.metrics_log import read_logs

#: Gives every query as it is now, and why that is not news, None where it is.
Look = Callable[[], tuple[list[Watched], str | None]]


def looker(where: str, query: str | None) -> Look:
    """Return what looks at a folder of metrics logs, or at a Prometheus endpoint.

    Raises
    ------
    ConfigError
        On a look, when it is neither, or tells of no query, or not of that one, as yet.
    MissingExtraError
        For an endpoint, without prometheus-client.
    """
    look_at_all = _endpoint(where) if where.startswith(("http://", "https://")) else _folder(where)

    def look() -> tuple[list[Watched], str | None]:
        watched, trouble = look_at_all(wall_clock_ms())
        found = [one for one in watched if query is None or query in (one.query_id, one.name)]
        if not found:
            told = f"nothing of query {query}" if query else "of no query yet"
            raise ConfigError(
                f"{where} tells {told}: it begins with the first micro-batch after "
                "spark.streams.addListener(DedupListener(...))"
            )
        return found, trouble

    return look


def _folder(where: str) -> Callable[[int], tuple[list[Watched], str | None]]:
    return lambda now_ms: ([log.watched(now_ms) for log in read_logs(where)], None)


def _endpoint(where: str) -> Callable[[int], tuple[list[Watched], str | None]]:
    from dedup.monitor.scrape import Endpoint

    endpoint = Endpoint(where)
    return lambda now_ms: (endpoint.look(now_ms), endpoint.trouble)


def once(look: Look, *, as_json: bool) -> tuple[int, dict[str, Any]]:
    """Look once, print the screen unless JSON is wanted; the exit code is the worst verdict."""
    watched, _ = look()
    status = worst(watched).health.status
    if not as_json:
        console = Console(width=max(WIDTH, Console().width))
        # What goes into a file need not fit a screen.
        for line in screen(watched, height=console.height if console.is_terminal else 1000):
            console.print(line, no_wrap=True)
    code, _ = STATUSES[status]
    return code, {"status": str(status), "queries": [one.to_json() for one in watched]}


def follow(look: Look, stop: Event, *, every_s: float) -> None:
    """Renew the screen until someone asks to stop; on a pipe, a line for every new verdict.

    What is not there yet, or for a while, is waited for.
    """
    console = Console()
    if not console.is_terminal:
        _follow_plainly(look, stop, every_s)
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(Group(*_lines(look, console.height)), refresh=True)
            if stop.wait(every_s):
                return


def _lines(look: Look, height: int) -> list[Text]:
    try:
        watched, trouble = look()
    except ConfigError as error:
        return waiting(error.text)
    return screen(watched, height=height, note=trouble)


def _follow_plainly(look: Look, stop: Event, every_s: float) -> None:
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
    print(time.strftime("%H:%M:%S"), line, flush=True)
