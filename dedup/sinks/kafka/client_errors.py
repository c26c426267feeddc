"""What librdkafka's errors mean for a slot: who has to act, and whether its producer is lost."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import cache
from typing import Any

from dedup.errors import ConfigError, DataError, SinkError
from dedup.sinks.protocol import Aborted, Fenced
from dedup.sources.kafka.client_options import ClientSettings
from dedup.sources.kafka.clients import confluent

NOT_PUBLISHED = "Nothing of its slice was published."
#: How librdkafka words it.
_FENCING = ("fenced by a newer instance", "an old epoch", "PRODUCER_FENCED")


#: What broker errors mean: `Fenced` if another owner has the slot, `DataError` or `ConfigError` if
#: they come back at every attempt, with what to do. All others are transient.
_MEANINGS: dict[str, tuple[type[Exception], str]] = {
    **dict.fromkeys(
        ("_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING", "UNKNOWN_PRODUCER_ID",
         "PRODUCER_FENCED", "TRANSACTION_COORDINATOR_FENCED"),
        (Fenced, ""),
    ),
    **dict.fromkeys(
        ("MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "RECORD_LIST_TOO_LARGE"),
        (DataError, "Raise kafka.message.max.bytes of the sink and max.message.bytes of the topic, "
                    "or make the record smaller; its headers count, too."),
    ),
    "INVALID_TIMESTAMP": (
        DataError, "Its timestamp is further from the broker's clock than the topic accepts. "
                   "Correct the column `timestamp`, or raise message.timestamp.after.max.ms (for "
                   "the future) or message.timestamp.before.max.ms (for the past) of the topic."),
    "INVALID_RECORD": (
        DataError, "The topic takes no such record: a compacted topic takes none without a key. "
                   "Give each record a key, or change cleanup.policy of the topic."),
    **dict.fromkeys(
        ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID",
         "TOPIC_EXCEPTION"),
        (ConfigError, "Create the topic, or give it more partitions; or correct the option or "
                      "column that names it."),
    ),
    **dict.fromkeys(
        ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED",
         "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "SASL_AUTHENTICATION_FAILED", "_AUTHENTICATION"),
        (ConfigError, "Let the sink's user write there, or correct its credentials."),
    ),
    **dict.fromkeys(
        ("UNSUPPORTED_VERSION", "UNSUPPORTED_FOR_MESSAGE_FORMAT", "_UNSUPPORTED_FEATURE",
         "UNSUPPORTED_COMPRESSION_TYPE", "INVALID_REQUIRED_ACKS", "INVALID_TRANSACTION_TIMEOUT",
         "_INVALID_ARG"),
        (ConfigError, "Change the option kafka.* that asks for it, or the cluster."),
    ),
    "POLICY_VIOLATION": (ConfigError, "Change the policy of the cluster, or what breaks it."),
}  # fmt: skip


@cache
def _by_code() -> dict[int, tuple[type[Exception], str]]:
    """Return the meanings by code; older releases of the library lack some names."""
    codes = {name: getattr(confluent().KafkaError, name, None) for name in _MEANINGS}
    return {code: _MEANINGS[name] for name, code in codes.items() if code is not None}


def is_fenced(error: Any) -> bool:
    """Return whether another owner has fenced the producer."""
    return _by_code().get(error.code(), (None,))[0] is Fenced


def ends_producer(error: Any) -> bool:
    """Return whether the producer can go on no more, fenced or not."""
    return bool(error.fatal()) or error.code() == confluent().KafkaError._FATAL or is_fenced(error)


def final(error: Any, said: str, ending: str = NOT_PUBLISHED) -> Exception | None:
    """Return the error that comes back at every attempt, or None if another one may succeed.

    Parameters
    ----------
    error : confluent_kafka.KafkaError
    said : str
        What failed, and the library's words for it.
    ending : str, optional
        What has become of the slice.
    """
    kind, advice = _by_code().get(error.code(), (Fenced, ""))
    return None if kind is Fenced else kind(f"{said}. {advice} {ending}")


def of_record(error: Any, message: Any) -> Exception:
    """Return what it means that the brokers did not take a record of a transaction.

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
    said = f"{of_message(message)} was not taken: {error.str()}"
    return final(error, said) or Aborted(said)


def of_message(message: Any) -> str:
    """Return which record a message is, for an error."""
    return described(message.topic(), message.value(), message.key(), message.partition())


def described(topic: str, value: bytes | None, key: bytes | None, partition: int | None) -> str:
    """Return which record it is, for an error."""
    where = f"topic {topic}, partition {partition}, key {key!r}"
    return f"A record of {len(value or b''):,} bytes ({where[:200]})"


def of_initialising(error: Any, transactional_id: str, settings: ClientSettings) -> Exception:
    """Return what it means that a transactional ID could not be initialised."""
    text = settings.without_secrets(str(error.str()))
    said = f"The sink cannot begin a transaction as {transactional_id}: {text}"
    return final(error, said, "Nothing was written.") or SinkError(
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
