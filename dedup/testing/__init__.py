"""Tools for tests of pipelines with `dedup_by_id`.

`small_query` makes temporary folders for a query. `Oracle` computes which records must pass.
`check_sink` tests your sink. `dedup.testing.faults` makes processes fail at named steps.
`dedup.testing.sinks` has the contract of sinks. Only `check_sink` and `dedup.testing.sinks` need a
test framework, pytest.

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
from typing import TYPE_CHECKING, Any, TypeAlias

from dedup.core.policy import default_lateness_ms
from dedup.errors.lazy import lazily
from dedup.values.duration import duration_ms

if TYPE_CHECKING:
    from dedup.testing.sink_faults import check_sink

__all__ = ["Oracle", "Record", "SmallQuery", "check_sink", "faults", "sinks", "small_query"]

# They need pytest, or are for tests alone.
_HOMES = {
    "check_sink": "dedup.testing.sink_faults",
    "faults": "dedup.testing.faults",
    "sinks": "dedup.testing.sinks",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)


#: A record's ID and its time: a datetime, or milliseconds since 1970.
Record: TypeAlias = tuple[Hashable, datetime | int]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONG_AGO_MS = -(1 << 63)
#: Largest number of lost IDs, and of duplicated IDs, that an error names.
_EXAMPLES = 5


@dataclass(frozen=True)
class SmallQuery:
    """Folders and options of a query under test.

    Attributes
    ----------
    checkpoint : str
        Value for ``option("checkpointLocation", ...)``.
    options : dict of str to str or int
        Options for ``dedup_by_id("id", horizon=..., **query.options)``: a catalog, two shards, and
        a state budget so small that a few hundred IDs write segments. Also set
        ``spark.sql.shuffle.partitions`` to 2, so that a micro-batch starts only two tasks.
    """

    checkpoint: str
    options: dict[str, Any]


@contextmanager
def small_query() -> Iterator[SmallQuery]:
    """Make temporary folders for a new query, and delete them at the end.

    Inside the ``with`` block the query may stop and restart, as in production.
    """
    with TemporaryDirectory(prefix="dedup-testing-", ignore_cleanup_errors=True) as folder:
        yield SmallQuery(
            checkpoint=f"{folder}/checkpoint",
            options={
                "catalog": f"{folder}/catalog",
                "shards": 2,
                "state_budget_bytes": 16 << 10,
                "filter_state_bytes": 16 << 10,
                "keep_expired": "0 seconds",
            },
        )


class Oracle:
    """Computes which records pass, by comparing a record with all earlier records that passed.

    The oracle has no buckets, filters or segments, and never forgets a record. It follows one query
    from its first micro-batch. The query must have one clock and ``late="emit"``, and no timestamp
    may be null or in the future.

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
        self._passed: dict[Hashable, list[int]] = {}

    def effective_ms(self, time: datetime | int) -> int:
        """Return the effective time in ms of a record that arrives in the next micro-batch.

        A record behind the late watermark gets the late watermark as its time.
        """
        return max(_time_ms(time), self._late_watermark_ms)

    def verdicts(self, batch: Iterable[Record]) -> Counter[tuple[Hashable, int, bool]]:
        """Judge the next micro-batch.

        Parameters
        ----------
        batch : iterable of (ID, time)
            Times are milliseconds or datetimes, which are in UTC if they have no zone. Records with
            a null ID pass.

        Returns
        -------
        Counter of (ID, effective time in ms, whether the record passes)
            If several records share ID and effective time, any of these records may pass.
        """
        records = [
            (self.effective_ms(time), record_id, _time_ms(time)) for record_id, time in batch
        ]
        judged: Counter[tuple[Hashable, int, bool]] = Counter()
        for effective_ms, name, own_ms in sorted(records, key=lambda record: record[0]):
            before = self._passed.setdefault(name, [])
            passes = name is None or all(
                abs(effective_ms - earlier_ms) > self._horizon_ms for earlier_ms in before
            )
            judged[name, effective_ms, passes] += 1
            if passes:
                before.append(effective_ms)
            self._late_watermark_ms = max(self._late_watermark_ms, own_ms - self._lateness_ms)
        return judged

    def check(self, batches: Iterable[Iterable[Record]], emitted: Iterable[Hashable]) -> None:
        """Compare the input of a pipeline with its output.

        Parameters
        ----------
        batches : iterable of iterables of (ID, time)
            The records of each micro-batch, as for `verdicts`.
        emitted : iterable of IDs
            The ID of every output row, in any order.

        Raises
        ------
        AssertionError
            If records are lost or duplicated. The error names some of their IDs.
        """
        expected: Counter[Hashable] = Counter()
        for batch in batches:
            for (name, _, passes), count in self.verdicts(batch).items():
                expected[name] += count * passes
        actual = Counter(emitted)
        wrong = []
        for records, became in ((expected - actual, "lost"), (actual - expected, "too many")):
            examples = ", ".join(
                f"{name!r} ({actual[name]} came out, {expected[name]} should)"
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
