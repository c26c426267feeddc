"""The moments at which the query is killed, and what was then half done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from dedup.testing import faults
from dedup.tools import inspect_sink
from tests.kafka.demo.query_process import QueryProcess

#: Steps of the sink at which the query is killed: all is with the broker and uncommitted; one task
#: has committed and Spark does not know; some rows are sent.
MOMENTS = ("kafka.marker.after", "kafka.commit.after", "kafka.rows.first")
#: Until the other task of the micro-batch has published its slice, or part of it.
_OTHERS_GO_ON_S = 0.2
_TIMEOUT_S = 400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A kill that struck.

    Parameters
    ----------
    pid : int
        Of the driver.
    processes : int
        That were killed, the driver among them.
    batch_id : int
        The micro-batch that was under way.
    published : int
        Records of it that readers could see already.
    waiting : int
        Offsets that an open transaction held back from readers.
    """

    pid: int
    processes: int
    batch_id: int
    published: int
    waiting: int

    def __str__(self) -> str:
        state = []
        if self.published:
            state.append(f"{self.published:,} of its records published and not logged by Spark")
        if self.waiting:
            state.append(f"a transaction open over {self.waiting:,} offsets")
        return (
            f"Killed driver {self.pid} with all its {self.processes} processes in micro-batch "
            f"{self.batch_id}: {' and '.join(state) or 'nothing of it sent yet'}."
        )


def kill_at(point: str, query: QueryProcess, pid: int) -> Kill:
    """Kill the query when it has committed a micro-batch and is in the midst of the next.

    The first task that comes to the point stands still there until the kill, others continue.

    Parameters
    ----------
    point : str
        A step of the sink, of `dedup.testing.faults.POINTS`.
    query : QueryProcess
        Which runs.
    pid : int
        Of its driver.

    Raises
    ------
    OSError
        If the query ends on its own, or the moment does not come in time.
    """
    begun = query.newest("commits")
    _wait(query, lambda: query.newest("commits") > begun)
    struck = len(faults.fired(query.faults))
    faults.arm(query.faults, point, "freeze", query.starts)
    _wait(query, lambda: len(faults.fired(query.faults)) > struck)
    time.sleep(_OTHERS_GO_ON_S)
    processes = query.kill()
    batch_id = query.newest("offsets")
    if query.newest("commits") >= batch_id:
        raise OSError(f"Spark logged micro-batch {batch_id} although a task of it had not ended.")
    found = inspect_sink(query.address, query.target)
    [sink] = found.sinks
    markers = [slot.marker for slot in sink.slots]
    return Kill(
        pid=pid,
        processes=processes,
        batch_id=batch_id,
        published=sum(marker.rows for marker in markers if marker.batch_id == batch_id),
        waiting=sum(held.end - held.readable for held in found.held_back),
    )


def _wait(query: QueryProcess, so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not so():
        query.check_alive()
        if time.monotonic() > deadline_s:
            raise OSError(f"The moment for a kill did not come within {_TIMEOUT_S:.0f} s.")
        time.sleep(0.02)
