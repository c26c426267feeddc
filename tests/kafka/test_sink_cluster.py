"""The sink on a cluster: an executor is lost in the midst of a transaction, its worker lives on."""

from __future__ import annotations

import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dedup.testing import faults
from tests.cluster.driver import DriverProcess
from tests.cluster.driver import sink as sink_job
from tests.kafka.records import make_topic, read_topic
from tests.kafka.watching import watched
from tests.support.processes import parent
from tests.support.spark_cluster import running_cluster
from tests.support.waiting import wait_until

RANGES = [range(30 * n, 30 * (n + 1)) for n in range(10)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", ["kafka.marker.after", "kafka.commit.before", "kafka.rows.first"])
def test_a_worker_that_outlives_its_executor_publishes_nothing_twice(
    broker: str, tmp_path: Path, point: str
) -> None:
    topic = make_topic(broker, f"cluster-{point}", 3)
    armed = tmp_path / "faults"
    armed.mkdir()
    arguments = {
        "folder": str(tmp_path / "query"), "address": broker, "topic": topic, "ranges": RANGES,
        "settings": {f"spark.executorEnv.{faults.VARIABLE}": str(armed)},
    }  # fmt: skip
    (tmp_path / "driver").mkdir()
    with running_cluster(tmp_path) as cluster, watched(broker, topic) as seen:
        driver = DriverProcess(cluster, tmp_path / "driver")
        with ThreadPoolExecutor(1) as pool:
            try:
                answer = pool.submit(driver.ask, sink_job, **arguments)
                first = tmp_path / "query" / "checkpoint" / "commits" / "0"
                assert wait_until(lambda: first.exists() or answer.done(), 120)
                # From now on tasks publish on their own.
                faults.arm(armed, point, "outlive")
                assert wait_until(lambda: faults.fired(armed) or answer.done(), 120), "no fault"
                assert not answer.done(), answer.result()
                [(_, kind, worker)] = faults.fired(armed)
                assert kind == "outlive"
                executor = parent(parent(worker))
                assert "Executor" in Path(f"/proc/{executor}/cmdline").read_text()
                os.kill(executor, signal.SIGKILL)
                tasks = answer.result().tasks
            finally:
                driver.kill()
        assert len(tasks) == 3, "there is a new executor"
        assert Path(f"/proc/{worker}").exists(), "the worker has outlived it"
        everything = Counter(range(300))
        assert Counter(int(r.key or b"-1") for r in read_topic(broker, topic)) == everything
        faults.let_go(armed, worker)
        assert wait_until(lambda: not Path(f"/proc/{worker}").exists(), 60), "it ends"
    assert Counter(int(r.key or b"-1") for r in read_topic(broker, topic)) == everything
    assert max(seen.values()) == 1
