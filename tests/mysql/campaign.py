"""Faults against the sink over a real server, again and again, from a seed, without a Spark.

    python -m tests.mysql.campaign --each 30 --seed 1 --results tests/mysql/results/kills.json

Besides the faults of tests/support/sink_campaign.py, the server crashes and comes back, and commits
are lost, cut off or late. At the end every row must be there once, as its last micro-batch had it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import pymysql

if __name__ == "__main__":  # before `dedup.errors.faults` reads it
    os.environ["DEDUP_FAULTS"] = tempfile.mkdtemp(prefix="dedup-mysql-faults-")

from dedup.errors import SinkError
from dedup.sinks.work import TaskResult
from dedup.testing.sinks import SinkHarness
from tests.mysql.server import Server, unpacked
from tests.mysql.tables import HARMS, MODES, Sink, Where, batch_of, commits, run
from tests.support.proxy import Proxy
from tests.support.sink_campaign import (
    Campaign,
    Round,
    Worker,
    due,
    run_campaign,
    send_named,
    transactional_steps,
)

POINTS = transactional_steps()


class MysqlCampaign(Campaign):
    """A query over a server."""

    def __init__(self, server: Server, seed: int, before: Counter[str]) -> None:
        super().__init__(seed, {"-".join(m.values()) or "append": m for m in MODES}, before)
        self._server = server
        self._sink: Callable[[], Sink]
        self._proxy: Proxy

    def run(self) -> Round:
        """Run it to its end and judge it."""
        database = f"c{self.result.seed}"
        run(self._server.where(), f"CREATE DATABASE {database}")
        with (
            Proxy(self._server.port) as self._proxy,
            tempfile.TemporaryDirectory(prefix="dedup-mysql-ledger-") as ledger,
        ):
            where = self._server.by_port(database, self._proxy.port)
            self._sink = partial(Sink, where, Path(ledger), **self.result.options)
            self._sink()
            done = self.go()
            self._judge(self._server.where(database), done)
            return self.end()

    def points(self) -> tuple[str, ...]:
        """Where faults are armed."""
        return transactional_steps(whole=self.result.options.get("mode") == "atomic")

    def worker(self) -> Worker:
        """A new process, which waits for a server that is away."""
        return Worker(self._sink, (SinkError, pymysql.OperationalError))

    @staticmethod
    def part(sink: SinkHarness, run_id: str, batch_id: int, slot: int, tasks: int) -> TaskResult:
        """The same with rows that name their micro-batch."""
        return send_named(sink, batch_of, run_id, batch_id, slot, tasks)

    def around_a_batch(self) -> AbstractContextManager[None]:
        """Harm a commit now and then."""
        if self.rng.random() > 0.25:
            return nullcontext()
        harm, after = self.rng.choice(HARMS), self.rng.randint(0, 6)
        return self.harmed(self._proxy, self._proxy.strike(harm, commits, after=after))

    def around_a_start(self) -> AbstractContextManager[None]:
        """Crash the server now and then."""
        if self.rng.random() > 0.1:
            return nullcontext()

        def crash() -> None:
            self._server.crash()
            self._server.start()

        return self.meanwhile("server crash", crash, 0.2)

    def _judge(self, where: Where, batches: int) -> None:
        found = Counter(run(where, "SELECT n, text FROM numbers"))
        self.judge(due(batches, keyed="key" in self.result.options), found)


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="dedup-mysql-") as folder,
        Server(unpacked(), Path(folder, "data")) as server,
    ):
        return run_campaign(__doc__, POINTS, lambda *given: MysqlCampaign(server, *given).run())


if __name__ == "__main__":
    sys.exit(main())
