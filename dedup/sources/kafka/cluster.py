"""Asks a Kafka cluster for its brokers, topics, settings and offsets.

A request returns an answer, or None if the user lacks the permission. If the request fails, the
error shows what the connections reported, such as rejected credentials.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from dedup.errors import ConfigError
from dedup.sources.kafka.client_options import ClientSettings
from dedup.sources.kafka.clients import admin_client, confluent, is_passing

T = TypeVar("T")
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as the brokers describe it."""

    name: str
    partitions: int
    #: Smallest number of replicas of a partition.
    replicas: int
    #: The broker's ID of the topic. A topic that is created again gets another ID (KIP-516).
    id: str


class Cluster:
    """A cluster that answers requests about its topics. The first request connects.

    Every method raises ConfigError if no server answers, or the servers reject the credentials or
    the request. If the client library is missing, the error names the `purpose`.
    """

    def __init__(self, settings: ClientSettings, *, purpose: str = "Writing to Kafka") -> None:
        self.settings = settings
        self._library = confluent(purpose)
        self._errors: deque[Any] = deque(maxlen=100)
        self._admin: Any = admin_client(
            settings, purpose=purpose, error_cb=self._errors.append, log_level=0
        )
        self._timeout_s = settings.timeout_s

    def broker_ids(self) -> list[int]:
        return [node.id for node in self._answer(self._admin.describe_cluster()).nodes]

    def topic_names(self) -> list[str]:
        try:
            return list(self._admin.list_topics(timeout=self._timeout_s).topics)
        except self._library.KafkaException as error:
            why = self._text(error.args[0])
            raise ConfigError(f"The topics of {self.settings.servers}: {why}.") from None

    def topic(self, name: str) -> Topic | None:
        """Return a topic, or None if it does not exist or is hidden from the user."""
        return self.topics([name])[name]

    def topics(self, names: Iterable[str]) -> dict[str, Topic | None]:
        library, wanted = self._library, list(names)
        if not wanted:
            return {}
        answers = self._admin.describe_topics(library.TopicCollection(wanted))
        return {name: self._topic(name, future) for name, future in answers.items()}

    def _topic(self, name: str, answer: Future[Any]) -> Topic | None:
        library = self._library
        try:
            described = self._answer(answer)
        except library.KafkaException as error:
            if error.args[0].code() == library.KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise ConfigError(f"Topic {name!r}: {self._text(error.args[0])}.") from None
        return Topic(
            name=name,
            partitions=len(described.partitions),
            replicas=min(len(partition.replicas) for partition in described.partitions),
            id=str(described.topic_id),
        )

    def settings_of(self, kind: Literal["topic", "broker"], name: str) -> Mapping[str, str] | None:
        """Return the settings of a topic or broker, or None if the user may not read them."""
        admin = self._library.admin
        resource = admin.ConfigResource(admin.ResourceType[kind.upper()], name)
        try:
            entries = self._answer(self._admin.describe_configs([resource])[resource])
        except self._library.KafkaException:
            return None
        return {entry.name: entry.value or "" for entry in entries.values()}

    def make_topic(
        self, name: str, *, partitions: int, replicas: int, settings: Mapping[str, str]
    ) -> str | None:
        """Create a topic unless it exists. If the broker refuses, return the reason."""
        topic = self._library.admin.NewTopic(
            name, num_partitions=partitions, replication_factor=replicas, config=dict(settings)
        )
        try:
            self._answer(self._admin.create_topics([topic])[name])
        except self._library.KafkaException as error:
            if error.args[0].code() != self._library.KafkaError.TOPIC_ALREADY_EXISTS:
                return self._text(error.args[0])
        deadline = time.monotonic() + self._timeout_s
        while self.topic(name) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return None

    def begins(self, topic: Topic) -> dict[int, int]:
        return self._offsets(topic, self._library.admin.OffsetSpec.earliest(), committed=False)

    def ends(self, topic: Topic, *, committed: bool) -> dict[int, int]:
        """Return the end offset of each partition.

        With `committed`, the end is before the first open transaction, because readers of committed
        records stop there.
        """
        return self._offsets(topic, self._library.admin.OffsetSpec.latest(), committed=committed)

    def _offsets(self, topic: Topic, spec: Any, *, committed: bool) -> dict[int, int]:
        library, level = self._library, self._library.IsolationLevel
        places = [library.TopicPartition(topic.name, n) for n in range(topic.partitions)]
        chosen = level.READ_COMMITTED if committed else level.READ_UNCOMMITTED

        def ask() -> dict[int, int]:
            answers = self._admin.list_offsets(dict.fromkeys(places, spec), isolation_level=chosen)
            return {place.partition: self._answer(answers[place]).offset for place in places}

        try:
            return self._repeated(ask)
        except library.KafkaException as error:
            why = self._text(error.args[0])
            raise ConfigError(f"Topic {topic.name!r}: {why}.") from None

    def group_offsets(self, group: str, topics: Iterable[Topic]) -> dict[str, dict[int, int]]:
        """Return the offsets that a consumer group has committed, by topic and partition.

        The request waits until open transactions that commit offsets of the group end.
        """
        library = self._library
        places = [library.TopicPartition(t.name, n) for t in topics for n in range(t.partitions)]
        offsets: dict[str, dict[int, int]] = {}
        if not places:
            return offsets
        request = library.ConsumerGroupTopicPartitions(group, places)

        def ask() -> list[Any]:
            answers = self._admin.list_consumer_group_offsets([request], require_stable=True)
            answered: list[Any] = self._answer(answers[group]).topic_partitions
            for place in answered:
                if place.error is not None:
                    raise library.KafkaException(place.error)
            return answered

        try:
            for place in self._repeated(ask):
                if place.offset >= 0:
                    offsets.setdefault(place.topic, {})[place.partition] = place.offset
        except library.KafkaException as error:
            why = self._text(error.args[0])
            raise ConfigError(
                f"The offsets of group {group} cannot be read: {why}. The user needs the right to "
                "describe the group, and no transaction that commits its offsets may be open."
            ) from None
        return offsets

    def _repeated(self, ask: Callable[[], T]) -> T:
        """Return an answer. If an error may be temporary, ask again for a while."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return ask()
            except self._library.KafkaException as error:
                if not is_passing(error.args[0]) or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)

    def _answer(self, future: Future[T]) -> T:
        deadline = time.monotonic() + self._timeout_s
        while not self._rejections():
            try:
                return future.result(timeout=_POLL_S)
            except Late:
                if time.monotonic() > deadline:
                    break
            except self._library.KafkaException as error:
                codes = self._library.KafkaError
                silence = codes._TIMED_OUT, codes._TIMED_OUT_QUEUE, codes._TRANSPORT
                if error.args[0].code() not in silence:
                    raise
                break
        down = self._library.KafkaError._ALL_BROKERS_DOWN
        heard = self._rejections() or [e for e in self._errors if e.code() != down]
        why = f" ({self._text(heard[-1])})" if heard else ""
        protocol = self.settings.properties.get("security.protocol", "PLAINTEXT")
        raise ConfigError(
            f"The cluster at {self.settings.servers} does not answer{why}. Check "
            "kafka.bootstrap.servers, that this machine reaches the addresses that the brokers "
            f"advertise, that their listener has kafka.security.protocol {protocol}, and the "
            "credentials and certificates (kafka.sasl.*, kafka.ssl.*)."
        )

    def _rejections(self) -> list[Any]:
        """Return the errors of connections whose credentials or certificates were rejected."""
        codes = self._library.KafkaError
        self._admin.poll(0)
        return [e for e in self._errors if e.code() in (codes._AUTHENTICATION, codes._SSL)]

    def _text(self, error: Any) -> str:
        return self.settings.without_secrets(str(error.str()).strip().rstrip("."))
