"""What librdkafka's errors mean for a slot: who has to act, and whether its producer is lost."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from dedup.errors import ConfigError, DataError, SinkError
from dedup.kafka.client_options import ClientSettings
from dedup.kafka.clients import confluent
from dedup.sinks.protocol import Aborted, Fenced

#: How librdkafka words it.
_FENCING = ("fenced by a newer instance", "an old epoch", "PRODUCER_FENCED")


def is_fenced(error: Any) -> bool:
    """Return whether another owner has fenced the producer.

    Parameters
    ----------
    error : confluent_kafka.KafkaError
    """
    codes = confluent().KafkaError
    return error.code() in (
        codes._FENCED,
        codes.INVALID_PRODUCER_EPOCH,
        codes.INVALID_PRODUCER_ID_MAPPING,
        codes.UNKNOWN_PRODUCER_ID,
        getattr(codes, "PRODUCER_FENCED", 90),
        codes.TRANSACTION_COORDINATOR_FENCED,
    )


def ends_producer(error: Any) -> bool:
    """Return whether the producer can go on no more, fenced or not."""
    return bool(error.fatal()) or error.code() == confluent().KafkaError._FATAL or is_fenced(error)


def is_too_large(error: Any) -> bool:
    """Return whether the client itself found a record too large."""
    return bool(error.code() == confluent().KafkaError.MSG_SIZE_TOO_LARGE)


def of_record(error: Any, message: Any) -> Exception:
    """Return what it means that the brokers did not take a record of a transaction.

    Parameters
    ----------
    error : confluent_kafka.KafkaError
    message : confluent_kafka.Message

    Returns
    -------
    Exception
        `Fenced` where the producer is lost, else an error that ends the transaction.
    """
    codes = confluent().KafkaError
    if error.code() in (codes._PURGE_QUEUE, codes._PURGE_INFLIGHT):
        return Fenced("the transaction's records were given up")
    if ends_producer(error):
        return Fenced(str(error))
    where = f"topic {message.topic()}, partition {message.partition()}, key {message.key()!r}"
    if error.code() in (codes.MSG_SIZE_TOO_LARGE, codes.INVALID_MSG_SIZE):
        return DataError(
            f"A record of {len(message.value() or b''):,} bytes ({where[:200]}) is larger than "
            "the topic takes: raise max.message.bytes of the topic, or kafka.message.max.bytes "
            "of the sink, or make the record smaller. Nothing of its slice was published."
        )
    if error.code() in (
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.UNKNOWN_TOPIC_OR_PART,
        codes._UNKNOWN_TOPIC,
        codes._UNKNOWN_PARTITION,
    ):
        return ConfigError(
            f"A record cannot be written ({where[:200]}): {error.str()}. Nothing of its slice "
            "was published."
        )
    return Aborted(f"a record was not taken ({where[:200]}): {error.str()}")


def of_initialising(error: Any, transactional_id: str, settings: ClientSettings) -> Exception:
    """Return what it means that a transactional ID could not be initialised.

    Parameters
    ----------
    error : confluent_kafka.KafkaError
    transactional_id : str
    settings : ClientSettings
    """
    codes = confluent().KafkaError
    text = settings.without_secrets(str(error.str()))
    if error.code() in (
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, codes.CLUSTER_AUTHORIZATION_FAILED,
        codes.INVALID_TRANSACTION_TIMEOUT,
    ):  # fmt: skip
        return ConfigError(f"The sink cannot begin a transaction as {transactional_id}: {text}.")
    return SinkError(
        f"The sink cannot begin a transaction as {transactional_id} at {settings.servers}: "
        f"{text}. Nothing was written; start the query again once the brokers answer."
    )


class _Others(logging.Filter):
    """Lets pass what does not tell of ordinary fencing, unless all is asked for."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is told."""
        text = record.getMessage()
        ordinary = any(part in text for part in _FENCING)
        return not ordinary or logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


#: What librdkafka says of the sink's producers. It calls fencing fatal, and to a sink whose workers
#: are not bound to their slots it happens every day.
client_log = logging.getLogger("dedup.kafka.client")
client_log.addFilter(_Others())


def tell(producer: Any) -> None:
    """Let a producer that is about to be given up log what it has not told yet."""
    with suppress(Exception):  # of its reports, which concern nobody any more
        producer.poll(0)
