"""A source of a stream: its kind and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: A source that is neither Kafka nor files, and whose name is unknown.
OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source of a stream."""

    #: ``"kafka"``, ``"file"``, `OTHER`, or Spark's name for it.
    kind: str
    #: Known options, names in lower case.
    options: Mapping[str, str] = field(default_factory=dict)
    #: Whether all given options are known, so that any other one has Spark's default.
    complete: bool = False
    #: Kafka topics, and the number of their partitions.
    topics: tuple[str, ...] = ()
    partitions: int | None = None

    def option(self, name: str) -> str | None:
        return self.options.get(name.lower())

    @property
    def name(self) -> str:
        """Its name in a sentence."""
        if self.topics:
            return f"topic{'s' if len(self.topics) > 1 else ''} {', '.join(self.topics)}"
        if self.kind == OTHER:
            return "a source that is neither Kafka nor files"
        return f"the {self.kind} source"
