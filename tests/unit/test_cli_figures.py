"""Figures are sums and last values; the demo's truth is right."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from rich.console import Console

from dedup.cli import made_events as made
from dedup.cli.figures import COUNTS, LEVELS, Figures, table
from dedup.cli.run.progress import Reporter, one_line
from dedup.values.duration import iso, span


@dataclass
class Batch:
    values: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return self.values[name]


def batch(**values: Any) -> Any:
    return Batch(dict.fromkeys(COUNTS, 0) | dict.fromkeys(LEVELS) | values)


def figures(*batches: Any, emitted: frozenset[str] = frozenset({"unique"})) -> Figures:
    return Figures.of(batches, emitted=emitted, files=3, seconds=2.0)


def test_counts_are_summed_and_levels_are_the_latest() -> None:
    made_of = figures(
        batch(records_in=10, unique=7, duplicate=3, emitted=10, state_bytes=500),
        batch(records_in=6, unique=2, duplicate=3, late=1, emitted=6, state_bytes=400),
        emitted=frozenset({"unique", "late"}),
    )
    body = made_of.to_json()
    assert (body["records_in"], body["unique"], body["duplicate"], body["late"]) == (16, 9, 6, 1)
    assert body["emitted"] == 10
    assert body["state_bytes"] == 400
    assert body["rows_per_second"] == 8.0
    assert body["gc_watermark"] is None
    nothing = figures().to_json()
    assert (nothing["records_in"], nothing["state_bytes"]) == (0, None)


def shown(value: Figures, notes: Sequence[tuple[str, str, str]] = ()) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(table(value, "t", notes))
    return out.getvalue()


def test_the_table_fits_80_columns_and_reports_a_sum_that_is_off() -> None:
    good = shown(figures(batch(records_in=5, unique=2, duplicate=1, late=1, null_id=1)))
    assert "= sum of the next four" in good
    assert max(len(line.rstrip()) for line in good.split("\n")) <= 80
    assert "untimed" not in good
    assert "DIFFERS FROM" in shown(figures(batch(records_in=5, unique=2)))
    untimed = shown(figures(batch(records_in=5, unique=2, untimed=3)))
    assert "= sum of the next five" in untimed
    assert "untimed" in untimed
    assert "none yet" in shown(figures())


def test_times_and_spans_of_any_size_are_formatted() -> None:
    far_ms = 10**17
    assert [iso(0), iso(-1), iso(far_ms)] == [
        "1970-01-01T00:00:00Z",
        "1969-12-31T23:59:59Z",
        f"{far_ms} ms",
    ]
    assert [span(None), span(3_723_000), span(-90_000_000)] == ["-", "01:02:03", "-1d 01:00:00"]


def test_plain_lines_stay_few() -> None:
    out = io.StringIO()
    lines = Reporter(Console(file=out, width=40))
    lines.update(figures(), 9)
    for n in range(5):
        lines.update(figures(*[batch(records_in=1)] * (n + 1)), 9)
    assert out.getvalue().count("\n") == 1
    assert one_line(figures(batch(duplicate=4)), 9).startswith("3/9 files")


def test_demo_events_are_the_same_for_a_seed() -> None:
    one, truth = made.make_stream(10_000, 1)
    other, same = made.make_stream(10_000, 1)
    assert (one.records, truth) == (other.records, same)
    assert one.records != made.make_stream(10_000, 2)[0].records


@pytest.mark.parametrize("seed", [1, 7])
def test_the_demos_truth_matches_a_brute_force_count(seed: int) -> None:
    stream, truth = made.make_stream(20_000, seed)
    file_of = stream.delivered_ms // (made.SPAN_MS // made.FILES)
    batch_of = file_of.clip(max=made.FILES - 1) // made.FILES_PER_TRIGGER
    ids = stream.records["event_id"].to_pylist()
    times_ms = stream.records["event_time"].cast("int64").to_pylist()
    kept: dict[str, list[int]] = {}
    verdicts = dict.fromkeys(("unique", "duplicate", "late", "null_id"), 0)
    newest = late_watermark = None
    order = sorted(range(len(ids)), key=lambda i: (batch_of[i], times_ms[i]))
    batch_number = 0
    for i in order:
        if batch_of[i] != batch_number:
            batch_number = int(batch_of[i])
            late_watermark = newest - made.LATENESS_MS if newest is not None else None
        moment, name = times_ms[i], ids[i]
        newest = moment if newest is None else max(newest, moment)
        behind = late_watermark is not None and moment < late_watermark
        effective = late_watermark if behind and late_watermark is not None else moment
        if name is None:
            verdicts["null_id"] += 1
        elif any(abs(effective - t) <= made.HORIZON_MS for t in kept.get(name, [])):
            verdicts["duplicate"] += 1
        else:
            verdicts["late" if behind else "unique"] += 1
            kept.setdefault(name, []).append(effective)
    assert verdicts == {name: getattr(truth, name) for name in verdicts}
    assert newest == truth.newest_ms


def test_records_that_could_not_be_read_are_counted_apart() -> None:
    made_of = Figures.of(
        [batch(records_in=2, unique=2)], emitted=frozenset({"unique"}), files=1, seconds=1.0, bad=3
    )
    assert made_of.to_json()["bad_records"] == 3
    printed = shown(made_of, [("time", "at", "the column of --timestamp")])
    assert re.search(r"bad records +3 +not read", printed)
    assert re.search(r"time +at +the column of --timestamp", printed)
    assert "bad records" not in shown(figures(batch()))
