"""The slots of a Kafka sink. A slot is a transactional producer that the process keeps for reuse.

For each error librdkafka says whether to retry, to abort the transaction, or to give up the
producer. The sink ignores this advice if a commit fails. It then discards the producer, and the
slot's next owner settles the transaction. Otherwise a delayed EndTxn request could end the next
transaction of the same producer (Kingsbury, Jepsen's analysis of Bufstream 0.1.0).

Even a commit that succeeded may have been sent twice, because librdkafka repeats an EndTxn that
gets no answer. librdkafka uses the protocol before KIP-890, in which a late EndTxn looks like the
end of the next transaction. That would commit half of a slice. So a producer begins no further
transaction if it has aborted, or if its commit took long enough for a repetition. The slot then
gets a new producer, which initialises the transactional ID again. This fences requests still on
their way.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa

from dedup.errors import ConfigError, faults
from dedup.sinks.kafka.client_errors import (
    client_log,
    describe_message,
    ends_producer,
    failed_start,
    flush_log,
    is_fenced,
    permanent_error,
    rejected_record,
)
from dedup.sinks.kafka.markers import KafkaMarkers
from dedup.sinks.kafka.options import KafkaOptions, partitioner_key
from dedup.sinks.kafka.records import Sender
from dedup.sinks.marker import Marker
from dedup.sinks.protocol import Aborted, Fenced, Indefinite, SinkSlots, SliceRows, StagedSlice
from dedup.sinks.slice_store import SliceStore
from dedup.sources.kafka.clients import confluent, transactional_config

#: Number of producers that a process keeps. Each has its own threads and connections.
KEPT = 32
_RETRY_S = 0.2
#: Share of the retry wait after which librdkafka may repeat a request. Its jitter shortens the wait
#: by up to a fifth.
_SOONEST = 0.75
#: Number of slots that the driver initialises at the same time.
_OWNERS = 8


class _Held(Sender):
    """A producer that the process keeps. The producer owned its slot when it was used last."""

    last: Marker | None = None
    #: Whether the last commit may have been sent twice.
    repeated = False


#: Kept producers, keyed by servers, transactional ID and sender options, in the order of last use.
_held: OrderedDict[tuple[object, ...], _Held] = OrderedDict()
_markers: dict[tuple[str, str], KafkaMarkers] = {}


def kafka_markers(options: KafkaOptions) -> KafkaMarkers:
    key = (options.clients.servers, options.markers)
    if key not in _markers:
        _markers[key] = KafkaMarkers(options.clients, options.markers)
    return _markers[key]


class KafkaSlot:
    """One slot of the sink. Implements `dedup.sinks.protocol.Slot`.

    An attempt initialises a producer, or takes a producer that the process has kept, and then never
    uses another. A start of the query that was given up may still run in this process, and must not
    use the producer of its successor.
    """

    room = "kafka"

    def __init__(self, options: KafkaOptions, query_id: str, number: int) -> None:
        self._options, self._query_id, self.number = options, query_id, number
        self._library = confluent()
        self.id = options.transactional_id(query_id, number)
        chooser = partitioner_key(options.partitioner)
        self._key = (options.clients.servers, self.id, options.topic, options.markers, chooser)
        self._timeout_s = options.clients.transaction_timeout_ms / 1000
        self._mine: _Held | None = None
        self._chosen = False
        #: Whether this attempt has acquired the slot itself. Otherwise an earlier attempt of this
        #: process did.
        self.is_just_owned = False

    @property
    def last(self) -> Marker | None:
        held = self._mine if self._chosen else _held.get(self._key)
        return held.last if held and not held.repeated else None

    def acquire(self) -> Marker | None:
        self.initialise()
        markers = kafka_markers(self._options)
        self.know(markers.newest(self._query_id, self._options.name, self.number))
        return self.last

    def initialise(self) -> None:
        """Fence all earlier owners of the slot, and settle their open transactions (KIP-98)."""
        self.drop()
        if (other := _held.pop(self._key, None)) is not None:
            other.producer.purge()
        config = transactional_config(self._options.clients, self.id)
        # If the user has set `kafka.debug`, let librdkafka write to the error stream, its default.
        logger: dict[str, Any] = {} if "debug" in config else {"logger": client_log}
        held = _Held(self._options, config, **logger)
        deadline = time.monotonic() + self._options.clients.block_ms / 1000
        faults.point("kafka.init.before")
        self._init_transactions(held, deadline)
        faults.point("kafka.init.after")
        self._mine = _held[self._key] = held
        self.is_just_owned = True
        while len(_held) > KEPT:
            _held.popitem(last=False)

    def _init_transactions(self, sender: Sender, deadline: float) -> None:
        silent = self._connect(sender.producer, deadline)
        while True:
            try:
                sender.producer.init_transactions(max(deadline - time.monotonic(), _RETRY_S))
                return
            except self._library.KafkaException as error:
                reason = error.args[0]
                if not reason.retriable() or time.monotonic() > deadline:
                    flush_log(sender.producer)
                    if reason.retriable():
                        reason = sender.failure.client or silent or reason
                    raise failed_start(reason, self.id, self._options.clients) from None
                time.sleep(_RETRY_S)

    def _connect(self, producer: Any, deadline: float) -> Any:
        """Connect to a broker by its own name, and return the error if no broker answers.

        librdkafka first connects to a bootstrap address. When the broker there has told its own
        name, librdkafka drops that connection and opens a new one. A request for the coordinator
        that comes before the new connection is lost, and is repeated only after half a second. To
        avoid this wait, send two metadata requests: the second one needs the new connection.
        """
        try:
            for _ in range(2):
                left_s = max(deadline - time.monotonic(), _RETRY_S)
                producer.list_topics(self._options.markers, left_s)
        except self._library.KafkaException as error:
            return error.args[0]
        return None

    def know(self, newest: Marker | None) -> None:
        self._open().last = newest

    def begin(self) -> None:
        held = self._open()
        if held.repeated:
            self.drop()
            raise Aborted(
                "the commit before may have been sent twice, and the second one may still arrive, "
                "so the slot must be owned again"
            )
        held.begin()
        self._call("begin", held.producer.begin_transaction)
        if self._key in _held:
            _held.move_to_end(self._key)

    def send(self, records: pa.RecordBatch) -> None:
        sender = self._open()
        try:
            sender.send(records, self.number)
        except ConfigError:  # from the user's own partitioner, or the topic does not exist
            self.abort()
            raise
        except self._library.KafkaException as error:
            raise self._failed(f"send {sender.last_record}", error) from None
        except SystemError as error:
            raise self._fatal(error) from None

    def flush(self) -> None:
        held = self._open()
        deadline = time.monotonic() + self._timeout_s
        while left := self._call("send", held.producer.flush, 1.0):
            if held.failure.first is not None or time.monotonic() > deadline:
                break
        if held.failure.first is not None:
            reason, message = held.failure.first
            rejection = rejected_record(reason, message)
            if isinstance(rejection, Fenced):
                rejection = self._given_up(message) or rejection
            if isinstance(rejection, Fenced):
                self.drop()
            else:
                self.abort()
            raise rejection
        if left:
            self.drop()
            raise Aborted(
                f"the brokers did not take the records within {self._timeout_s:.0f} s, the time "
                "limit of the transaction (kafka.transaction.timeout.ms)"
            )

    def _given_up(self, message: Any) -> Exception | None:
        """Return the permanent error, if any, for which the client has given up the transaction.

        The client then discards all records, for example if the user may not write to a topic. The
        next call that needs another state raises the reason as an error. This uses
        `begin_transaction`, because that call never commits.
        """
        try:
            self._open().producer.begin_transaction()
        except self._library.KafkaException as error:
            text = f"{describe_message(message)} was discarded: {self._text(error)}"
            return permanent_error(error.args[0], text)
        return None

    def pre_commit(self, marker: Marker) -> None:
        faults.point("kafka.marker.before")
        held, markers = self._open(), kafka_markers(self._options)
        count = held.partitions(markers.topic)
        place = markers.partition_of(marker.query_id, marker.sink, marker.slot, count)
        record = (markers.topic, marker.to_bytes(), marker.key(), place)
        self._call("write the marker", held.producer.produce, *record)
        self.flush()
        held.last = marker
        faults.point("kafka.marker.after")

    def commit(self) -> None:
        held = self._open()
        marker, held.last = held.last, None
        faults.point("kafka.commit.before")
        began_s = time.monotonic()
        try:
            held.producer.commit_transaction(self._timeout_s)
        except self._library.KafkaException as error:
            self.drop()
            kind = Fenced if is_fenced(error.args[0]) else Indefinite
            raise kind(self._text(error)) from None
        except SystemError as error:
            self.drop()
            raise Indefinite(f"the producer met a fatal error: {error}") from None
        soonest_s = _SOONEST * self._options.clients.retry_backoff_ms / 1000
        held.last, held.repeated = marker, time.monotonic() - began_s >= soonest_s
        faults.point("kafka.commit.after")

    def abort(self) -> None:
        """Abort the open transaction, if there is one, and discard the producer."""
        if self._mine is None:
            return
        # If this fails, the next owner, or the broker's time limit, aborts the transaction.
        with suppress(self._library.KafkaException):
            self._mine.producer.abort_transaction(self._timeout_s)
        self.drop()

    def drop(self) -> None:
        """Discard the producer. The slot's next owner settles the open transaction."""
        held = self._mine if self._chosen else _held.get(self._key)
        self._mine, self._chosen = None, True
        if held is None:
            return
        if _held.get(self._key) is held:
            del _held[self._key]
        flush_log(held.producer)
        held.producer.purge()

    def _open(self) -> _Held:
        if not self._chosen:
            self._mine, self._chosen = _held.get(self._key), True
        if self._mine is None:
            raise Fenced(f"this attempt has no producer of {self.id} any more")
        return self._mine

    def _call(self, what: str, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._library.KafkaException as error:
            raise self._failed(what, error) from None
        except SystemError as error:
            raise self._fatal(error) from None

    def _failed(self, what: str, error: Any) -> Exception:
        """Return the exception for an error within a transaction, and discard the producer."""
        text = f"cannot {what}: {self._text(error)}"
        if permanent := permanent_error(error.args[0], f"The sink {text}"):
            self.abort()
            return permanent
        self.drop()
        return Fenced(text) if ends_producer(error.args[0]) else Aborted(text)

    def _fatal(self, error: SystemError) -> Fenced:
        """Return `Fenced` for a fatal error that surfaces as a SystemError.

        Any call of confluent-kafka that invokes callbacks may raise a fatal error. If a callback
        returns afterwards, Python replaces the fatal error by a SystemError, which may not contain
        the fatal error as its cause.
        """
        self.drop()
        return Fenced(f"the producer met a fatal error: {error.__cause__ or error}")

    def _text(self, error: Any) -> str:
        return self._options.clients.without_secrets(str(error.args[0].str()))


class KafkaRows(SliceRows[KafkaSlot]):
    """Rows that have the columns of Kafka records."""

    def send_first(self, slot: KafkaSlot) -> None:
        if self.first is None:
            self.first = next((batch for batch in self.rows if batch.num_rows), None)
        if self.first is not None:
            slot.send(self.first)
            slot.flush()
            faults.point("kafka.rows.first")
        elif not slot.is_just_owned:
            raise Aborted("a slice without rows cannot show whether its slot is still owned")


class KafkaSlots(SinkSlots[KafkaSlot]):
    """A handle with which the driver uses all slots of a Kafka sink."""

    def __init__(self, options: KafkaOptions, query_id: str, staging: SliceStore) -> None:
        super().__init__(partial(KafkaSlot, options, query_id))
        self._options, self._query_id, self._staging = options, query_id, staging

    def acquire(self, slots: Sequence[int]) -> Mapping[int, Marker]:
        markers, which = kafka_markers(self._options), (self._query_id, self._options.name)
        # Also all slots that were used before, even if their markers are not committed yet.
        numbers = dict.fromkeys([*slots, *markers.all_newest(*which, committed=False)])
        first, *others = [self.slot(number) for number in numbers]
        first.initialise()
        with ThreadPoolExecutor(_OWNERS) as pool:
            list(pool.map(KafkaSlot.initialise, others))
        newest = markers.all_newest(*which)
        for number in numbers:
            self.slot(number).know(newest.get(number))
        return {number: marker for number, marker in newest.items() if number in numbers}

    def rows(self, slices: Sequence[StagedSlice]) -> KafkaRows:
        return KafkaRows(batch for piece in slices for batch in self._staging.read(piece))
