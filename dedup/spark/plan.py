"""The operator's plan, a picklable value in which the driver tells tasks what to do.

Pack, group function and unpack are the three passes of the tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from dedup.catalog.definition import Definition
from dedup.core.admission import Handling
from dedup.core.metrics import VERDICTS
from dedup.core.policy import Policy
from dedup.core.sequence import SEQUENCE_VERDICTS, SequenceRule
from dedup.spark.idtime import IdTime
from dedup.storage.root import Root

#: Prefix of helper columns, which the operator adds for itself and never emits.
HELPER_PREFIX = "__dedup_"
#: The pass that writes rows to local files (see `dedup.spark.executor.bodies`).
Bodies: TypeAlias = Literal["pack", "group", "none"]


@dataclass(frozen=True, slots=True)
class TimeSource:
    """The source of a record's timestamp."""

    #: Description for people.
    text: str
    definition: Definition
    #: Column of the timestamp, or None in processing-time mode or if the ID carries the time.
    column: str | None = None
    #: How the ID carries the time, or None if it does not.
    in_id: IdTime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """Fields for `dedup_by_sequence`, which takes a producer and its partition as the ID."""

    #: Columns of the producer. A record that is null in one of them has no producer.
    producer_columns: tuple[str, ...]
    sequence_column: str
    #: Column of the epoch, or None if producers have no epochs.
    epoch_column: str | None
    rule: SequenceRule
    #: Texts of the options and expressions that must stay the same at a restart.
    made_of: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that pack, group function and unpack need to know.

    Names of columns are those in pack's input, which has the user's columns and then helper columns
    for expressions.
    """

    #: For each column of the ID: its name in pack's input, its name and Spark type in the birth
    #: certificate.
    id_columns: tuple[tuple[str, str, str], ...]
    id_definitions: tuple[Definition, ...]
    time: TimeSource
    #: Changes of ID and timestamp that the user accepts at a restart.
    accepted: tuple[str, ...] = ()
    #: Column with the micro-batch's time, or None in processing-time mode.
    now_column: str | None
    source_columns: tuple[str, ...]
    #: Boolean column that marks heartbeats, or None.
    heartbeat_column: str | None = None
    order_columns: tuple[str, ...] = ()
    payload_columns: tuple[str, ...] = ()
    #: Number of the user's columns, which come first. Helper columns for `order_by` follow, and
    #: travel with the user's columns.
    user_columns: int
    body_columns: int
    handling: Handling
    #: Names of the verdicts that pass through if there is no verdict column.
    emitted: frozenset[str]
    max_future_ms: int
    #: Number of shards, or None if the tasks must find out the number (invariant 14).
    shards: int | None
    policy: Policy
    #: Root of the catalog, or None for an operator without a catalog.
    root: Root | None = None
    cache_dir: str | None = None
    cache_bytes: int | None = None
    max_shard_batch_bytes: int
    #: UUID that the driver draws each time the user applies the operator.
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
        """Return, for each verdict code, whether the operator emits rows with this verdict."""
        every = self.handling.verdict is not None
        return np.array([every or name in self.emitted for name in self.verdicts])

    @property
    def verdicts(self) -> tuple[str, ...]:
        return VERDICTS if self.numbering is None else SEQUENCE_VERDICTS
