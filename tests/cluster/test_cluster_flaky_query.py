"""A query over an object store that fails altogether, then now and then, and is well again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.cluster.driver import DriverProcess, give, stream
from tests.cluster.flaky_store import Fault, FlakyStore, Kind
from tests.support.object_store import ObjectStore
from tests.support.oracle import Oracle
from tests.support.small_state import HORIZON_S, LATENESS_S, OPTIONS, tables
from tests.support.spark_query import Run

#: With faults at random; then the store is well.
STARTS = 3
KINDS: tuple[Kind, ...] = ("slow down", "error", "reset", "cut", "truncate", "stump", "delay")
#: Of all requests, by each kind of fault.
SHARE = 0.01
#: Names of what micro-batch 2 and later ones write.
FROM_BATCH_2 = r"/0000000000(0[2-9]|[1-9]\d)-"


def at_random(kind: Kind, seed: int) -> Fault:
    def visits(visit: int) -> bool:
        return random.Random(f"{kind} {seed} {visit}").random() < SHARE

    return Fault(kind, visits=visits, seconds=0.2)


@pytest.mark.slow
def test_a_query_continues_once_its_store_recovers(
    store: ObjectStore, driver: DriverProcess, tmp_path: Path
) -> None:
    given = tables(7, rows=300)
    give(tmp_path, given[:5])
    run, stops = Run(), []

    def start() -> bool:
        """Whether the query came to the end of its input."""
        answer = driver.ask(stream, folder=str(tmp_path), options=OPTIONS, s3=catalog)
        rows = answer.run.rows
        if not answer.error:
            run.rows |= rows
            return True
        run.rows |= {len(run.rows) + batch: rows[batch] for batch in rows}
        assert "CatalogError" in answer.kind + answer.error, answer.error
        assert "s3://catalogs/flaky" in answer.error
        stops.append(answer.error)
        return False

    with FlakyStore(store.endpoint).running() as flaky:
        # A client that does not try again on its own: each fault reaches the query.
        catalog = {"endpoint": flaky.endpoint, "folder": "flaky", "attempts": 1}
        flaky.plan(Fault("slow down", path=FROM_BATCH_2), at_random("delay", 0))
        assert not start()
        assert len(run.rows) < 5
        flaky.plan(Fault("error"))
        assert not start()
        for seed in range(STARTS):
            flaky.plan(*(at_random(kind, seed) for kind in KINDS))
            if start():
                break
        flaky.heal()
        give(tmp_path, given[5:], first=5)
        assert start()
    assert "503" in stops[0], stops[0]
    assert len(flaky.fired) >= 5, flaky.fired
    assert flaky.fired.total() > 15, flaky.fired
    Oracle(HORIZON_S, LATENESS_S).check(given, run)
