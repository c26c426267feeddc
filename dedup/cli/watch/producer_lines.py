"""What `dedup watch` shows of a query of `dedup_by_sequence`: its verdicts and its producers."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from dedup.cli.watch.figure_line import figure, rate, share_lines
from dedup.core.duration import size
from dedup.core.sequence_metrics import SequenceMetrics
from dedup.tools.check.producer_rules import NEARLY_FULL
from dedup.tools.watch.watched import Watched

#: Verdicts that have a line of their own where there are any.
_RARE = {
    "fenced": "a newer epoch of their producer went on",
    "unknown": "new or not, nobody knows",
    "unnumbered": "no producer, epoch or sequence",
    "untimed": "no timestamp",
}


def producer_lines(one: Watched, last: SequenceMetrics) -> Iterator[Text]:
    """Yield verdicts, missing numbers, and the producers that are remembered."""
    rates, totals = one.rates(), one.totals()
    yield figure(
        "records/s",
        rate(rates["records_in"]),
        f"accept {rate(rates['accept'])}  duplicate {rate(rates['duplicate'])}  "
        f"gap {rate(rates['gap'])}",
    )
    for verdict, meaning in _RARE.items():
        if totals[verdict]:
            yield figure(f"{verdict}/s", rate(rates[verdict]), meaning)
    yield from share_lines(one)
    window = len(one.batches)
    yield figure(
        "missing",
        f"{totals['missing']:,}",
        f"in the last {window}; {totals['recovered']:,} came after all"
        if window > 1
        else f"in the last one; {totals['recovered']:,} came after all",
    )
    yield figure(
        "producers",
        f"{last.producers:,}",
        f"{totals['producers_new']:,} new, {totals['producers_expired']:,} expired meanwhile",
    )
    fullest = figure(
        "fullest shard",
        f"{last.fullest_shard_producers:,}",
        f"{last.fill:.1%} of max_producers, {last.max_producers:,}",
    )
    if last.fill >= NEARLY_FULL:
        fullest.stylize("yellow")
    yield fullest
    each = f", {size(last.state_bytes // last.producers)} a producer" if last.producers else ""
    yield figure("bytes", size(last.stored_bytes), f"all in Spark state{each}")
