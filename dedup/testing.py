"""For tests of pipelines with `dedup_by_id`: a place for a small query, and what must come out.

`small_query` gives a new query a place that goes with the test, and `Oracle` knows what must come
out of it. Nothing here needs a test framework.

>>> oracle = Oracle(horizon="1 hour")
>>> batches = [[("a", 0), ("b", 5), ("a", 9)], [("a", 3_600_001), ("a", 3_600_002)]]
>>> oracle.check(batches, ["a", "b", "a"])
>>> Oracle(horizon="1 hour").check(batches, ["a", "a", "a"])
Traceback (most recent call last):
AssertionError: 1 lost: 'b' (0 came out, 1 should); 1 too many: 'a' (3 came out, 2 should)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory
from typing import TypeAlias, TypedDict

from dedup.core.duration import duration_ms
from dedup.core.policy import default_lateness_ms

#: A record's ID and its time: a datetime, or milliseconds since 1970.
Record: TypeAlias = tuple[Hashable, datetime | int]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONG_AGO_MS = -(1 << 63)
#: IDs that an error names of each kind.
_EXAMPLES = 5


class SmallOptions(TypedDict):
    """Options of `dedup_by_id` that suit a test."""

    catalog: str
    shards: int
    state_budget_bytes: int
    keep_expired: str


@dataclass(frozen=True)
class SmallQuery:
    """Where a query under test keeps what it remembers.

    Attributes
    ----------
    checkpoint : str
        For ``option("checkpointLocation", ...)``.
    options : SmallOptions
        For ``dedup_by_id("id", horizon=..., **query.options)``: a catalog, two shards, and so
        little state that a few hundred IDs are enough to write segments and to look them up. Set
        ``spark.sql.shuffle.partitions`` to 2 as well, or every micro-batch starts more tasks.
    """

    checkpoint: str
    options: SmallOptions


@contextmanager
def small_query() -> Iterator[SmallQuery]:
    """Make a place for a new query and yield it; it is deleted at the end.

    The query may be stopped and started again in between, as in production.
    """
    with TemporaryDirectory(prefix="dedup-testing-", ignore_cleanup_errors=True) as folder:
        yield SmallQuery(
            checkpoint=f"{folder}/checkpoint",
            options={
                "catalog": f"{folder}/catalog",
                "shards": 2,
                "state_budget_bytes": 16 << 10,
                "keep_expired": "0 seconds",
            },
        )


class Oracle:
    """Tells what must go on, by comparing every record with all that went on before it.

    It knows no bucket, filter or segment, and forgets nothing. It follows one query from its first
    micro-batch on, which has one clock and ``late="emit"``, and whose timestamps are not null and
    not in the future.

    Parameters
    ----------
    horizon : str or timedelta
        As in `dedup_by_id`.
    lateness : str or timedelta, optional
        As in `dedup_by_id`.
    """

    def __init__(self, horizon: str | timedelta, lateness: str | timedelta | None = None) -> None:
        self._horizon_ms = duration_ms(horizon, option="horizon")
        self._lateness_ms = (
            default_lateness_ms(self._horizon_ms, stable_timestamps=False)
            if lateness is None
            else duration_ms(lateness, option="lateness")
        )
        self._late_watermark_ms = _LONG_AGO_MS
        self._went_on: dict[Hashable, list[int]] = {}

    def effective_ms(self, time: datetime | int) -> int:
        """Return the time under which the next micro-batch judges a record of this time, in ms."""
        return max(_time_ms(time), self._late_watermark_ms)

    def verdicts(self, batch: Iterable[Record]) -> Counter[tuple[Hashable, int, bool]]:
        """Judge the next micro-batch.

        Parameters
        ----------
        batch : iterable of (ID, time)
            Times are datetimes, UTC where they have no zone, or milliseconds. Null IDs go on.

        Returns
        -------
        Counter of (ID, effective time in ms, goes on)
            Which of several records with one ID and one effective time goes on is left open.
        """
        records = [
            (self.effective_ms(time), record_id, _time_ms(time)) for record_id, time in batch
        ]
        judged: Counter[tuple[Hashable, int, bool]] = Counter()
        for effective_ms, name, own_ms in sorted(records, key=lambda record: record[0]):
            before = self._went_on.setdefault(name, [])
            goes_on = name is None or all(
                abs(effective_ms - earlier_ms) > self._horizon_ms for earlier_ms in before
            )
            judged[name, effective_ms, goes_on] += 1
            if goes_on:
                before.append(effective_ms)
            self._late_watermark_ms = max(self._late_watermark_ms, own_ms - self._lateness_ms)
        return judged

    def check(self, batches: Iterable[Iterable[Record]], emitted: Iterable[Hashable]) -> None:
        """Compare what a pipeline was given with what came out of it.

        Parameters
        ----------
        batches : iterable of iterables of (ID, time)
            The records that each micro-batch took, as for `verdicts`.
        emitted : iterable of IDs
            The ID of every row that came out, in any order.

        Raises
        ------
        AssertionError
            Where records are lost or came out more than once; it names the first of them.
        """
        expected: Counter[Hashable] = Counter()
        for batch in batches:
            for (name, _, goes_on), count in self.verdicts(batch).items():
                expected[name] += count * goes_on
        found = Counter(emitted)
        wrong = []
        for records, became in ((expected - found, "lost"), (found - expected, "too many")):
            examples = ", ".join(
                f"{name!r} ({found[name]} came out, {expected[name]} should)"
                for name in list(records)[:_EXAMPLES]
            )
            if records:
                wrong.append(f"{records.total()} {became}: {examples}")
        if wrong:
            raise AssertionError("; ".join(wrong))


def _time_ms(time: datetime | int) -> int:
    if isinstance(time, int):
        return time
    zoned = time if time.tzinfo else time.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // timedelta(milliseconds=1)
