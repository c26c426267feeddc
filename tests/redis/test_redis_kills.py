"""Starts of a query into Redis are killed or frozen at each step of the write-ahead log."""

from __future__ import annotations

import os
import signal
import traceback
from collections import Counter
from pathlib import Path

import pytest

from dedup.testing import faults
from tests.redis.campaign import MODES, RedisCampaign, compared
from tests.redis.server import Server
from tests.redis.sinks import RedisHarness, orders
from tests.support.needs import long, some_long
from tests.support.sink_campaign import WRITE_AHEAD, reported


class Query:
    """A query whose every start is a process of its own."""

    def __init__(self, kind: str, server: Server, folder: Path) -> None:
        self.kind, self._server, self._folder = kind, server, folder
        self._starts = 0

    def start(self, batch_id: int) -> int:
        """Start the query in a process, which runs a micro-batch of two tasks; return its ID."""
        self._starts += 1
        if pid := os.fork():
            return pid
        try:
            sink = RedisHarness(
                self.kind, self._server.url(), self._folder / "checkpoint",
                reports=self._folder / "reports",
            )  # fmt: skip
            run_id = f"run{self._starts}"
            sink.finish([RedisCampaign.part(sink, run_id, batch_id, n, 2) for n in range(2)])
            os._exit(0)
        except BaseException:
            (self._folder / "error").write_text(traceback.format_exc())
            os._exit(1)

    def run(self, batch_id: int) -> None:
        """Run a micro-batch to its end."""
        status = os.waitpid(self.start(batch_id), 0)[1]
        assert status == 0, (self._folder / "error").read_text()

    def assert_right(self, batches: int) -> int:
        """Compare with all micro-batches; return the number of repeated rows."""
        with self._server.client() as client:
            found = orders(client, self.kind)
        due, seen, repeated = compared(
            self.kind, batches, found, reported(self._folder / "reports")
        )
        lost, too_many = due - seen, seen - due
        assert (lost, too_many) == (Counter(), Counter()), self.kind
        return repeated


@pytest.mark.parametrize(
    ("kind", "kills"),
    # Five kills at each step in the quick run.
    [("newest", 2), ("stream", 1), ("key", 1), ("list", 1), *(long(kind, 5) for kind in MODES)],
)
def test_kills_at_every_step_lose_nothing_and_repeat_only_keyless_rows(
    redis_server: Server, tmp_path: Path, armed: Path, kind: str, kills: int
) -> None:
    query = Query(kind, redis_server, tmp_path)
    struck: Counter[str] = Counter()
    for batch_id, point in enumerate(WRITE_AHEAD * kills):
        faults.arm(armed, point, "kill", batch_id)
        status = os.waitpid(query.start(batch_id), 0)[1]
        assert os.WIFSIGNALED(status), point
        query.run(batch_id)
        struck[point] += 1
    fired = Counter(name for name, kind, _ in faults.fired(armed) if kind == "kill")
    assert fired == struck
    repeated = query.assert_right(batches=struck.total())
    assert (repeated > 0) == (kind == "list")


@pytest.mark.parametrize("kind", some_long(list(MODES), "newest", "list"))
def test_a_start_that_wakes_after_its_successor_does_no_harm(
    redis_server: Server, tmp_path: Path, armed: Path, kind: str
) -> None:
    """The successor has run this micro-batch, and the next one with newer values."""
    query = Query(kind, redis_server, tmp_path)
    for number, point in enumerate(WRITE_AHEAD):
        faults.arm(armed, point, "freeze", number)
        frozen = query.start(2 * number)
        assert os.WIFSTOPPED(os.waitpid(frozen, os.WUNTRACED)[1]), point
        for batch_id in (2 * number, 2 * number + 1):
            query.run(batch_id)
        os.kill(frozen, signal.SIGCONT)
        os.waitpid(frozen, 0)
        query.assert_right(batches=2 * number + 2)
    assert [name for name, *_ in sorted(faults.fired(armed))] == sorted(WRITE_AHEAD)
