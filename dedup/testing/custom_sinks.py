"""The harness of a user's sink, which `custom_sink` makes run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from dedup.sinks.kit.function import custom_sink
from dedup.sinks.kit.slots import TransactionalWork, forget_slots
from dedup.sinks.kit.transactional import TransactionalSink
from dedup.sinks.kit.write_ahead import SentMarkers, WriteAheadSink
from dedup.testing.sinks import QUERY, SinkHarness, SinkOutput

Sink: TypeAlias = TransactionalSink[Any] | WriteAheadSink
Rows: TypeAlias = Callable[[Sequence[int]], pa.RecordBatch]
Read: TypeAlias = Callable[[Any], Iterable[int]]


class CustomSink(SinkHarness):
    """The harness of a user's sink."""

    def __init__(self, sink: Sink, rows: Rows, read: Read, folder: Path, **options: str) -> None:
        self.sink, self._rows, self._read = sink, rows, read
        texts = {name.replace("_", "."): value for name, value in options.items()}
        self.function = custom_sink(sink, checkpoint=str(folder), options=texts)
        self.work = self.function.prepare(from_arrow_schema(rows([0]).schema))

    def rows(self, numbers: Sequence[int]) -> pa.RecordBatch:
        """Return what the user's function returns."""
        return self._rows(numbers)

    def numbers(self) -> Counter[int]:
        """Return how often a reader sees each number."""
        return Counter(self._read(self.sink))

    def inspected(self, checkpoint: Path | None) -> list[dict[str, Any]]:
        """Return what the sink has published."""
        sinks: list[dict[str, Any]] = self.function.inspect().to_json()["sinks"]
        return sinks

    def forget(self) -> None:
        """Forget what this process owns, as if it had just started."""
        forget_slots()


def custom_output(
    sink: Sink, rows: Rows, read: Read, folder: Path, *, shared: bool = True, repeats: bool = False
) -> SinkOutput:
    """Return the output of a user's sink, for `SinkContract`."""
    start, has_markers = partial(CustomSink, sink, rows, read), isinstance(sink, TransactionalSink)
    tasks_publish = isinstance(sink, TransactionalSink) and sink.parallel

    def lose_markers() -> None:
        work = start(folder / "checkpoint").work
        if not isinstance(work, TransactionalWork):
            SentMarkers(work.options.ledger or "", QUERY).clean(1 << 62)
            return
        slots = work.slots(QUERY)
        known = slots.all()
        transaction = work.custom.begin()
        for number in known:
            slots.write(transaction, number, replace(slots.read(transaction, number), marker=None))
        work.custom.commit(transaction)

    return SinkOutput(
        start, folder, lose_markers, one_commit=not tasks_publish,
        compares=not has_markers or tasks_publish, shared=shared, has_markers=has_markers,
        repeats=repeats,
    )  # fmt: skip
