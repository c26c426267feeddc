"""Slots of the sink as transactional producers of Kafka, kept by the process between micro-batches.

librdkafka says of each error whether it can be retried, whether the transaction must be aborted,
or whether the producer is lost. What it says of a commit is not used: after any error there the
producer is thrown away, and the slot's next owner settles what became of the transaction
(Kingsbury's advice in Jepsen's analysis of Bufstream 0.1.0: a delayed EndTxn may hit the next
transaction of the same producer).

A commit that succeeds may have been sent twice as well: librdkafka repeats an EndTxn that has no
answer, after a wait, and speaks the protocol before KIP-890, in which nothing tells the first one,
should it still be on its way, from the end of the next transaction. That would commit half of a
slice. So a producer whose commit took long enough for a repetition begins no transaction any more,
nor does one that has aborted. Initialising fences what is still on its way.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dedup.errors import ConfigError, faults
from dedup.sinks.kafka.client_errors import (
    client_log,
    ends_producer,
    final,
    is_fenced,
    of_initialising,
    of_record,
    tell,
)
from dedup.sinks.kafka.markers import MarkerLog
from dedup.sinks.kafka.options import SinkOptions, partitioner_key
from dedup.sinks.kafka.produce import Sender
from dedup.sinks.marker import Marker
from dedup.sinks.protocol import Aborted, Fenced, Indefinite
from dedup.sources.kafka.clients import confluent, transactional_config

#: Producers that a process keeps beyond an attempt; each has threads and connections of its own.
KEPT = 32
_RETRY_S = 0.2
#: Of the wait before a repetition, what passes at least: jitter takes up to a fifth off.
_SOONEST = 0.75


@dataclass(slots=True)
class Held:
    """A producer that owned its slot when it was last heard of."""

    producer: Any
    sender: Sender
    last: Marker | None
    #: Whether the last commit may have been sent twice.
    repeated: bool = False


#: By servers, transactional ID and all that a sender was made for; the one used last at the end.
_held: OrderedDict[tuple[object, ...], Held] = OrderedDict()
_logs: dict[tuple[str, str], MarkerLog] = {}


def marker_log(options: SinkOptions) -> MarkerLog:
    """Return the log of a sink's markers, its connections kept by the process."""
    key = (options.clients.servers, options.markers)
    if key not in _logs:
        _logs[key] = MarkerLog(options.clients, options.markers)
    return _logs[key]


def forget_producers() -> None:
    """Throw all producers away: their slots are owned anew when they are next used."""
    for held in _held.values():
        held.producer.purge()
    _held.clear()


class KafkaSlot:
    """One slot of the sink; implements `dedup.sinks.protocol.SlotPort`.

    Parameters
    ----------
    options : SinkOptions
    query_id : str
    number : int
        Of the slot.

    Notes
    -----
    One attempt goes on with one producer, which it has initialised or found in the process, and
    never changes over to another: a start of the query that was given up may still run in this
    process, and must not go on with what its successor owns.
    """

    def __init__(self, options: SinkOptions, query_id: str, number: int) -> None:
        self._options, self._query_id, self.number = options, query_id, number
        self._library = confluent()
        self.id = options.transactional_id(query_id, number)
        chooser = partitioner_key(options.partitioner)
        self._key = (options.clients.servers, self.id, options.topic, options.markers, chooser)
        self._timeout_s = options.clients.transaction_timeout_ms / 1000
        self._mine: Held | None = None
        self._chosen = False
        #: Whether it was owned by this attempt, and not by one before in this process.
        self.is_just_owned = False

    @property
    def last(self) -> Marker | None:
        """What this process committed last to the slot, None where that is not known."""
        held = self._mine if self._chosen else _held.get(self._key)
        return held.last if held and not held.repeated else None

    def acquire(self) -> Marker | None:
        """Fence all others, settle what they left open, and only then read the newest marker."""
        self.initialise()
        log = marker_log(self._options)
        self.know(log.newest(self._query_id, self._options.name, self.number))
        return self.last

    def initialise(self) -> None:
        """Fence all others and settle what they left open (KIP-98)."""
        self.drop()
        if (other := _held.pop(self._key, None)) is not None:
            other.producer.purge()
        sender = Sender(self._options)
        config = transactional_config(self._options.clients, self.id)
        # What is asked for with `kafka.debug` goes to the error stream, as librdkafka does it.
        told = {} if "debug" in config else {"logger": client_log}
        producer = self._library.Producer(config | sender.producer_settings(), **told)
        sender.producer = producer
        deadline = time.monotonic() + self._options.clients.block_ms / 1000
        faults.point("kafka.init.before")
        silent = self._connect(producer, deadline)
        while True:
            try:
                producer.init_transactions(max(deadline - time.monotonic(), _RETRY_S))
                break
            except self._library.KafkaException as error:
                reason = error.args[0]
                if not reason.retriable() or time.monotonic() > deadline:
                    tell(producer)
                    if reason.retriable():
                        reason = sender.failure.refused or silent or reason
                    raise of_initialising(reason, self.id, self._options.clients) from None
                time.sleep(_RETRY_S)
        faults.point("kafka.init.after")
        self._mine = _held[self._key] = Held(producer, sender, None)
        self.is_just_owned = True
        while len(_held) > KEPT:
            _held.popitem(last=False)

    def _connect(self, producer: Any, deadline: float) -> Any:
        """Wait until the producer is connected to a broker by the name that the cluster gives it.

        librdkafka gives up the connection to a bootstrap server once it has learned that broker's
        own name. A question for the coordinator that was sent over it, or before there is another,
        is asked again after half a second only. The second of two answers comes over that other.
        Returned is why no broker answers.
        """
        try:
            for _ in range(2):
                left_s = max(deadline - time.monotonic(), _RETRY_S)
                producer.list_topics(self._options.markers, left_s)
        except self._library.KafkaException as error:
            return error.args[0]
        return None

    def know(self, newest: Marker | None) -> None:
        """Note the newest marker, read after the slot was initialised."""
        self._of().last = newest

    def begin(self) -> None:
        """Open a transaction."""
        held = self._of()
        if held.repeated:
            self.drop()
            raise Aborted(
                "the commit before may have been sent twice, and the second one may come now, so "
                "the slot has to be owned anew"
            )
        held.sender.begin()
        self._ask("begin", held.producer.begin_transaction)
        if self._key in _held:
            _held.move_to_end(self._key)

    def send(self, records: pa.RecordBatch) -> None:
        """Hand records to the producer, within the open transaction."""
        try:
            self._of().sender.send(records, self.number)
        except ConfigError:  # of the user's own partitioner, or there is no such topic
            self.abort()
            raise
        except self._library.KafkaException as error:
            raise self._lost(f"send {self._of().sender.in_hand}", error) from None
        except SystemError as error:
            raise self._fatal(error) from None

    def flush(self) -> None:
        """Wait until the broker has all that was sent."""
        held = self._of()
        deadline = time.monotonic() + self._timeout_s
        try:
            while left := held.producer.flush(1.0):
                if held.sender.failure.found is not None or time.monotonic() > deadline:
                    break
        except self._library.KafkaException as error:
            raise self._lost("send", error) from None
        except SystemError as error:
            raise self._fatal(error) from None
        if held.sender.failure.found is not None:
            refusal = of_record(*held.sender.failure.found)
            if isinstance(refusal, Fenced):
                self.drop()
            else:
                self.abort()
            raise refusal
        if left:
            self.drop()
            raise Aborted(
                f"the brokers did not take the records within {self._timeout_s:.0f} s, the time "
                "limit of the transaction (kafka.transaction.timeout.ms)"
            )

    def pre_commit(self, marker: Marker) -> None:
        """Bring all rows and the marker to the broker, where nobody sees them yet."""
        faults.point("kafka.marker.before")
        log = marker_log(self._options)
        partition = log.partition_of(
            marker.query_id, marker.sink, marker.slot, self._of().sender.partitions(log.topic)
        )
        arguments = (log.topic, marker.to_bytes(), marker.key(), partition)
        self._ask("write the marker", self._of().producer.produce, *arguments)
        self.flush()
        self._of().last = marker
        faults.point("kafka.marker.after")

    def commit(self) -> None:
        """Make the transaction visible; raises `Indefinite` where no answer comes."""
        held = self._of()
        marker, held.last = held.last, None
        faults.point("kafka.commit.before")
        began_s = time.monotonic()
        try:
            held.producer.commit_transaction(self._timeout_s)
        except self._library.KafkaException as error:
            self.drop()
            if is_fenced(error.args[0]):
                raise Fenced(self._text(error)) from None
            raise Indefinite(self._text(error)) from None
        except SystemError as error:
            self.drop()
            raise Indefinite(f"the producer met a fatal error: {error}") from None
        soonest_s = _SOONEST * self._options.clients.retry_backoff_ms / 1000
        held.last, held.repeated = marker, time.monotonic() - began_s >= soonest_s
        faults.point("kafka.commit.after")

    def abort(self) -> None:
        """Give up the open transaction, if there is one, and the producer."""
        held = self._mine
        if held is None:
            return
        # Where it fails, the next owner, or the broker's time limit, aborts it.
        with suppress(self._library.KafkaException):
            held.producer.abort_transaction(self._timeout_s)
        self.drop()

    def drop(self) -> None:
        """Throw the producer away; what it has open stays for the next owner to settle."""
        held = self._mine if self._chosen else _held.get(self._key)
        self._mine, self._chosen = None, True
        if held is None:
            return
        if _held.get(self._key) is held:
            del _held[self._key]
        tell(held.producer)
        held.producer.purge()

    def _of(self) -> Held:
        if not self._chosen:
            self._mine, self._chosen = _held.get(self._key), True
        if self._mine is None:
            raise Fenced(f"this attempt has no producer of {self.id} any more")
        return self._mine

    def _ask(self, what: str, call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except self._library.KafkaException as error:
            raise self._lost(what, error) from None

    def _lost(self, what: str, error: Any) -> Exception:
        """Return what an error within a transaction means: its producer is of no use any more."""
        said = f"cannot {what}: {self._text(error)}"
        if found := final(error.args[0], f"The sink {said}"):
            self.abort()
            return found
        self.drop()
        return Fenced(said) if ends_producer(error.args[0]) else Aborted(said)

    def _fatal(self, error: SystemError) -> Fenced:
        """Return what a fatal error means that the client met while it served reports.

        confluent-kafka raises it out of whatever serves them, and the interpreter makes a
        SystemError of it, with or without its cause, where a function for reports returns then.
        """
        self.drop()
        return Fenced(f"the producer met a fatal error: {error.__cause__ or error}")

    def _text(self, error: Any) -> str:
        return self._options.clients.without_secrets(str(error.args[0].str()))
