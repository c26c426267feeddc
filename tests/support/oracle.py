"""What must have come out: the guarantee over rows, and the sums over metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from dedup import BatchMetrics
from tests.support.spark_query import Run


@dataclass
class Oracle:
    """The guarantee by brute force, for one clock, times in the past, and late records emitted.

    It knows no bucket, filter or segment, and forgets nothing.
    """

    horizon_s: int
    lateness_s: int
    newest: int | None = None
    late_watermark: int | None = None
    passed: dict[str, list[int]] = field(default_factory=dict)

    def verdicts(self, table: pa.Table) -> Counter[tuple[str, int, bool]]:
        """How often (ID, effective time, goes on or not) occurs among a micro-batch's records."""
        told: Counter[tuple[str, int, bool]] = Counter()
        rows = zip(table["id"].to_pylist(), table["at"].to_pylist(), strict=True)
        for time, name in sorted((self.clamped(at), name) for name, at in rows):
            passed = self.passed.setdefault(name, [])
            goes_on = all(abs(time - t) > self.horizon_s for t in passed)
            told[name, time, goes_on] += 1
            if goes_on:
                passed.append(time)
        highest = max(table["at"].to_pylist())
        self.newest = highest if self.newest is None else max(self.newest, highest)
        self.late_watermark = self.newest - self.lateness_s
        return told

    def clamped(self, at: int) -> int:
        return at if self.late_watermark is None else max(at, self.late_watermark)

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
