"""Faults against sinks into a real Redis server, again and again, from a seed, without a Spark.

    python -m tests.redis.campaign --each 30 --seed 1 --results tests/redis/results/kills.json

Besides the faults of tests/support/sink_campaign.py, the server crashes and comes back, and rows
and answers are lost, cut off or late. At the end every row must be there: exactly once if the sink
uses keys or versions, and otherwise once, and at most once more for each report.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before `dedup.errors.faults` reads it
    os.environ["DEDUP_FAULTS"] = tempfile.mkdtemp(prefix="dedup-redis-faults-")

from dedup.sinks.work import TaskResult
from dedup.testing.sinks import SinkHarness
from tests.redis.server import Server, missing
from tests.redis.sinks import RedisHarness, orders, rows
from tests.support.proxy import Harm, Proxy
from tests.support.sink_campaign import (
    WRITE_AHEAD,
    Campaign,
    Round,
    Worker,
    due,
    reported,
    run_campaign,
    send_named,
    without_reported,
)

MODES: dict[str, dict[str, str]] = {
    kind: {"kind": kind} for kind in ("newest", "stream", "key", "list")
}
HARMS = (Harm.CUT_BEFORE, Harm.CUT_AFTER, Harm.LOSE_REPLY, Harm.HOLD)


def writes(frame: bytes) -> bool:
    """Return whether a client writes rows with these bytes."""
    commands = (b"EVAL", b"SET\r\n", b"RPUSH")
    return any(command in frame.upper() for command in commands)


class RedisCampaign(Campaign):
    """A query over a server."""

    def __init__(self, server: Server, seed: int, before: Counter[str]) -> None:
        super().__init__(seed, MODES, before)
        self._server, self._kind = server, self.result.mode
        self._proxy: Proxy
        self._folder_of_query: Path

    def run(self) -> Round:
        """Run it to its end and judge it."""
        with self._server.client() as client:
            client.flushall()
        with (
            Proxy(self._server.port) as self._proxy,
            tempfile.TemporaryDirectory(prefix="dedup-redis-ledger-") as folder,
        ):
            self._folder_of_query = Path(folder)
            done = self.go()
            with self._server.client() as client:
                self._judge(orders(client, self._kind), done)
            return self.end()

    @property
    def _reports(self) -> Path:
        return self._folder_of_query / "reports"

    def points(self) -> tuple[str, ...]:
        """Where faults are armed."""
        return WRITE_AHEAD

    def worker(self) -> Worker:
        """A new process."""
        url, folder = self._server.url(self._proxy.port), self._folder_of_query / "checkpoint"
        return Worker(partial(RedisHarness, self._kind, url, folder, reports=self._reports))

    @staticmethod
    def part(sink: SinkHarness, run_id: str, batch_id: int, slot: int, tasks: int) -> TaskResult:
        """The same with rows that name their micro-batch."""
        return send_named(sink, rows, run_id, batch_id, slot, tasks)

    def around_a_batch(self) -> AbstractContextManager[None]:
        """Harm a request now and then."""
        if self.rng.random() > 0.4:
            return nullcontext()
        harm, after = self.rng.choice(HARMS), self.rng.randint(0, 4)
        return self.harmed(self._proxy, self._proxy.strike(harm, writes, after=after))

    def around_a_start(self) -> AbstractContextManager[None]:
        """Crash the server now and then."""
        if self.rng.random() > 0.15:
            return nullcontext()

        def crash() -> None:
            self._server.crash()
            self._server.start()

        return self.meanwhile("server crash", crash, 0.1)

    def _judge(self, found: list[dict[str, Any]], batches: int) -> None:
        reports = reported(self._reports)
        expected, seen, repeated = compared(self._kind, batches, found, reports)
        self.result.besides["repeated rows"] += repeated
        self.result.besides["reports"] += reports.total()
        self.judge(expected, seen)


def compared(
    kind: str, batches: int, found: list[dict[str, Any]], reports: Counter[int]
) -> tuple[Counter[Any], Counter[Any], int]:
    """Return the rows that are due and those that are there, and how many are repeated.

    Repetitions that were reported do not count among the rows that are there.
    """
    rows = due(batches, keyed=kind == "newest")
    expected = Counter({(str(n), text): count for (n, text), count in rows.items()})
    seen = Counter((order["order_id"], order["text"]) for order in found)
    repeated = seen - expected
    if kind == "list":
        seen = without_reported(seen, expected, reports, lambda row: int(row[1][1:]))
    return expected, seen, repeated.total()


def main() -> int:
    if reason := missing():
        print(reason)
        return 2
    # None of these modules starts a thread, so a process may begin with them.
    get_context("forkserver").set_forkserver_preload([RedisHarness.__module__, "redis", "pandas"])
    with (
        tempfile.TemporaryDirectory(prefix="dedup-redis-") as folder,
        Server(Path(folder, "data")) as server,
    ):
        return run_campaign(
            __doc__, WRITE_AHEAD, lambda *given: RedisCampaign(server, *given).run()
        )


if __name__ == "__main__":
    sys.exit(main())
