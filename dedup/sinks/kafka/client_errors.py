"""Classify librdkafka's errors: whether a retry can succeed, and whether the producer is lost."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import cache
from typing import Any

from dedup.errors import ConfigError, DataError, SinkError
from dedup.sinks.protocol import Aborted, Fenced
from dedup.sources.kafka.client_options import ClientSettings
from dedup.sources.kafka.clients import confluent

#: Words that occur in librdkafka's log lines about fencing.
_FENCING = ("fenced by a newer instance", "an old epoch", "PRODUCER_FENCED")


#: The meaning of broker errors. `Fenced`: another owner has the slot. `DataError` or `ConfigError`:
#: no retry can succeed, and the text gives advice. Errors that are not listed are transient.
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
        DataError, "The topic rejects such a record: a compacted topic requires keys. "
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
    """Return the meanings keyed by error code. An older library may not know all errors."""
    codes = {name: getattr(confluent().KafkaError, name, None) for name in _MEANINGS}
    return {code: _MEANINGS[name] for name, code in codes.items() if code is not None}


def is_fenced(error: Any) -> bool:
    return _by_code().get(error.code(), (None,))[0] is Fenced


def ends_producer(error: Any) -> bool:
    """Return whether an error makes the producer unusable, by fencing or otherwise."""
    return bool(error.fatal()) or error.code() == confluent().KafkaError._FATAL or is_fenced(error)


def permanent_error(
    error: Any, text: str, ending: str = "Nothing of its slice was published."
) -> Exception | None:
    """Return the error to raise if every attempt would fail, or None if a new attempt may succeed.

    `text` says what failed, in the library's words. `ending` says what happened to the slice.
    """
    kind, advice = _by_code().get(error.code(), (Fenced, ""))
    return None if kind is Fenced else kind(f"{text}. {advice} {ending}")


def rejected_record(error: Any, message: Any) -> Exception:
    """Return the error for a record that the brokers rejected within a transaction.

    The error is `Fenced` if the producer is unusable. After any other error the sink must abort the
    transaction.
    """
    codes = confluent().KafkaError
    if error.code() in (codes._PURGE_QUEUE, codes._PURGE_INFLIGHT):
        return Fenced("the transaction's records were discarded")
    if ends_producer(error):
        return Fenced(str(error))
    text = f"{describe_message(message)} was rejected: {error.str()}"
    return permanent_error(error, text) or Aborted(text)


def describe_message(message: Any) -> str:
    return describe_record(message.topic(), message.value(), message.key(), message.partition())


def describe_record(
    topic: str, value: bytes | None, key: bytes | None, partition: int | None
) -> str:
    is_known = partition is not None and partition >= 0
    where = f"topic {topic}{f', partition {partition}' if is_known else ''}, key {key!r}"
    return f"A record of {len(value or b''):,} bytes ({where[:200]})"


def failed_start(error: Any, transactional_id: str, settings: ClientSettings) -> Exception:
    text = settings.without_secrets(str(error.str()))
    prefix = f"The sink cannot begin a transaction as {transactional_id}"
    return permanent_error(error, f"{prefix}: {text}", "Nothing was written.") or SinkError(
        f"{prefix} at {settings.servers}: {text}. Nothing was written; start the query again once "
        "the brokers answer."
    )


def _is_shown(record: logging.LogRecord) -> bool:
    """Return whether to log a line: not if it is about fencing, unless the level is DEBUG."""
    text = record.getMessage()
    is_fencing = any(part in text for part in _FENCING)
    return not is_fencing or logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


#: The logger of the sink's producers. librdkafka logs fencing as a fatal error, but fencing is
#: normal here: Spark may run a task in any worker, so slots often change their owners.
client_log = logging.getLogger("dedup.kafka.client")
client_log.addFilter(_is_shown)


def flush_log(producer: Any) -> None:
    """Let a producer write its last log lines before the sink discards the producer."""
    with suppress(Exception):  # a lost producer's delivery reports may raise
        producer.poll(0)
