"""Faults against the sink over a real broker, again and again, from a seed, without a Spark.

    python -m tests.kafka.campaign --each 20 --seed 1 --results tests/kafka/results/kills.json

Besides the faults of tests/support/sink_campaign.py, the broker is killed and started again, and
commits lose their answer, break off, or arrive when later micro-batches have been committed. A
reader of committed records reads all the time, and may see no record twice.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # before `dedup.errors.faults` looks for it
    os.environ["DEDUP_FAULTS"] = tempfile.mkdtemp(prefix="dedup-kafka-faults-")

from dedup.sinks.kafka.preflight import check_topics
from dedup.sources.kafka.client_options import client_settings
from tests.kafka.broker import Broker, free_port
from tests.kafka.proxy import Api, Harm, Proxy, commits
from tests.kafka.records import make_topic
from tests.kafka.slots import Sink, numbers
from tests.kafka.watching import watched
from tests.support.sink_campaign import WIDTH, Campaign, Round, Worker, run_campaign, steps

MODES: dict[str, dict[str, str]] = {"exactly-once": {}, "atomic": {"mode": "atomic"}}
POINTS = steps("kafka.")
#: Of a task that stages, of the driver, of the mode `atomic`, and of a task that publishes alone.
STAGE, DRIVER, MANIFEST = steps("kafka.stage."), steps("kafka.driver."), steps("kafka.manifest.")
TASK = tuple(point for point in POINTS if point not in (*STAGE, *DRIVER, *MANIFEST))
#: After these the broker has, or will have, what the client does not know of.
_HARMS = (Harm.LOSE_REPLY, Harm.CUT_AFTER, Harm.CUT_BEFORE, Harm.HOLD)


class KafkaCampaign(Campaign):
    """A query into a topic that a reader watches."""

    def __init__(
        self, broker: Broker, proxy: Proxy, folder: Path, seed: int, before: Counter[str]
    ) -> None:
        super().__init__(seed, MODES, before)
        self._broker, self._proxy, self._staging = broker, proxy, folder / f"{seed}"
        self._topic = f"campaign-{seed}"
        self._held = False

    def run(self) -> Round:
        """Run it to its end and judge it."""
        address = self._broker.address
        make_topic(address, self._topic, 3)
        servers = client_settings({"kafka.bootstrap.servers": address})
        check_topics(servers, [self._topic], f"{self._topic}-markers")
        with watched(address, self._topic) as seen:
            done = self.go()
            self.judge(Counter(range(done * WIDTH)), numbers(address, self._topic))
        twice = sorted(key for key, times in seen.items() if times > 1)
        self.result.seen_wrong = f"a reader saw {twice} twice" if twice else ""
        return self.end()

    def points(self) -> tuple[str, ...]:
        """Where faults are armed: the driver publishes alone in the mode `atomic`."""
        if self.result.mode == "atomic":
            return (*TASK[:-1], *STAGE, *DRIVER, *MANIFEST)
        return (*TASK, *STAGE, *DRIVER)

    def worker(self) -> Worker:
        """A new process."""
        how = self.result.options
        return Worker(partial(Sink, self._proxy.address, self._topic, self._staging, **how))

    @contextmanager
    def around_a_batch(self) -> Iterator[None]:
        """Harm a commit now and then."""
        if self.rng.random() > 0.3:
            yield
            return
        fault = self._proxy.arm(Api.END_TXN, self.rng.choice(_HARMS), where=commits)
        self._held = fault.harm is Harm.HOLD
        with self.harmed(self._proxy, fault):
            yield
        self._held = False

    def around_a_start(self) -> AbstractContextManager[None]:
        """Kill and start the broker now and then, but never one that a held commit waits for."""
        if self._held or self.rng.random() > 0.05:
            return nullcontext()
        return self.meanwhile("broker killed", self._broker.restart, 0.5)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="dedup-kafka-") as folder:
        port = free_port()
        broker = Broker(Path(folder), proxy_port=port)
        with broker, Proxy(port, to_port=broker.behind_proxy or 0) as proxy:
            work = Path(folder, "staging")
            return run_campaign(
                __doc__, POINTS, lambda *given: KafkaCampaign(broker, proxy, work, *given).run()
            )


if __name__ == "__main__":
    sys.exit(main())
