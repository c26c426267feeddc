"""Workers are killed at every step of the sink: readers see each record once, at any time.

`campaign.py` kills at these steps without Spark, again and again.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from dedup.errors import cause
from dedup.testing import faults
from tests.kafka.campaign import MANIFEST, STAGE, TASK
from tests.kafka.records import contents, read_topic
from tests.kafka.sink_query import SinkQuery
from tests.kafka.watching import watched

#: Of a micro-batch that the driver publishes.
BY_DRIVER = (
    "kafka.driver.before", "kafka.init.after", "kafka.marker.after", "kafka.commit.before",
    "kafka.commit.after", "kafka.driver.published", "kafka.driver.after",
)  # fmt: skip
ROWS, FILES = 60, 3


def run_to_the_end(sink: SinkQuery, **options: str) -> list[str]:
    """Start the query until it has taken all that there is; return what it failed with before."""
    failures: list[str] = []
    while len(failures) < 6:
        try:
            sink.run(**options)
        except StreamingQueryException as error:
            failures.append(str(cause(error) or error)[:2000])
            continue
        return failures
    raise AssertionError(failures)


def check(sink: SinkQuery, seen: Counter[bytes]) -> None:
    found = contents(read_topic(sink.address, sink.topic))
    assert found == Counter({(b"%d" % n, b"v%d" % n, ()): 1 for n in range(ROWS * FILES)})
    assert max(seen.values(), default=0) <= 1, "a reader saw a record twice"


def arm(folder: Path, point: str, kind: str, *, after: int = 0) -> None:
    """Arm a fault, after some visits of the point that go by."""
    for number in range(after):
        faults.arm(folder, point, "skip", number)
    faults.arm(folder, point, kind, after)


def fill(sink: SinkQuery) -> None:
    sink.numbers(*(range(ROWS * n, ROWS * (n + 1)) for n in range(FILES)))


@pytest.mark.slow
@pytest.mark.parametrize("point", TASK)
def test_a_task_that_publishes_is_killed(sink: SinkQuery, fault_folder: Path, point: str) -> None:
    """In the second micro-batch, when the first is published and no slot is in doubt any more."""
    sink.numbers(range(ROWS))
    with watched(sink.address, sink.topic) as seen:
        query = sink.rows().writeStream.format("dedup_kafka").options(**sink.options).start()
        query.processAllAvailable()
        arm(fault_folder, point, "kill")
        sink.numbers(range(ROWS, 2 * ROWS), range(2 * ROWS, 3 * ROWS))
        query.processAllAvailable()
        query.stop()
        assert [(name, kind) for name, kind, _ in faults.fired(fault_folder)] == [(point, "kill")]
        check(sink, seen)


@pytest.mark.slow
@pytest.mark.parametrize("point", STAGE)
def test_a_task_that_stages_is_killed(sink: SinkQuery, fault_folder: Path, point: str) -> None:
    fill(sink)
    arm(fault_folder, point, "kill")
    with watched(sink.address, sink.topic) as seen:
        assert run_to_the_end(sink) == []
        assert len(faults.fired(fault_folder)) == 1
        check(sink, seen)


@pytest.mark.slow
@pytest.mark.parametrize("point", BY_DRIVER)
def test_the_driver_s_part_is_killed(sink: SinkQuery, fault_folder: Path, point: str) -> None:
    """In the first micro-batch, which the driver publishes; tasks initialise before that, twice."""
    fill(sink)
    arm(fault_folder, point, "kill", after=2 if point == "kafka.init.after" else 0)
    with watched(sink.address, sink.topic) as seen:
        [failure] = run_to_the_end(sink)
        assert "EOF" in failure or "crash" in failure
        assert len(faults.fired(fault_folder)) == 1
        check(sink, seen)


@pytest.mark.slow
@pytest.mark.parametrize("point", MANIFEST + BY_DRIVER)
def test_a_whole_micro_batch_is_interrupted(
    sink: SinkQuery, fault_folder: Path, point: str
) -> None:
    fill(sink)
    arm(fault_folder, point, "kill")
    with watched(sink.address, sink.topic) as seen:
        failures = run_to_the_end(sink, mode="atomic")
        assert len(failures) == 1, failures
        failure = failures[0]
        assert "EOF" in failure or "crash" in failure
        assert len(faults.fired(fault_folder)) == 1
        check(sink, seen)


@pytest.mark.slow
def test_spark_s_own_sink_repeats_records_under_such_a_kill(
    sink: SinkQuery, tmp_path: Path
) -> None:
    """The control: what is killed above does leave records that are written again."""
    fill(sink)
    struck = tmp_path / "struck"

    def strike(batches):  # type: ignore[no-untyped-def]
        import os
        import signal
        import time

        yield from batches
        if not struck.exists():
            struck.touch()
            time.sleep(2)  # almost all that was handed over is with the broker by then
            os.kill(os.getpid(), signal.SIGKILL)

    # Large enough that no buffer on the way keeps them all.
    rows = sink.rows().selectExpr("key", "repeat(cast(value as string), 20000) value")
    broken = rows.repartition(1).mapInArrow(strike, rows.schema)
    own = {name: sink.options[name] for name in ("kafka.bootstrap.servers", "checkpointLocation")}
    stream = broken.writeStream.format("kafka").options(**own, topic=sink.topic)
    stream.trigger(availableNow=True).start().awaitTermination(120)
    assert struck.exists()
    found = Counter(record.key for record in read_topic(sink.address, sink.topic))
    assert set(found) == {b"%d" % n for n in range(ROWS * FILES)}
    assert max(found.values()) > 1
