"""`dedup.testing`: what its oracle lets through and complains of, and what a small query leaves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dedup.testing import Oracle, small_query

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("emitted", "complaint"),
    [
        (["a", "b", "a"], ""),
        (["b", "a"], r"1 lost: 'a' \(1 came out, 2 should\)"),
        (["a", "b", "a", "a"], r"1 too many: 'a' \(3 came out, 2 should\)"),
        (["a", "a", "a", "c"], r"1 lost: 'b' .*; 2 too many: 'a' .*, 'c' \(1 .*, 0 should\)"),
    ],
)
def test_what_is_lost_or_emitted_twice_is_named(emitted: list[str], complaint: str) -> None:
    batches = [[("a", 0), ("b", 5), ("a", 9)], [("a", HOUR_MS + 1), ("a", HOUR_MS + 2)]]
    oracle = Oracle("1 hour")
    if not complaint:
        oracle.check(batches, emitted)
        return
    with pytest.raises(AssertionError, match=f"^{complaint}$"):
        oracle.check(batches, emitted)


def test_records_of_another_micro_batch_are_judged_at_the_late_watermark() -> None:
    oracle = Oracle(timedelta(hours=1), lateness="1 minute")
    first = oracle.verdicts([("a", 0), ("b", 2 * HOUR_MS)])
    assert first == {("a", 0, True): 1, ("b", 2 * HOUR_MS, True): 1}
    late_ms = 2 * HOUR_MS - 60_000
    assert oracle.effective_ms(5) == late_ms
    second = oracle.verdicts([("a", 5), ("b", 5)])
    assert second == {("a", late_ms, True): 1, ("b", late_ms, False): 1}


def test_null_ids_go_on() -> None:
    Oracle("1 hour").check([[(None, 0), (None, 0)]], [None, None])


def test_times_without_a_zone_are_utc() -> None:
    oracle = Oracle("1 hour")
    zoned = datetime(2024, 5, 1, tzinfo=UTC)
    assert oracle.effective_ms(zoned) == oracle.effective_ms(zoned.replace(tzinfo=None))
    assert oracle.effective_ms(zoned) == 1_714_521_600_000


def test_a_small_query_leaves_nothing() -> None:
    with small_query() as query:
        folder = Path(query.checkpoint).parent
        (folder / "checkpoint" / "offsets").mkdir(parents=True)
        assert Path(query.options["catalog"]).parent == folder
    assert not folder.exists()
