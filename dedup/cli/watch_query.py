"""`dedup watch`: where the figures come from, and how often they are looked at."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from dedup.cli.watch_screen import STATUSES, WIDTH, screen, worst
from dedup.core.watched import Watched
from dedup.errors import ConfigError
from dedup.monitor.metrics_log import read_logs

#: Gives every query as it is now.
Look = Callable[[], list[Watched]]


def looker(where: str, query: str | None) -> Look:
    """Return what looks at a folder of metrics logs, or at a Prometheus endpoint.

    Raises
    ------
    ConfigError
        On a look, when it is neither, or tells of no query, or not of that one.
    MissingExtraError
        For an endpoint, without prometheus-client.
    """
    look_at_all = _endpoint(where) if where.startswith(("http://", "https://")) else _folder(where)

    def look() -> list[Watched]:
        found = [
            one
            for one in look_at_all(time.time_ns() // 1_000_000)
            if query is None or query in (one.query_id, one.name)
        ]
        if not found:
            told = f"nothing of query {query}" if query else "of no query yet"
            raise ConfigError(
                f"{where} tells {told}: it begins with the first micro-batch after "
                'spark.streams.addListener(DedupListener(log="..."))'
            )
        return found

    return look


def _folder(where: str) -> Callable[[int], list[Watched]]:
    return lambda now_ms: [log.watched(now_ms) for log in read_logs(where)]


def _endpoint(where: str) -> Callable[[int], list[Watched]]:
    from dedup.monitor.scrape import Endpoint

    return Endpoint(where).look


def once(look: Look, *, as_json: bool) -> tuple[int, dict[str, Any]]:
    """Look once, print the screen unless JSON is wanted; the exit code is the worst verdict."""
    watched = look()
    status = worst(watched).health.status
    if not as_json:
        console = Console(width=max(WIDTH, Console().width))
        # What goes into a file need not fit a screen.
        for line in screen(watched, height=console.height if console.is_terminal else 1000):
            console.print(line, no_wrap=True)
    code, _ = STATUSES[status]
    return code, {"status": str(status), "queries": [one.to_json() for one in watched]}


def follow(look: Look, stop: Event, *, every_s: float) -> None:
    """Renew the screen until someone asks to stop; on a pipe, a line for every new verdict."""
    console = Console()
    if not console.is_terminal:
        _follow_plainly(look, stop, every_s)
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(Group(*screen(look(), height=console.height)), refresh=True)
            if stop.wait(every_s):
                return


def _follow_plainly(look: Look, stop: Event, every_s: float) -> None:
    said: dict[str, str] = {}
    while True:
        for one in look():
            line = f"{one.name or one.query_id} {one.health.status}: {one.health.reason}"
            if said.get(one.query_id) != one.health.status:
                said[one.query_id] = one.health.status
                print(time.strftime("%H:%M:%S"), line, flush=True)
        if stop.wait(every_s):
            return
