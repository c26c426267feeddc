"""Detects topics that were deleted and created again since a checkpoint's offsets were written.

A topic that is created again begins at offset 0. Spark compares only offsets. If the new topic
holds as many records as the query had read of the old topic, Spark continues in the middle and
never reads the records before. Brokers assign an ID to each topic (KIP-516), and a new topic gets
another ID. So we keep the IDs in the checkpoint, in a separate file, and compare them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from dedup.errors import CatalogError, ConfigError, ObjectMissing, SourceError, StateError
from dedup.sources.kafka.cluster import Topic
from dedup.spark.driver.checkpoint_log import kafka_offsets
from dedup.storage.root import Root

#: Name of the file with the IDs of topics, in the checkpoint.
FILE = "dedup-kafka-topics.json"
_FORMAT = 1


class Checkpoint:
    """A query's checkpoint, with the topics that the query has read and the topics' IDs.

    Every method raises ConfigError if the storage does not answer.
    """

    def __init__(self, where: str) -> None:
        self._root = Root(where)

    @property
    def url(self) -> str:
        return self._root.url()

    def query_id(self) -> str | None:
        """Return the query's ID, or None before its first start."""
        text = self._read("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def topics_read(self) -> frozenset[str] | None:
        """Return the topics in the checkpoint's offsets, or None before the first micro-batch."""
        with self._answering():
            names = [info.name.partition("/")[2] for info in self._root.list("offsets")]
        numbers = sorted(int(name) for name in names if name.isascii() and name.isdigit())
        if not numbers:
            return None
        text = self._read(f"offsets/{numbers[-1]}") or b""
        lines = text.decode(errors="replace").splitlines()[2:]
        return frozenset(topic for line in lines for topic in kafka_offsets(line[line.find("{") :]))

    def topic_ids(self) -> dict[str, str]:
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

    def compare(
        self, topics: Mapping[str, Topic | None], read: Iterable[str], *, store: bool = True
    ) -> None:
        """Check topics against the stored IDs by `checked_ids`, and store the IDs of new topics."""
        stored = self.topic_ids()
        current = {name: None if topic is None else topic.id for name, topic in topics.items()}
        checked = checked_ids(stored, current, read)
        if store and checked != stored:
            document = {"format": _FORMAT, "topics": dict(sorted(checked.items()))}
            with self._answering():
                self._root.put_bytes(FILE, json.dumps(document, indent=1).encode() + b"\n")

    def _read(self, name: str) -> bytes | None:
        with self._answering(), suppress(ObjectMissing):
            return self._root.read_bytes(name)
        return None

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except CatalogError as error:
            raise ConfigError(
                f"checkpoint={self.url!r} cannot be used: {error.__cause__ or error}. Give the "
                "query's checkpointLocation in pyarrow's spelling (s3://, not s3a://)."
            ) from None


def checked_ids(
    stored: Mapping[str, str], current: Mapping[str, str | None], read: Iterable[str]
) -> dict[str, str]:
    """Return the IDs to store in the checkpoint. A topic that was read keeps its stored ID.

    `stored` has the ID that each topic had when the query first read it. `current` has the ID that
    each topic has now, or None for a topic that does not exist. Raises SourceError for a topic of
    `read` that was deleted, even if it was created again.
    """
    wanted = {**stored, **{topic: one for topic, one in current.items() if one is not None}}
    for topic in sorted(read):
        if topic not in stored:
            continue
        now = current.get(topic, stored[topic])
        if now != stored[topic]:
            become = "does not exist any more" if now is None else "was deleted and created again"
            ids = stored[topic] if now is None else f"{stored[topic]} then, {now} now"
            raise SourceError(
                f"Topic {topic} {become} (ID {ids}) since this query began to read it. The "
                "checkpoint has offsets of the old topic, and from there the query would skip "
                "records of the new one.",
                remedy="topic-made-anew",
            )
    return wanted
