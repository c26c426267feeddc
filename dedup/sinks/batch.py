"""The identity of a micro-batch for one sink."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import asdict, dataclass

from dedup.sinks.content import Content
from dedup.sinks.marker import Marker


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The identity of a micro-batch for one sink, in one run of a query."""

    query_id: str
    sink: str
    run_id: str
    batch_id: int
    writer: str = ""
    time_ms: int = 0

    def marker(self, slot: int, content: Content, tasks: int | None = None) -> Marker:
        return Marker(
            slot=slot, rows=content.rows, content=content.hash, tasks=tasks, **asdict(self)
        )


def new_batch(query_id: str, name: str, run_id: str, batch_id: int) -> Batch:
    """Return the identity of a micro-batch, with this process as its writer."""
    return Batch(
        query_id=query_id,
        sink=name,
        run_id=run_id,
        batch_id=batch_id,
        writer=this_process(),
        time_ms=int(time.time() * 1000),
    )


def this_process() -> str:
    """Return the host and number of this process, for people."""
    return f"{socket.gethostname()}:{os.getpid()}"
