"""The result of `tune`: its verdict and table, JSON, and an HTML file with charts of Vega-Lite."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from dedup.errors.lazy import library
from dedup.kernel import PATH
from dedup.spark.machine import machine_cores
from dedup.tools.check.findings import Findings
from dedup.tools.tuning.candidates import (
    KINDS,
    LEAST_BYTES,
    Candidate,
    Choice,
    named,
    value_of,
    written,
)
from dedup.tools.tuning.costs import Costs
from dedup.tools.tuning.demand import Demand
from dedup.values.duration import format_ms, size
from dedup.values.html import escaped, for_notebook, table

Spec = dict[str, Any]
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
#: Largest number of points in time in the chart of remembered IDs.
_MOMENTS = 120
#: Columns of the table: name, width, meaning.
COLUMNS = (
    ("fpr", 6, "target rate of all filters that one lookup probes"),
    ("bucket", 6, "bucket_length: the length of a bucket"),
    ("budget", 6, "state_budget_bytes of a shard"),
    ("room", 5, "filter_state_bytes of a shard, or a dash for its default"),
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


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result of `tune`: load, measured choices of options, costs of this machine, and advice.

    `choice.recommended` is the best choice, and `choice.today` holds the query's own options.
    """

    demand: Demand
    choice: Choice
    costs: Costs
    findings: Findings

    @property
    def false_negatives(self) -> int:
        """Number of known IDs that were not found, plus the number of wrong verdicts. Must be 0."""
        return sum(trial.false_negatives for trial in self.choice.trials)

    def to_json(self) -> dict[str, Any]:
        demand, choice = self.demand, self.choice
        live = live_ids(demand, choice)
        same = (
            "origin", "ids_per_day", "duplicates", "horizon_ms", "lateness_ms", "batch_ms",
            "batch_known", "shards", "cores", "cores_given", "key_bytes",
        )  # fmt: skip
        return {
            "status": "false negatives" if self.false_negatives else "ok",
            "verdict": verdict(demand, choice),
            **{name: getattr(demand, name) for name in same},
            "live_ids": round(live),
            "expected_live_ids": demand.live_ids,
            "machine": machine(),
            "costs_ns": asdict(self.costs),
            "candidates": [
                c.to_json()
                | {
                    "recommended": c is choice.recommended,
                    "today": c is choice.today,
                    "dominated": choice.dominated(c),
                }
                for c in choice.candidates
            ],
            "findings": [finding.to_json() for finding in self.findings],
            "shard_ids": list(demand.fill_of_shards(live)),
            "false_negatives": self.false_negatives,
        }

    def page(self) -> str:
        """Return the report as HTML. Raises MissingExtraError if vl-convert-python is missing."""
        demand, choice = self.demand, self.choice
        bundle = check_extra().javascript_bundle()
        fields = {
            "title": escaped(f"dedup tune: {title(demand)}"),
            "verdict": escaped(verdict(demand, choice)),
            "choices": self._choices(),
            "findings": self.findings.to_html(),
            "legend": "\n".join(
                f"<dt>{escaped(name)}</dt><dd>{escaped(meaning)}</dd>"
                for name, _, meaning in COLUMNS
            ),
            "foot": escaped(self.measured),
            # In a script element, only the closing tag needs escaping.
            "charts": json.dumps(charts(choice)).replace("</", "<\\/"),
            "library": bundle.replace("</script", "<\\/script"),
        }
        parts = (files(__package__) / "report.html").read_text(encoding="utf-8").split("@@")
        # Every second part is the name of a field. The text of a field is not searched for fields.
        return "".join(fields[p] if i % 2 else p for i, p in enumerate(parts))

    def _repr_html_(self) -> str:
        """Return verdict, choices and findings, for a notebook."""
        summary = f"<p>{escaped(verdict(self.demand, self.choice))}</p>"
        return for_notebook(summary, self._choices(), self.findings.to_html())

    def _choices(self) -> str:
        candidates = self.choice.candidates
        head = [name for name, _, _ in COLUMNS]
        return table(head, map(cells, candidates), map(self.choice.kind, candidates))

    @property
    def measured(self) -> str:
        costs = self.costs
        new = sum(trial.asked for trial in self.choice.trials)
        known = sum(trial.known for trial in self.choice.trials)
        return (
            f"Measured on {machine()}: {costs.row_ns:.0f} ns per record, {costs.filter_ns:.1f} ns "
            f"per filter probed, {costs.read_ns / 1000:.1f} us per catalog block read, "
            f"{costs.written_ns:.0f} ns per ID written. {new:,} new and {known:,} known IDs were "
            f"looked up: {self.false_negatives} false negatives."
        )


def machine() -> str:
    return f"{machine_cores()} cores, {platform.machine()}, {PATH} kernel"


def verdict(demand: Demand, choice: Choice) -> str:
    """Return in one line which options to keep or change, and what the query then costs."""
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
    return (
        f"{demand.ids_per_day:,.0f} new IDs a day ({demand.origin}), horizon "
        f"{format_ms(demand.horizon_ms)}, lateness {format_ms(demand.lateness_ms)}, "
        f"{demand.duplicates:.1%} repeats, {demand.shards} shards on {demand.cores_text}, "
        f"{demand.interval_text}"
    )


def live_ids(demand: Demand, choice: Choice) -> float:
    """Return the number of live IDs in all shards, from the trial of the recommended choice."""
    return choice.recommended.trial.live_ids * demand.shards


def cells(candidate: Candidate) -> list[str]:
    low, high = candidate.interval
    sizing, wasted = candidate.sizing, candidate.wasted
    return [
        f"{sizing.fpr:g}",
        short_duration(candidate.bucket_ms),
        amount(sizing.state_budget_bytes),
        "-" if sizing.filter_state_bytes is None else amount(sizing.filter_state_bytes),
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


def amount(size_bytes: float) -> str:
    """Return a size as text of at most six characters, such as ``344M`` or ``3.0G``."""
    size, unit = float(size_bytes), "B"
    for larger in "KMGTP":
        if size >= 999.5:
            size, unit = size / 1024, larger
    return f"{size:.0f}{unit}" if size >= 99.95 or unit == "B" else f"{size:.1f}{unit}"


def short_duration(length_ms: int) -> str:
    """Return a duration as text of at most six characters, such as ``10.5h``."""
    units = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
    letter = next((letter for letter, unit_ms in units.items() if length_ms >= unit_ms), "s")
    length = length_ms / units[letter]
    return f"{length:.3g}{letter}" if length < 999.5 else f"{length:.0f}{letter}"


def rate(share: float) -> str:
    """Return a rate from 0 to 1 as text of at most six characters."""
    percent = 100 * share
    if percent >= 0.1:
        return f"{percent:.1f}%" if percent >= 9.95 else f"{percent:.2f}%"
    return f"{percent:.3f}%" if percent else "0%"


def short_number(number: float) -> str:
    """Return a number in few characters, without decimals from 100 on."""
    if number >= 99_999.5:
        return f"{number / 1000:,.0f}k"
    return f"{number:.0f}" if number >= 99.95 else f"{number:.1f}"


def check_extra() -> Any:
    return library("report", "--html", "vl_convert")


def charts(choice: Choice) -> dict[str, Spec]:
    specs = {"cost": _cost(choice), "fill": _fill(choice)}
    return {name: {"$schema": _SCHEMA, "width": "container", **s} for name, s in specs.items()}


def _cost(choice: Choice) -> Spec:
    rows: list[Spec] = [
        {
            "gib": candidate.total_bytes / 2**30,
            "ms": candidate.ms_per_million,
            "choice": named(candidate.sizing, choice.today.sizing),
            "kind": choice.kind(candidate),
            "fpr": candidate.measured_fpr,
            "reads": candidate.reads_per_s,
        }
        for candidate in choice.candidates
    ]
    # Draw the most important points last, because later points cover earlier points.
    rows.sort(key=lambda row: -KINDS.index(row["kind"]))
    gib, ms = [row["gib"] for row in rows], [row["ms"] for row in rows]
    cost, least = choice.recommended.cost / 2**30, LEAST_BYTES / 2**30
    equal_cost = [
        {"gib": size, "ms": cost / max(size, least)}
        for size in np.geomspace(min(gib), max(gib), 40).tolist()
    ]
    return {
        "height": 300,
        "encoding": {
            "x": _axis("gib", "state + sidecars + segments, GiB", gib),
            "y": _axis("ms", "ms of one core per 1 M records", ms),
        },
        "layer": [
            {
                "data": {"values": equal_cost},
                "mark": {"type": "line", "strokeDash": [5, 4], "color": "gray", "clip": True},
            },
            {
                "data": {"values": rows},
                "mark": {"type": "point", "filled": True, "size": 110},
                "encoding": {
                    "color": {"field": "kind", "title": None, "scale": {"domain": KINDS}},
                    "tooltip": [
                        {"field": "choice"},
                        {"field": "kind"},
                        {"field": "gib", "format": ".3f", "title": "GiB"},
                        {"field": "ms", "format": ",.0f", "title": "ms per 1 M"},
                        {"field": "fpr", "format": ".3%", "title": "measured rate"},
                        {"field": "reads", "format": ",.1f", "title": "catalog reads/s"},
                    ],
                },
            },
            _label([row for row in rows if row["kind"] == "today"], dy=14),
            _label([row for row in rows if row["kind"] == "recommended"], dy=-12),
        ],
    }


def _axis(field: str, title: str, values: Sequence[float]) -> Spec:
    low, high = min(values), max(values)
    room = 0.15 * (high - low) or 0.15 * abs(high) or 1.0
    scale = {"domain": (low - room, high + room), "nice": False}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale}


def _label(rows: Sequence[Spec], dy: int) -> Spec:
    return {
        "data": {"values": rows},
        "mark": {"type": "text", "dy": dy, "fontSize": 11},
        "encoding": {"text": {"field": "choice"}},
    }


def _fill(choice: Choice) -> Spec:
    fill = choice.recommended.trial.fill
    step = max(1, len(fill) // _MOMENTS)
    rows = [
        {"at": round(at, 4), "bucket": bucket, "ids": ids}
        for at, by_bucket in fill[::step]
        for bucket, ids in sorted(by_bucket.items())
    ]
    at = {"field": "at", "type": "quantitative", "title": "horizons since the first start"}
    ids = {"field": "ids", "type": "quantitative", "title": "live IDs of a shard", "stack": True}
    return {
        "height": 260,
        "data": {"values": rows},
        "mark": {"type": "area", "interpolate": "step-after"},
        "encoding": {
            "x": at,
            "y": ids | {"axis": {"format": "~s"}},
            # Draw the oldest bucket at the bottom.
            "order": {"field": "bucket"},
            "color": {
                "field": "bucket", "type": "ordinal", "title": "bucket", "legend": None,
                "scale": {"scheme": "tealblues"},
            },
            "tooltip": [
                {"field": "bucket"},
                {"field": "ids", "format": ","},
                {"field": "at", "title": "horizons"},
            ],
        },
    }  # fmt: skip
