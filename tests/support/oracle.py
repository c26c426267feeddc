"""What must have come out: the guarantee over rows, and the sums over metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from datetime import timedelta

import pyarrow as pa

from dedup import BatchMetrics, testing
from tests.support.spark_query import Run


class Oracle:
    """`dedup.testing.Oracle` over tables of records, whose times are whole seconds."""

    def __init__(self, horizon_s: int, lateness_s: int) -> None:
        self._truth = testing.Oracle(timedelta(seconds=horizon_s), timedelta(seconds=lateness_s))

    def verdicts(self, table: pa.Table) -> Counter[tuple[Hashable, int, bool]]:
        """How often (ID, effective time, passes or not) occurs among a micro-batch's records."""
        times_ms = (1000 * at for at in table["at"].to_pylist())
        judged = self._truth.verdicts(zip(table["id"].to_pylist(), times_ms, strict=True))
        return Counter({(name, ms // 1000, on): n for (name, ms, on), n in judged.items()})

    def clamped(self, at: int) -> int:
        return self._truth.effective_ms(1000 * at) // 1000

    def check(self, tables: Sequence[pa.Table], run: Run) -> None:
        """Compare a run with a verdict column, from its first micro-batch on."""
        assert sorted(run.rows) == list(range(len(tables)))
        for batch, table in enumerate(tables):
            clamp = {at: self.clamped(at) for at in set(table["at"].to_pylist())}
            told = Counter(
                (row["id"], clamp[row["at"]], row["verdict"] != "duplicate")
                for row in run.rows[batch]
            )
            assert told == self.verdicts(table), f"micro-batch {batch}"


def sums_hold(metrics: list[BatchMetrics], rows_in: list[int]) -> None:
    assert [m.records_in for m in metrics] == rows_in
    for m in metrics:
        assert m.records_in == m.unique + m.duplicate + m.late + m.null_id + m.untimed, m
        assert m.shards == 2
