"""A source of a stream, as the driver knows it: its kind and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: A source that is neither Kafka nor files, where its name is not known.
OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source of a stream.

    Parameters
    ----------
    kind : str
        ``"kafka"``, ``"file"``, `OTHER`, or the name that Spark knows it by.
    options : mapping of str to str
        Its known options, names in lower case.
    complete : bool
        Whether these are all, so that any other one has Spark's default.
    topics : tuple of str
        Of Kafka.
    partitions : int or None
        How many partitions of Kafka it reads.
    """

    kind: str
    options: Mapping[str, str] = field(default_factory=dict)
    complete: bool = False
    topics: tuple[str, ...] = ()
    partitions: int | None = None

    def option(self, name: str) -> str | None:
        """Return the option's text, or None if it is not known."""
        return self.options.get(name.lower())

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        if self.topics:
            return f"topic{'s' if len(self.topics) > 1 else ''} {', '.join(self.topics)}"
        if self.kind == OTHER:
            return "a source that is neither Kafka nor files"
        return f"the {self.kind} source"
