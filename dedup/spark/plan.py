"""The operator's plan: what the driver resolved, as one picklable value for the tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from dedup.catalog.compatibility import Accepted
from dedup.catalog.definition import Definition
from dedup.catalog.root import Root
from dedup.core.admission import Handling
from dedup.core.metrics import VERDICTS
from dedup.core.policy import Policy
from dedup.core.sequence import SEQUENCE_VERDICTS, SequenceRule

#: Prefix of the columns that the operator adds for itself, and never emits.
HELPER_PREFIX = "__dedup_"
#: The pass that writes rows to local files (`dedup.spark.executor.bodies`).
Bodies: TypeAlias = Literal["pack", "group", "none"]


@dataclass(frozen=True, slots=True)
class TimeSource:
    """Where timestamps come from."""

    #: Description for people.
    text: str
    definition: Definition
    #: Column of the timestamp, or None in processing-time mode or if the ID carries the time.
    column: str | None = None
    #: Whether the ID is a version-7 UUID, which carries the time.
    in_id: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """What `dedup_by_sequence` adds to a plan, in which producer and partition are the ID."""

    #: A record without a value in one of these columns of pack's input has no producer.
    producer_columns: tuple[str, ...]
    sequence_column: str
    #: Column of the epoch, or None if there is only one epoch.
    epoch_column: str | None
    rule: SequenceRule
    #: Options and expressions that a restart must repeat.
    made_of: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that pack, group function and unpack need to know.

    Columns are named as in pack's input: the user's, then helper columns for expressions.
    """

    #: Column in pack's input, and the name and Spark type that the birth certificate holds.
    id_columns: tuple[tuple[str, str, str], ...]
    id_definitions: tuple[Definition, ...]
    time: TimeSource
    #: Changes of ID and timestamp that the user accepts.
    accepted: Accepted = field(default_factory=Accepted)
    #: Column with the micro-batch's time, or None in processing-time mode.
    now_column: str | None
    source_columns: tuple[str, ...]
    order_columns: tuple[str, ...] = ()
    payload_columns: tuple[str, ...] = ()
    #: Number of the first columns, which are the user's. Order expressions follow, and travel with
    #: them.
    user_columns: int
    body_columns: int
    handling: Handling
    #: Names of the verdicts that pass through if there is no verdict column.
    emitted: frozenset[str]
    max_future_ms: int
    #: Number of shards, or None if the tasks find it out (invariant 14).
    shards: int | None
    policy: Policy
    #: Root of the catalog, or None if nothing is remembered, or only in Spark state.
    root: Root | None = None
    cache_dir: str | None = None
    cache_bytes: int | None = None
    max_shard_batch_bytes: int
    #: UUID that the driver draws each time the operator is applied.
    start_id: str
    #: Secret that the driver draws with `start_id`. A new query stores the secret in its
    #: certificate, and a batch derives its hash keys from it.
    secret: bytes = field(default=b"", repr=False)
    bodies: Bodies = "none"
    #: Whether the query is a stream, which keeps state.
    streaming: bool = False
    #: Whether the driver left a mark at the root that every executor must see.
    marked: bool = False
    numbering: Numbering | None = None

    @property
    def passes(self) -> npt.NDArray[np.bool_]:
        """Return, for each verdict code, whether rows with this verdict leave the operator."""
        every = self.handling.verdict is not None
        return np.array([every or name in self.emitted for name in self.verdicts])

    @property
    def verdicts(self) -> tuple[str, ...]:
        return VERDICTS if self.numbering is None else SEQUENCE_VERDICTS
