"""Whether a topic is still the one that a checkpoint's offsets are of.

A topic that is deleted and made again begins at offset 0. Spark compares offsets alone: where the
new topic holds as many records as were read of the old one, or more, it goes on in the middle, and
the records before are never read. But each topic has an ID from the brokers (KIP-516). The IDs are
kept in the checkpoint, in a file of our own, and compared.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping

from dedup.catalog.root import Root
from dedup.errors import CatalogError, ConfigError, ObjectMissing, SourceError, StateError
from dedup.sources.kafka.topics import ReadTopic

logger = logging.getLogger("dedup")

#: Beside Spark's own files.
FILE = "dedup-kafka-topics.json"
_FORMAT = 1


class Checkpoint:
    """A query's checkpoint: what it has read of Kafka, and the topics' IDs.

    Parameters
    ----------
    where : str
        As the query's ``checkpointLocation``; a path, or a URI that pyarrow knows.

    Raises
    ------
    ConfigError
        From every method, if the storage does not answer.
    """

    def __init__(self, where: str) -> None:
        self._root = Root(where)

    @property
    def url(self) -> str:
        """Where it is, for people."""
        return self._root.url()

    def query_id(self) -> str | None:
        """Return the query's ID, None before its first start."""
        text = self._read("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def topics_read(self) -> frozenset[str] | None:
        """Return the topics that have offsets, None before the first micro-batch was planned."""
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
        """Return the IDs that are noted; none where no file is."""
        text = self._read(FILE)
        if text is None:
            return {}
        try:
            noted = json.loads(text)
            if noted["format"] != _FORMAT:
                raise ValueError(noted["format"])
            return {str(topic): str(one) for topic, one in noted["topics"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise StateError(
                f"{self._root.url(FILE)} is damaged, or another release wrote it. It holds the IDs "
                "of the topics that the query reads. Restore the checkpoint from a copy; if no "
                "topic was made anew since it was written, you may delete the file instead.",
                remedy="damaged-state",
            ) from None

    def note(self, topics: Mapping[str, str]) -> None:
        """Write the IDs."""
        noted = {"format": _FORMAT, "topics": dict(sorted(topics.items()))}
        try:
            self._root.put_bytes(FILE, json.dumps(noted, indent=1).encode() + b"\n")
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
            f"checkpoint={self.url!r} cannot be used: {error.__cause__ or error}. Give what "
            "the query has as checkpointLocation, as pyarrow names it (s3://, not s3a://)."
        )


def refuse_other_topics(
    noted: Mapping[str, str], now: Mapping[str, ReadTopic | None], read: Iterable[str]
) -> None:
    """Refuse to go on where a topic is no longer the one that was read.

    Parameters
    ----------
    noted : mapping of str to str
        IDs of topics when they were first read.
    now : mapping of str to ReadTopic or None
        What the brokers say, None where a topic is gone.
    read : iterable of str
        The topics that the query has offsets of.

    Raises
    ------
    SourceError
        Naming the topic.
    """
    for topic in sorted(read):
        if topic not in noted or topic not in now:
            continue
        found = now[topic]
        if found is not None and found.id == noted[topic]:
            continue
        become = "does not exist any more" if found is None else "was deleted and made again"
        ids = noted[topic] if found is None else f"{noted[topic]} then, {found.id} now"
        raise SourceError(
            f"Topic {topic} {become} (ID {ids}) since this query began to read it. The offsets in "
            "the checkpoint are those of the old topic: going on would pass by records of the new "
            "one. Nothing was read of it.",
            remedy="topic-made-anew",
        )


def merged(
    noted: Mapping[str, str], now: Mapping[str, ReadTopic | None], read: Iterable[str]
) -> dict[str, str]:
    """Return the IDs to note: what was read keeps the one that it had."""
    current = {topic: found.id for topic, found in now.items() if found is not None}
    kept = {topic: noted[topic] for topic in read if topic in noted}
    return {**noted, **current, **kept}


def _topics(line: str) -> Iterable[str]:
    """Return the topics of a source's offset as the log has it, none where it is not of Kafka."""
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
