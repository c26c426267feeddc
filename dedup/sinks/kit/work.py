"""The work of a `TransactionalSink`: each task publishes or stages its rows, then the driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from dedup.sinks.batch import Batch
from dedup.sinks.kit.slots import KitRows, KitSlot, KitSlots, Slots
from dedup.sinks.kit.transactional import TransactionalSink
from dedup.sinks.ledger import Ledger
from dedup.sinks.options import SinkOptions
from dedup.sinks.protocol import Stage, StagedBatch
from dedup.sinks.work import SlotWork


@dataclass(frozen=True)
class TransactionalWork(SlotWork[KitSlot]):
    """The work of a `TransactionalSink`.

    `identity` tells sinks of other outputs apart in one process. `setting` holds the options that
    decide where the markers are, for the ledger, or None if only the sink knows them.
    """

    options: SinkOptions
    custom: TransactionalSink[Any]
    identity: bytes
    setting: Mapping[str, str] | None = None
    crash_risk: tuple[str, str] | None = None
    room = "kit"

    @property
    def is_atomic(self) -> bool:
        return not self.custom.parallel

    def slot(self, batch: Batch, number: int) -> KitSlot:
        return KitSlot(self._slots(batch), self.identity, number)

    def task_rows(self, rows: Iterable[pa.RecordBatch], stage: Stage) -> KitRows:
        # Wait for Spark's first rows before a transaction opens: servers end idle transactions.
        first = list(islice(rows := iter(rows), 1))
        return KitRows(chain(first, rows), stage)

    def slots(self, batch: Batch) -> KitSlots:
        return KitSlots(self._slots(batch), self.identity, self.staging(batch))

    def settle(self, ledger: Ledger, staged: StagedBatch) -> None:
        """Record where the markers are.

        If a user's sink looks for them elsewhere, it misses the micro-batch of the ledger.
        """
        if self.setting is not None:
            ledger.settle(self.setting)

    def _slots(self, batch: Batch) -> Slots:
        return Slots(self.custom, self.options, batch.query_id)
