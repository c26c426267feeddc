"""Definitions: how a query computes its record IDs and timestamps, in any release of Spark."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dedup.values.parse import record, row, text, tuple_of

#: Version of the encoding in `dedup.spark.executor.rowhash`. Payloads of different versions cannot
#: be compared.
_PAYLOAD_ENCODING = 1
#: Parts of a type that do not affect the bytes of an ID.
_PRECISION = (
    (re.compile(r"decimal\(\d+,(-?\d+)\)"), r"decimal(,\1)"),
    (re.compile(r"interval (?:day|hour|minute|second).*"), "interval"),
    (re.compile(r"time\(\d\)"), "time"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One value that is computed from a record's columns: a column of the ID, or the timestamp."""

    #: Expression that computes the value, such as ``lower(order_id)``, without aliases.
    expression: str
    #: Spark type of the result, or empty if the expression reads no column.
    kind: str
    #: Name and Spark type of each column that the expression reads, sorted by name. Empty for a
    #: plain column.
    inputs: tuple[tuple[str, str], ...] = ()
    #: Time zone of the session if the result may depend on it, else empty.
    time_zone: str = ""
    #: Value of ``spark.sql.ansi.enabled`` if the result may depend on it, else empty.
    ansi: str = ""

    @property
    def identity(self) -> tuple[object, ...]:
        """Values that are equal if two definitions make the same bytes from the same record."""
        settings = (self.time_zone, self.ansi)
        return self.expression, encoded_kind(self.kind), self.inputs, *settings

    def text_beside(self, other: Definition) -> str:
        """Return a text that distinguishes this definition from ``other``."""
        text = self.expression + (f" ({self.kind})" if self.kind else "")
        if self.inputs != other.inputs and self.inputs:
            text += " of " + ", ".join(f"{name} {kind}" for name, kind in self.inputs)
        if self.time_zone != other.time_zone and self.time_zone:
            text += f" in the time zone {self.time_zone}"
        if self.ansi != other.ansi and self.ansi:
            text += f" with spark.sql.ansi.enabled={self.ansi}"
        return text

    @classmethod
    def from_json(cls, value: Any) -> Definition:
        texts = dict.fromkeys(cls.__slots__, text)
        return cls(**record(value, {**texts, "inputs": tuple_of(row(text, text))}))


def encoded_kind(kind: str) -> str:
    """Return the part of a Spark type that affects the bytes of an ID, e.g. a decimal's scale."""
    lowered = kind.lower()
    for pattern, short in _PRECISION:
        if pattern.fullmatch(lowered):
            return pattern.sub(short, lowered)
    return lowered


def change_token(what: str, before: Sequence[Definition], after: Sequence[Definition]) -> str:
    """Return the token of 12 characters by which a user accepts exactly this change of `what`."""
    both = [[asdict(definition) for definition in side] for side in (before, after)]
    data = json.dumps([what, *both], sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(data, digest_size=6).hexdigest()


def name_of_columns(definitions: Sequence[Definition]) -> str:
    """Return a name for a set of columns. Sets that make the same values have the same name."""
    content = json.dumps([_PAYLOAD_ENCODING, *(definition.identity for definition in definitions)])
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
