"""The state row of a shard of `dedup_by_sequence`, a BINARY value that Spark keeps.

``dedup/core/FORMATS.md`` describes the bytes. If the row is damaged, the query stops, because no
other copy exists.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

from dedup.core import state_row
from dedup.core.clocks import Clocks
from dedup.core.producers import Producers
from dedup.errors import StateError
from dedup.values.parse import count, integer, record, row, text, tuple_of

MAGIC = b"DDSQ"
VERSION = 1
_HEAD = {
    "epoch": lambda value: integer(value, -1),
    "clocks": Clocks.from_json,
    "shard": row(count, count),
    "made_of": tuple_of(text),
}


@dataclass(frozen=True, slots=True, eq=False)
class SequenceState:
    """Everything that a shard remembers."""

    #: Micro-batch that wrote the state, or -1 before the first.
    epoch: int = -1
    #: Index of the shard, and number of shards, or (0, 0) before the first micro-batch.
    shard: tuple[int, int] = (0, 0)
    #: How the query computes producer, partition, epoch, sequence and timestamp.
    made_of: tuple[str, ...] = ()
    clocks: Clocks = field(default_factory=Clocks)
    producers: Producers = field(default_factory=Producers.empty)

    @staticmethod
    def damaged(what: str) -> StateError:
        return StateError.damaged(what, with_catalog=False)

    def to_bytes(self) -> bytes:
        head: dict[str, Any] = {
            "epoch": self.epoch,
            "clocks": self.clocks.to_json(),
            "shard": list(self.shard),
            "made_of": list(self.made_of),
        }
        body = self.producers.to_bytes()
        return state_row.written(MAGIC, VERSION, 0, state_row.compressed(head), body)

    @staticmethod
    def from_bytes(data: bytes) -> SequenceState:
        """Return the state in a row."""
        parsed = state_row.read(
            data, MAGIC, VERSION, content="producers", damaged=SequenceState.damaged
        )
        try:
            head = parsed.fields()
            if parsed.parts or len(parsed.rest):
                raise ValueError("something follows its producers")
            return SequenceState(producers=Producers.from_bytes(parsed.body), **record(head, _HEAD))
        except (ValueError, zlib.error) as exc:
            raise SequenceState.damaged(f"it contradicts itself: {exc}") from exc
