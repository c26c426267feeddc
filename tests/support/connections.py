"""Ends the connections that the sinks into databases keep in this process."""

from __future__ import annotations

from dedup.sinks.kit.database import _free, close


def forget_connections() -> None:
    """End the free connections, so that the next transaction opens a new one."""
    while _free:
        for connection in _free.popitem()[1]:
            close(connection)
