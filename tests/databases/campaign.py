"""Faults against a sink over a real server, again and again, from a seed, without a Spark.

    python -m tests.databases.campaign postgres --each 30 --results tests/databases/results/x.json

Besides the faults of tests/support/sink_campaign.py, the server crashes or restarts, and commits
are lost, cut off or late. At the end every row must be there once, as its last micro-batch had it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # before `dedup.errors.faults` reads it
    os.environ["DEDUP_FAULTS"] = tempfile.mkdtemp(prefix="dedup-database-faults-")

from dedup.errors import SinkError
from dedup.sinks.work import TaskResult
from dedup.testing.sinks import SinkHarness
from tests.databases.database import (
    HARMS,
    MODES,
    Database,
    DatabaseServer,
    Sink,
    batch_of,
    mode_name,
)
from tests.databases.servers import KINDS, running_server
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

#: The modes of each kind by name; only PostgreSQL has a quarantine.
QUARANTINE = {"quarantine": "refused"}
EVERY_MODE = {
    "mysql": MODES,
    "postgres": [*MODES, QUARANTINE, {"mode": "upsert", "key": "n"} | QUARANTINE],
}
POINTS = transactional_steps()


class DatabaseCampaign(Campaign):
    """A query into a database of a server."""

    def __init__(self, name: str, server: DatabaseServer, seed: int, before: Counter[str]) -> None:
        super().__init__(seed, {mode_name(mode): mode for mode in EVERY_MODE[name]}, before)
        self._kind, self._server = KINDS[name], server
        self._sink: Callable[[], Sink]
        self._proxy: Proxy

    def run(self) -> Round:
        """Run it to its end and judge it."""
        with (
            Proxy(self._server.port) as self._proxy,
            tempfile.TemporaryDirectory(prefix="dedup-database-ledger-") as ledger,
        ):
            db = self._kind.create(self._server, f"c{self.result.seed}", Path(ledger))
            self._sink = partial(Sink, db.by_port(self._proxy.port), **self.result.options)
            self._sink()
            if "quarantine" in self.result.options:
                db.run("ALTER TABLE numbers ADD CHECK (n % 10 <> 3)")
            done = self.go()
            self._judge(db, done)
            return self.end()

    def points(self) -> tuple[str, ...]:
        """Where faults are armed."""
        return transactional_steps(whole=self.result.options.get("mode") == "atomic")

    def worker(self) -> Worker:
        """A new process, which waits for a server that is away."""
        errors = {SinkError, *(kind.library.OperationalError for kind in KINDS.values())}
        return Worker(self._sink, tuple(errors))

    @staticmethod
    def part(sink: SinkHarness, run_id: str, batch_id: int, slot: int, tasks: int) -> TaskResult:
        """The same with rows that name their micro-batch."""
        return send_named(sink, batch_of, run_id, batch_id, slot, tasks)

    def around_a_batch(self) -> AbstractContextManager[None]:
        """Harm a commit now and then."""
        if self.rng.random() > 0.25:
            return nullcontext()
        harm, after = self.rng.choice(HARMS), self.rng.randint(0, 6)
        fault = self._proxy.strike(harm, self._kind.is_commit, after=after)
        return self.harmed(self._proxy, fault)

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

    def _judge(self, db: Database, batches: int) -> None:
        expected = due(batches, keyed="key" in self.result.options)
        found = Counter((n, text) for n, text in db.run("SELECT n, text FROM numbers"))
        if "quarantine" in self.result.options:
            everything = due(batches, keyed=False)
            taken = Counter({row: k for row, k in expected.items() if row[0] % 10 != 3})
            expected = taken + Counter(
                {row: k for row, k in everything.items() if row[0] % 10 == 3}
            )
            aside = (json.loads(record) for (record,) in db.run("SELECT record FROM refused"))
            found += Counter((record["n"], record["text"]) for record in aside)
        self.judge(expected, found)


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("database", choices=list(KINDS))
    name = options.parse_known_args()[0].database
    with running_server(name) as server:
        return run_campaign(
            __doc__, POINTS, lambda *given: DatabaseCampaign(name, server, *given).run(), options
        )


if __name__ == "__main__":
    sys.exit(main())
