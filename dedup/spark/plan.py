"""The operator's plan: what the driver resolved, as one picklable value for the tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from dedup.catalog.compatibility import Accepted
from dedup.catalog.definition import Definition
from dedup.catalog.root import Root
from dedup.core.admission import Handling
from dedup.core.metrics import VERDICTS
from dedup.core.policy import Policy
from dedup.core.sequence import SEQUENCE_VERDICTS, SequenceRule

#: Names of the columns that the operator adds for itself, and that never leave it.
HELPER_PREFIX = "__dedup_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """What `dedup_by_sequence` adds to a plan, whose ID is producer and partition.

    Parameters
    ----------
    producer_columns : tuple of str
        Columns in pack's input; a record without a value in one of them has no producer.
    sequence_column : str
    epoch_column : str or None
        None: there is one epoch.
    rule : SequenceRule
    made_of : tuple of str
        What producer, partition, epoch, sequence and timestamp are made of.
    stateful : bool
        Whether this is a stream.
    """

    producer_columns: tuple[str, ...]
    sequence_column: str
    epoch_column: str | None
    rule: SequenceRule
    made_of: tuple[str, ...]
    stateful: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that pack, group function and unpack need to know.

    Column names refer to pack's input: the user's columns, then helper columns for what was
    given as an expression; the latter never leave the operator.

    Parameters
    ----------
    id_columns : tuple of (column in pack's input, name, Spark type)
        The name and type are what the birth certificate holds.
    id_definitions : tuple of Definition
        What makes each column of the ID.
    time_column : str or None
        Timestamp column; None in processing-time mode or when the ID carries the time.
    time_source : str
        Where timestamps come from, for people to read.
    time_definition : Definition
        What makes the timestamp.
    accepted : Accepted
        Changes of the two for which the user vouches.
    id_time : {"uuid7"} or None
        Where in the ID the time is.
    now_column : str or None
        Time of the micro-batch; None in processing-time mode.
    source_columns, order_columns : tuple of str
    user_columns : int
        The first so many columns are the user's.
    body_columns : int
        Columns that travel: the user's, then order expressions.
    handling : Handling
        What becomes of records without ID or timestamp, and whether there is a verdict column.
    emitted : frozenset of str
        Names of the verdicts that pass through if there is no verdict column.
    max_future_ms : int
    shards : int or None
        None: resolved in the task (invariant 14).
    policy : Policy
    root : Root or None
        None for batch DataFrames, and where state alone is needed.
    cache_dir : str or None
    cache_bytes : int or None
    max_shard_batch_bytes : int
        Largest share of a micro-batch that one shard may hold in memory.
    start_id : str
        UUID drawn on the driver whenever the operator is applied.
    secret : bytes
        Drawn so too. A query that is born takes it for its certificate; a batch derives its hash
        keys from it.
    bodies : {"pack", "group", "nobody"}
        Who writes the rows to a file, by which unpack gets them.
    marked : bool
        Whether the driver left a mark at the root that every executor must see.
    payload_columns : tuple of str
        What the payload is made of, where the policy names it.
    numbering : Numbering or None
        Of records that are judged by their numbers.
    """

    id_columns: tuple[tuple[str, str, str], ...]
    id_definitions: tuple[Definition, ...]
    time_column: str | None
    time_source: str
    time_definition: Definition
    accepted: Accepted
    id_time: Literal["uuid7"] | None
    now_column: str | None
    source_columns: tuple[str, ...]
    order_columns: tuple[str, ...]
    user_columns: int
    body_columns: int
    handling: Handling
    emitted: frozenset[str]
    max_future_ms: int
    shards: int | None
    policy: Policy
    root: Root | None
    cache_dir: str | None
    cache_bytes: int | None
    max_shard_batch_bytes: int
    start_id: str
    bodies: Literal["pack", "group", "nobody"] = "nobody"
    marked: bool = False
    payload_columns: tuple[str, ...] = ()
    numbering: Numbering | None = None
    secret: bytes = field(default=b"", repr=False)

    @property
    def verdict_column(self) -> str | None:
        """Name of the column for verdicts, if the user wants one."""
        return self.handling.verdict

    @property
    def passes(self) -> npt.NDArray[np.bool_]:
        """For each verdict code, whether rows with this verdict leave the operator."""
        every = self.verdict_column is not None
        return np.array([every or name in self.emitted for name in self.verdicts])

    @property
    def verdicts(self) -> tuple[str, ...]:
        """The name of each verdict code."""
        return VERDICTS if self.numbering is None else SEQUENCE_VERDICTS

    @property
    def streaming(self) -> bool:
        """Whether there is state, or one pass over a batch."""
        return self.root is not None or (self.numbering is not None and self.numbering.stateful)
