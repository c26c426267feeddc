"""Faults against the sink over a real server, again and again, from a seed, without a Spark.

    python -m tests.postgres.campaign --each 30 --seed 1 --results tests/postgres/results/kills.json

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

import psycopg

if __name__ == "__main__":  # before `dedup.errors.faults` reads it
    os.environ["DEDUP_FAULTS"] = tempfile.mkdtemp(prefix="dedup-postgres-faults-")

from dedup.errors import SinkError
from dedup.sinks.work import TaskResult
from dedup.testing.sinks import SinkHarness
from tests.postgres.server import Server, own_server
from tests.postgres.tables import HARMS, Sink, batch_of, commits, run
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

MODES: dict[str, dict[str, str]] = {
    "append": {},
    "atomic": {"mode": "atomic"},
    "upsert": {"mode": "upsert", "key": "n"},
    "atomic, key": {"mode": "atomic", "key": "n"},
    "append, quarantine": {"quarantine": "refused"},
    "upsert, quarantine": {"mode": "upsert", "key": "n", "quarantine": "refused"},
}
POINTS = transactional_steps()


class PostgresCampaign(Campaign):
    """A query over a server."""

    def __init__(self, server: Server, seed: int, before: Counter[str]) -> None:
        super().__init__(seed, MODES, before)
        self._server = server
        self._sink: Callable[[], Sink]
        self._proxy: Proxy

    def run(self) -> Round:
        """Run it to its end and judge it."""
        database = f"c{self.result.seed}"
        run(self._server.dsn(), f"CREATE DATABASE {database}")
        with (
            Proxy(self._server.port) as self._proxy,
            tempfile.TemporaryDirectory(prefix="dedup-postgres-ledger-") as ledger,
        ):
            dsn = self._server.dsn(database).replace(str(self._server.port), str(self._proxy.port))
            table = self.result.options
            self._sink = partial(Sink, dsn, Path(ledger), **table)
            self._sink()
            if "quarantine" in table:
                run(self._server.dsn(database), "ALTER TABLE numbers ADD CHECK (n % 10 <> 3)")
            done = self.go()
            self._judge(self._server.dsn(database), done)
            return self.end()

    def points(self) -> tuple[str, ...]:
        """Where faults are armed."""
        return transactional_steps(whole=self.result.options.get("mode") == "atomic")

    def worker(self) -> Worker:
        """A new process, which waits for a server that is away."""
        return Worker(self._sink, (SinkError, psycopg.OperationalError))

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
        """Crash or restart the server now and then."""
        if self.rng.random() > 0.15:
            return nullcontext()
        if self.rng.random() > 0.5:
            return self.meanwhile("server restart", self._server.restart, 0.2)

        def crash() -> None:
            self._server.crash()
            self._server.start()

        return self.meanwhile("server crash", crash, 0.2)

    def _judge(self, dsn: str, batches: int) -> None:
        expected = due(batches, keyed="key" in self.result.options)
        found = Counter((n, text) for n, text in run(dsn, "SELECT n, text FROM numbers"))
        if "quarantine" in self.result.options:
            everything = due(batches, keyed=False)
            taken = Counter({row: k for row, k in expected.items() if row[0] % 10 != 3})
            expected = taken + Counter(
                {row: k for row, k in everything.items() if row[0] % 10 == 3}
            )
            aside = run(dsn, "SELECT (record::json->>'n')::int, record::json->>'text' FROM refused")
            found += Counter((n, text) for n, text in aside)
        self.judge(expected, found)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="dedup-postgres-") as folder:
        Path(folder).chmod(0o755)
        server = own_server(Path(folder, "data"))
        if isinstance(server, str):
            print(server)
            return 2
        with server:
            return run_campaign(
                __doc__, POINTS, lambda *given: PostgresCampaign(server, *given).run()
            )


if __name__ == "__main__":
    sys.exit(main())
