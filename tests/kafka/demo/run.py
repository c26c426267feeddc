"""The demonstration: what happens in which order, and what is counted at the end."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from dedup.cli.demo import Check
from dedup.testing import faults
from dedup.tools import inspect_output
from tests.kafka.demo.producers import Load, Producers
from tests.kafka.demo.query_process import QueryProcess
from tests.kafka.demo.targets import Seen, Table, Target, more, same
from tests.kafka.records import make_topic, read_topic

#: Until the other task of the micro-batch has published its slice, or part of it.
_OTHERS_GO_ON_S = 0.2

Note = Callable[[str], None]


def run(
    address: str, folder: Path, load: Load, note: Note, into: Callable[[str], Target]
) -> list[Check]:
    """Run the demonstration; return every figure against its expected value.

    The query writes to the new target that `into` returns for a name. It is killed between each two
    stretches of the load. `note` takes a line about each step. If a server or the query fails in a
    way that no one caused, this raises an OSError.
    """
    name = uuid.uuid4().hex[:6]
    source, out = make_topic(address, f"orders-{name}", 2), f"orders-once-{name}"
    target = into(out)
    producers = Producers(address, source, load)
    query = QueryProcess(address, source, target.name, folder, *target.arguments)

    def start() -> int:
        producers.go_on()
        pid = query.start()
        note(f"Start {query.starts}: the query runs as process {pid}.")
        return pid

    half_done = 0
    try:
        with producers, target.watched(query):
            note(
                f"{load.producers} producers send {load.distinct:,} orders of {load.keys:,} "
                f"customers to topic {source}, and some batches again; a reader watches "
                f"{target.name}."
            )
            for number in range(load.stretches - 1):
                pid, point = start(), target.moments[number % len(target.moments)]
                half_done += kill_at(point, pid, query, target, note)
            start()
            target.disturb(query)
            query.wait_for(lambda: producers.done)
            sent = producers.sent
            query.wait_for(query.has_read_all)
        given = Seen(read_topic(address, source)).ids
    finally:
        query.kill()
    return [
        *judged(load, sent, given, target.ids()),
        *target.checks(load),
        same("kills", query.starts - 1, load.stretches - 1),
        same("  in the midst of a micro-batch", half_done, load.stretches - 1),
    ]


def judged(load: Load, sent: int, given: Counter[str], out: Counter[str]) -> list[Check]:
    """Return the figures of input and output, from how often each order is in both.

    The broker acknowledged `sent` records to the producers.
    """
    return [
        same("records in", given.total(), sent),
        same("  distinct", len(given), load.distinct),
        more("  sent again by a retry", given.total() - len(given), 0),
        same("records out", out.total(), load.distinct),
        same("  lost", len(set(given) - set(out)), 0),
        same("  duplicated", out.total() - len(out), 0),
    ]


def kill_at(point: str, pid: int, query: QueryProcess, target: Target, note: Note) -> bool:
    """Kill the query when it has committed a micro-batch and is in the midst of the next.

    The first task that comes to the point stands still there until the kill, others continue.
    Returns whether the kill left something of the micro-batch behind.
    """
    begun = query.newest("commits")
    query.wait_for(lambda: query.newest("commits") > begun)
    struck = len(faults.fired(query.faults))
    faults.arm(query.faults, point, "freeze", query.starts)
    query.wait_for(lambda: len(faults.fired(query.faults)) > struck)
    time.sleep(_OTHERS_GO_ON_S)
    processes, batch_id = query.kill(), query.newest("offsets")
    if query.newest("commits") >= batch_id:
        raise OSError(f"Spark logged micro-batch {batch_id} although a task of it had not ended.")
    options = target.options | {"checkpointLocation": str(query.checkpoint)}
    found = inspect_output(target.format, options).to_json()
    slots = [slot for sink in found["sinks"] for slot in sink["slots"]]
    published = sum(slot["rows"] for slot in slots if slot["batch_id"] == batch_id)
    waiting = sum(held["end"] - held["readable"] for held in found.get("held_back", ()))
    note(
        f"Killed driver {pid} with all its {processes} processes in micro-batch {batch_id}: "
        f"{published:,} of its records are published and not logged by Spark, and open "
        f"transactions hold {waiting:,} offsets back."
    )
    return isinstance(target, Table) or bool(published or waiting)
