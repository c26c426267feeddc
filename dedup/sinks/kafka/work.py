"""The driver's part: what is decided once all tasks of a micro-batch have ended."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from dedup.errors import SinkError, faults
from dedup.sinks.kafka.options import ATOMIC, SinkOptions
from dedup.sinks.kafka.preflight import check_sink
from dedup.sinks.kafka.rows import Rows
from dedup.sinks.kafka.slots import KafkaSlot, marker_log
from dedup.sinks.kafka.staging import Staging
from dedup.sinks.ledger import Ledger
from dedup.sinks.marker import Marker
from dedup.sinks.protocol import Fenced, StagedSlice, publish_staged
from dedup.sinks.work import TaskResult

logger = logging.getLogger("dedup")

_OWNERS = 8


class KafkaSink:
    """All slots of a sink; implements `dedup.sinks.protocol.SinkPort`."""

    def __init__(self, options: SinkOptions, staging: Staging, query_id: str) -> None:
        self._options, self._staging, self._query_id = options, staging, query_id
        # All of them are held until the micro-batch is published, however many.
        self._slots: dict[int, KafkaSlot] = {}

    def slots(self) -> Collection[int]:
        """Return the slots that ever published, or tried to."""
        log = marker_log(self._options)
        return log.all_newest(self._query_id, self._options.name, committed=False).keys()

    def acquire(self, slots: Sequence[int]) -> Mapping[int, Marker]:
        """Own slots, the first before all others, and only then read their newest markers."""
        first, *others = [self.slot(number) for number in slots]
        first.initialise()
        with ThreadPoolExecutor(_OWNERS) as pool:
            list(pool.map(KafkaSlot.initialise, others))
        newest = marker_log(self._options).all_newest(self._query_id, self._options.name)
        for number in slots:
            self.slot(number).know(newest.get(number))
        return {number: marker for number, marker in newest.items() if number in slots}

    def slot(self, number: int) -> KafkaSlot:
        """Return a slot that `own` has owned."""
        if number not in self._slots:
            self._slots[number] = KafkaSlot(self._options, self._query_id, number)
        return self._slots[number]

    def close(self) -> None:
        """Give the slots up: the tasks of the next micro-batch own them."""
        for slot in self._slots.values():
            slot.drop()

    def rows(self, slices: Sequence[StagedSlice]) -> Rows:
        """Return the rows of staged slices, from their files, one after another."""
        return Rows(batch for piece in slices for batch in self._staging.read(piece))


#: What this process has asked the cluster already.
_checked: set[tuple[object, ...]] = set()


def check_cluster(options: SinkOptions) -> None:
    """Ask the cluster, once in each process, whether it can do what the sink needs.

    Raises
    ------
    ConfigError
        Saying what to change.
    """
    clients, markers = options.clients, options.markers if options.transactional else None
    asked = (
        clients.servers, options.topic, markers, clients.transaction_timeout_ms,
        options.accept_lost_markers,  # their topic, too, may have to be made anew
    )  # fmt: skip
    if asked in _checked:
        return
    topics = [] if options.topic is None else [options.topic]
    for note in check_sink(clients, topics, markers).notes:
        logger.warning("%s", note)
    _checked.add(asked)


def complete(options: SinkOptions, answers: Sequence[TaskResult]) -> None:
    """Publish what the tasks of a micro-batch left to the driver.

    Parameters
    ----------
    options : SinkOptions
    answers : sequence of TaskResult
        One from each task.

    Raises
    ------
    SinkError
        When the sink holds what contradicts this micro-batch.
    """
    if not any(isinstance(answer.slice, StagedSlice) for answer in answers):
        return
    assert options.staging is not None
    batch = answers[0].batch
    staging = Staging(options.staging, batch.query_id)
    ledger = Ledger(options.staging, batch.query_id)
    slices = [answer.slice for answer in answers]
    staged = [piece for piece in slices if isinstance(piece, StagedSlice)]
    faults.point("kafka.driver.before")
    sink = KafkaSink(options, staging, batch.query_id)
    atomic = (lambda: staging.manifest(batch.batch_id, staged)) if options.mode == ATOMIC else None
    ledger.settle(
        {
            "topic": options.topic or "",
            "markers": options.markers,
            "transactional.id.prefix": options.id_prefix,
        }
    )
    try:
        publish_staged(
            batch,
            sink,
            slices,
            atomic=atomic,
            known_batch_id=None if options.accept_lost_markers else ledger.published(),
            accept_difference=options.accept_difference == batch.batch_id,
        )
    except Fenced as error:
        raise SinkError(
            f"Another start of the query publishes micro-batch {batch.batch_id} by now, or a "
            "transaction ran into its time limit (kafka.transaction.timeout.ms): "
            f"{error}. Let only one start run, and start it again: what is published already is "
            "found then."
        ) from None
    finally:
        sink.close()
    faults.point("kafka.driver.published")
    ledger.note_published(batch.batch_id)
    staging.clean(batch.batch_id)
    faults.point("kafka.driver.after")
