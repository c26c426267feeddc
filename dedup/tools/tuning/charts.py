"""The charts of the report, as Vega-Lite specifications: data and marks, no colours of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dedup.tools.tuning.candidates import LEAST_BYTES, Choice, named, written
from dedup.tools.tuning.demand import Sizing

Spec = dict[str, Any]
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
#: Moments of the fill that are drawn.
_MOMENTS = 120
_DASHED = {"strokeDash": [5, 4]}
#: The kinds of choices, those that matter most first.
_KINDS = ["recommended", "as it is", "another choice", "dominated"]


def charts(choice: Choice) -> dict[str, Spec]:
    """Return each chart by the name of its place in the page."""
    found = {"cost": _cost(choice), "fill": _fill(choice)}
    return {name: {"$schema": _SCHEMA, "width": "container", **s} for name, s in found.items()}


def _number(field: str, title: str = "", axis_format: str = "", **more: Any) -> Spec:
    titled = {"title": title} if title else {}
    axis = {"axis": {"format": axis_format}} if axis_format else {}
    return {"field": field, "type": "quantitative", **titled, **axis, **more}


def _tooltip(*lines: tuple[str, ...]) -> list[Spec]:
    keys = ("field", "format", "title")
    return [{key: text for key, text in zip(keys, line, strict=False) if text} for line in lines]


def _layer(mark: str, encoding: Spec, values: Sequence[Spec] | None = None, **options: Any) -> Spec:
    data = {} if values is None else {"data": {"values": values}}
    encoded = {"encoding": encoding} if encoding else {}
    return {**data, "mark": {"type": mark, **options}, **encoded}


def _cost(choice: Choice) -> Spec:
    """Time against bytes: the knee is where their product is least."""
    rows = _choices(choice)
    xs, ys = (_padded([row[field] for row in rows]) for field in ("gib", "ms"))
    tooltip = _tooltip(
        ("choice",),
        ("kind",),
        ("gib", ".3f", "GiB"),
        ("ms", ",.0f", "ms per 1 M"),
        ("fpr", ".3%", "measured rate"),
        ("reads", ",.1f", "catalog reads/s"),
    )
    points = {
        "color": {"field": "kind", "type": "nominal", "title": None, "scale": {"domain": _KINDS}},
        "tooltip": tooltip,
    }
    return {
        "height": 300,
        "encoding": {
            "x": _number("gib", "state + sidecars + segments, GiB", scale=_between(xs)),
            "y": _number("ms", "ms of one core per 1 M records", scale=_between(ys)),
        },
        "layer": [
            _layer("line", {}, _equal_cost(choice), **_DASHED, color="gray", clip=True),
            _layer("point", points, rows, filled=True, size=110),
            _label([row for row in rows if row["kind"] == "as it is"], dy=14),
            _label([row for row in rows if row["kind"] == "recommended"], dy=-12),
        ],
    }


def _label(rows: Sequence[Spec], dy: int) -> Spec:
    return _layer("text", {"text": {"field": "label"}}, rows, dy=dy, fontSize=11)


def _choices(choice: Choice) -> list[Spec]:
    """Return a row for each choice; those that matter most come last, and so lie on top."""
    rows: list[Spec] = []
    for candidate in choice.candidates:
        kind = "dominated" if choice.dominated(candidate) else "another choice"
        if candidate is choice.today:
            kind = "as it is"
        if candidate is choice.recommended:
            kind = "recommended"
        rows.append(
            {
                "gib": candidate.total_bytes / 2**30,
                "ms": candidate.ms_per_million,
                "choice": named(candidate.sizing, choice.today.sizing),
                "label": _short(candidate.sizing, choice.today.sizing),
                "kind": kind,
                "fpr": candidate.measured_fpr,
                "reads": candidate.reads_per_s,
            }
        )
    return sorted(rows, key=lambda row: -_KINDS.index(row["kind"]))


def _equal_cost(choice: Choice) -> list[Spec]:
    gib = [candidate.total_bytes / 2**30 for candidate in choice.candidates]
    cost, least = choice.recommended.cost / 2**30, LEAST_BYTES / 2**30
    return [
        {"gib": size, "ms": cost / max(size, least), "kind": "recommended"}
        for size in np.geomspace(min(gib), max(gib), 40).tolist()
    ]


def _short(sizing: Sizing, base: Sizing) -> str:
    mib = f"budget={sizing.state_budget_bytes / 2**20:g}M"
    budget = written("state_budget_bytes", sizing.state_budget_bytes)
    return named(sizing, base).replace(budget, mib)


def _between(ends: tuple[float, float]) -> Spec:
    return {"domain": ends, "nice": False}


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = 0.15 * (high - low) or 0.15 * abs(high) or 1.0
    return low - room, high + room


def _fill(choice: Choice) -> Spec:
    fill = choice.recommended.trial.fill
    step = max(1, len(fill) // _MOMENTS)
    rows = [
        {"at": round(at, 4), "bucket": bucket, "ids": ids}
        for at, by_bucket in fill[::step]
        for bucket, ids in sorted(by_bucket.items())
    ]
    return {
        "height": 260,
        "data": {"values": rows},
        "mark": {"type": "area", "interpolate": "step-after"},
        "encoding": {
            "x": _number("at", "horizons since the first start"),
            "y": _number("ids", "live IDs of a shard", "~s", stack=True),
            # The oldest lies at the bottom.
            "order": {"field": "bucket"},
            "color": {
                "field": "bucket", "type": "ordinal", "title": "bucket", "legend": None,
                "scale": {"scheme": "tealblues"},
            },
            "tooltip": _tooltip(
                ("bucket",), ("ids", ","), ("at", "", "horizons")
            ),
        },
    }  # fmt: skip
