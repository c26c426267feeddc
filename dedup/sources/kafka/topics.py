"""What the driver asks the brokers about topics before a query starts, and while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dedup.errors import ConfigError, SourceError
from dedup.sources.kafka.clients import confluent

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


@dataclass(frozen=True, slots=True)
class ReadTopic:
    """What the brokers say of a topic.

    Parameters
    ----------
    name : str
    id : str
        Given when it was made, so one that is made anew has another (KIP-516).
    partitions : tuple of int
    """

    name: str
    id: str
    partitions: tuple[int, ...]


@contextmanager
def no_answer(what: str) -> Iterator[None]:
    """Raise SourceError where a broker does not answer, ConfigError where it refuses."""
    library = confluent("Reading from Kafka")
    try:
        yield
    except library.KafkaException as error:
        reason = error.args[0]
        said = f"{reason.str()} ({reason.name()})"
        if reason.name().startswith(("TOPIC_AUTH", "GROUP_AUTH", "CLUSTER_AUTH", "_AUTH")):
            raise ConfigError(
                f"Kafka refuses to be asked {what}: {said}. Give options kafka.* of a user who may."
            ) from None
        raise SourceError(
            f"Kafka does not answer when asked {what}: {said}. See that servers= names brokers "
            "that run and may be reached from here, and that the security options are theirs."
        ) from None


def all_topics(admin: AdminClient, wait_s: float) -> tuple[str, ...]:
    """Return the names of all topics that may be seen.

    Raises
    ------
    SourceError
        If no broker answers.
    """
    with no_answer("for its topics"):
        return tuple(admin.list_topics(timeout=wait_s).topics)


def describe(
    admin: AdminClient, names: Sequence[str], wait_s: float
) -> dict[str, ReadTopic | None]:
    """Return what the brokers say of topics, None for one that is not there.

    Raises
    ------
    SourceError, ConfigError
        As `no_answer`.
    """
    library = confluent("Reading from Kafka")
    if not names:
        return {}
    missing = library.KafkaError.UNKNOWN_TOPIC_OR_PART, library.KafkaError.TOPIC_EXCEPTION
    found: dict[str, ReadTopic | None] = {}
    asked = admin.describe_topics(library.TopicCollection(list(names)), request_timeout=wait_s)
    for name, future in asked.items():
        with no_answer(f"for topic {name}"):
            try:
                about = future.result()
            except library.KafkaException as error:
                if error.args[0].code() not in missing:
                    raise
                found[name] = None
                continue
        numbers = tuple(sorted(partition.id for partition in about.partitions))
        found[name] = ReadTopic(name, str(about.topic_id), numbers)
    return found
