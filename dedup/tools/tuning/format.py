"""Texts of `tune` for screen and report: verdict, cells of the table, legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from dedup.core.duration import format_ms, size
from dedup.tools.tuning.candidates import Candidate, Choice, value_of, written
from dedup.tools.tuning.demand import Demand

#: Columns of the table: name, width, meaning.
COLUMNS = (
    ("fpr", 6, "target rate of all filters that one lookup probes"),
    ("buckets", 7, "buckets per horizon"),
    ("budget", 6, "state_budget_bytes of a shard"),
    ("bits", 4, "filter bits per live ID in segments"),
    ("expect", 6, "false-positive rate predicted from sizes and contents of the filters"),
    ("measured", 13, "rate measured on new IDs: 95 % interval"),
    ("state", 6, "bytes in Spark state, rewritten in every micro-batch"),
    ("sidecar", 7, "bytes of filter sidecars"),
    ("segment", 7, "bytes of segments: the exact catalog"),
    ("reads/s", 7, "catalog blocks read per second at the mean rate"),
    (
        "ms/1M",
        5,
        "ms of one core in the group function for 1 M records, catching up; without Spark's passes",
    ),
    ("waste", 5, "share of the filters' bits that one ideal filter of all IDs would not need"),
)
_UNITS = ("B", "K", "M", "G", "T", "P")


def verdict(demand: Demand, choice: Choice) -> str:
    """Return the verdict in one line: the options to keep or change, and the result."""
    best = choice.recommended
    low, high = best.interval
    result = (
        f"{live_ids(demand, choice):,.0f} live IDs in {size(round(best.total_bytes))}, "
        f"{low:.2%} to {high:.2%} of new IDs cost a read ({best.reads_per_s:,.1f} reads/s)"
    )
    if not best.trial.filters_asked:
        result = (
            f"{live_ids(demand, choice):,.0f} live IDs all fit into Spark state "
            f"({size(round(best.state_bytes))}): no filter is ever probed"
        )
    if best is choice.today:
        options = ", ".join(written(*pair) for pair in asdict(best.sizing).items())
        return f"KEEP {options}: {result}; no other choice is worth a change."
    changed = [
        f"{written(name, asdict(best.sizing)[name])} instead of {value_of(old)}"
        for name, old in asdict(choice.today.sizing).items()
        if asdict(best.sizing)[name] != old
    ]
    return f"CHANGE to {', '.join(changed)}: {result}."


def title(demand: Demand) -> str:
    """Return the load in one line."""
    return (
        f"{demand.ids_per_day:,.0f} new IDs a day ({demand.origin}), horizon "
        f"{format_ms(demand.horizon_ms)}, lateness {format_ms(demand.lateness_ms)}, "
        f"{demand.duplicates:.1%} repeats, {demand.shards} shards on {demand.cores_text}, "
        f"{demand.interval_text}"
    )


def live_ids(demand: Demand, choice: Choice) -> float:
    """Return the live IDs of all shards in the trial of the recommended choice."""
    return choice.recommended.trial.live_ids * demand.shards


def cells(candidate: Candidate) -> list[str]:
    """Return one row of the table."""
    low, high = candidate.interval
    sizing, wasted = candidate.sizing, candidate.wasted
    return [
        f"{sizing.fpr:g}",
        str(sizing.buckets),
        amount(sizing.state_budget_bytes),
        f"{candidate.bits_per_id:.1f}",
        rate(candidate.trial.predicted_fpr),
        f"{rate(low)}-{rate(high)}",
        amount(candidate.state_bytes),
        amount(candidate.sidecar_bytes),
        amount(candidate.segment_bytes),
        short_number(candidate.reads_per_s),
        short_number(candidate.ms_per_million),
        "-" if wasted is None else f"{wasted:.0%}",
    ]


def kind(choice: Choice, candidate: Candidate) -> str:
    """Return ``recommended``, ``today``, ``dominated``, or an empty text."""
    if candidate is choice.recommended:
        return "recommended"
    if candidate is choice.today:
        return "today"
    return "dominated" if choice.dominated(candidate) else ""


def legend() -> Sequence[tuple[str, str]]:
    """Return the names of columns and their meanings."""
    return [(name, meaning) for name, _, meaning in COLUMNS]


def amount(size_bytes: float) -> str:
    """Return bytes in at most six characters, such as ``344M`` and ``3.0G``."""
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 999.5 or unit == _UNITS[-1]:
            return f"{size:.0f}{unit}" if size >= 99.95 or unit == "B" else f"{size:.1f}{unit}"
        size /= 1024
    raise AssertionError("unreachable")


def rate(share: float) -> str:
    """Return a rate in at most six characters."""
    percent = 100 * share
    if percent >= 0.1:
        return f"{percent:.1f}%" if percent >= 9.95 else f"{percent:.2f}%"
    return f"{percent:.3f}%" if percent else "0%"


def short_number(number: float) -> str:
    """Return a number in few characters: whole from 100 on."""
    if number >= 99_999.5:
        return f"{number / 1000:,.0f}k"
    return f"{number:.0f}" if number >= 99.95 else f"{number:.1f}"
