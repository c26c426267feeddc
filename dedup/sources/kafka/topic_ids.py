"""Detects topics that were deleted and created again since a checkpoint's offsets were written.

A topic that is created again begins at offset 0. Spark compares offsets only: if the new topic
holds as many records as the query had read of the old one, Spark continues in the middle and never
reads the records before. Brokers assign each topic an ID (KIP-516). The checkpoint keeps the IDs in
a separate file, to compare them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from dedup.catalog.root import Root
from dedup.errors import CatalogError, ConfigError, ObjectMissing, SourceError, StateError
from dedup.sources.kafka.cluster import Topic

#: Beside Spark's own files.
FILE = "dedup-kafka-topics.json"
_FORMAT = 1


class Checkpoint:
    """A query's checkpoint: what the query has read of Kafka, and the topics' IDs.

    Every method raises ConfigError if the storage does not answer.
    """

    def __init__(self, where: str) -> None:
        self._root = Root(where)

    @property
    def url(self) -> str:
        """Where it is, for people."""
        return self._root.url()

    def query_id(self) -> str | None:
        """Return the query's ID, or None before its first start."""
        text = self._read("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def topics_read(self) -> frozenset[str] | None:
        """Return the topics that have offsets, or None before the first micro-batch is planned."""
        try:
            names = [info.name.partition("/")[2] for info in self._root.list("offsets")]
        except CatalogError as error:
            raise self._unusable(error) from None
        numbers = sorted(int(name) for name in names if name.isascii() and name.isdigit())
        if not numbers:
            return None
        text = self._read(f"offsets/{numbers[-1]}") or b""
        lines = text.decode(errors="replace").splitlines()[2:]
        return frozenset(topic for line in lines for topic in _topics(line))

    def topic_ids(self) -> dict[str, str]:
        """Return the stored IDs by topic."""
        text = self._read(FILE)
        if text is None:
            return {}
        try:
            stored = json.loads(text)
            if stored["format"] != _FORMAT:
                raise ValueError(stored["format"])
            return {str(topic): str(one) for topic, one in stored["topics"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise StateError(
                f"{self._root.url(FILE)} is damaged, or another release wrote it. It holds the IDs "
                "of the topics that the query reads. Restore the checkpoint from a copy. If no "
                "topic was created again since then, you may delete the file instead.",
                remedy="damaged-state",
            ) from None

    def store_ids(self, topics: Mapping[str, str]) -> None:
        """Replace the stored IDs."""
        document = {"format": _FORMAT, "topics": dict(sorted(topics.items()))}
        try:
            self._root.put_bytes(FILE, json.dumps(document, indent=1).encode() + b"\n")
        except CatalogError as error:
            raise self._unusable(error) from None

    def _read(self, name: str) -> bytes | None:
        try:
            return self._root.read_bytes(name)
        except ObjectMissing:
            return None
        except CatalogError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: CatalogError) -> ConfigError:
        return ConfigError(
            f"checkpoint={self.url!r} cannot be used: {error.__cause__ or error}. Give the query's "
            "checkpointLocation in pyarrow's spelling (s3://, not s3a://)."
        )


def topic_ids(topics: Mapping[str, Topic | None]) -> dict[str, str | None]:
    """Return the IDs of topics, None for a topic that does not exist."""
    return {name: None if topic is None else topic.id for name, topic in topics.items()}


def check_same_topics(
    stored: Mapping[str, str], current: Mapping[str, str | None], read: Iterable[str]
) -> None:
    """Raise SourceError if a topic that the query has read was replaced or deleted.

    `stored` has the IDs of topics when the query first read them, `current` their IDs now, None for
    a topic that does not exist any more.
    """
    for topic in sorted(read):
        if topic not in stored or topic not in current or current[topic] == stored[topic]:
            continue
        now = current[topic]
        become = "does not exist any more" if now is None else "was deleted and created again"
        ids = stored[topic] if now is None else f"{stored[topic]} then, {now} now"
        raise SourceError(
            f"Topic {topic} {become} (ID {ids}) since this query began to read it. The checkpoint "
            "has offsets of the old topic, and from there the query would skip records of the new "
            "one. It has not read any of them.",
            remedy="topic-made-anew",
        )


def ids_to_store(
    stored: Mapping[str, str], current: Mapping[str, str | None], read: Iterable[str]
) -> dict[str, str]:
    """Return the IDs for the checkpoint: a topic that was read keeps its stored ID."""
    known = {topic: one for topic, one in current.items() if one is not None}
    kept = {topic: stored[topic] for topic in read if topic in stored}
    return {**stored, **known, **kept}


def _topics(line: str) -> Iterable[str]:
    """Return the topics in a line of Spark's offset log, none if it is not of a Kafka source."""
    start = line.find("{")
    try:
        offset = json.loads(line[start:]) if start >= 0 else None
    except ValueError:
        return ()
    if not isinstance(offset, dict):
        return ()
    return tuple(topic for topic, partitions in offset.items() if _is_partitions(partitions))


def _is_partitions(value: object) -> bool:
    return isinstance(value, dict) and all(
        number.isdigit() and type(offset) is int for number, offset in value.items()
    )
