"""The charts of the report, as Vega-Lite specifications: data and marks, no colours of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dedup.tune.candidates import LEAST_BYTES, Choice, named, written
from dedup.tune.curves import Point
from dedup.tune.demand import Demand, Sizing

Spec = dict[str, Any]
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_HOUR_MS = 3_600_000
#: Moments of the fill that are drawn.
_MOMENTS = 120
#: Pixels of the chart of labelled points where it is narrowest, of a letter and of a line.
_WIDE, _HIGH, _LETTER, _FONT = 290.0, 300.0, 6.0, 11
#: Places of a label at its point: where its box begins (pixels, share of its width, pixels from the
#: top), and how Vega-Lite writes that.
_PLACES: dict[str, tuple[tuple[float, float, float], dict[str, Any]]] = {
    "above": ((0.0, -0.5, -18.0), {"align": "center", "dy": -12}),
    "below": ((0.0, -0.5, 8.0), {"align": "center", "dy": 14}),
    "right": ((9.0, 0.0, -5.0), {"align": "left", "dx": 9}),
    "left": ((-9.0, -1.0, -5.0), {"align": "right", "dx": -9}),
}
#: More shards than this are drawn as the worst of equal groups.
_SHARDS = 64


def charts(demand: Demand, choice: Choice, points: Sequence[Point]) -> dict[str, Spec]:
    """Return each chart by the name of its place in the page."""
    found = {
        "fpr": _fpr(points),
        "cost": _cost(choice),
        "fill": _fill(choice),
        "shards": _shards(demand),
    }
    if demand.repeats is not None and len(demand.repeats.apart_ms):
        found["repeats"] = _repeats(demand, demand.repeats.apart_ms)
    return {name: {"$schema": _SCHEMA, "width": "container", **s} for name, s in found.items()}


def _fpr(points: Sequence[Point]) -> Spec:
    """Rate against fill: lines are predicted, points with their intervals measured."""
    rows = [
        {
            "fill": point.fill,
            "target": f"{point.target_fpr:g}",
            "predicted": point.predicted_fpr,
            "measured": point.false_positives / point.asked,
            "low": point.interval[0],
            "high": point.interval[1],
        }
        for point in points
    ]
    # A logarithm has no place for none.
    seen = [{"filter": "datum.measured > 0"}]
    x = {"field": "fill", "type": "quantitative", "title": "IDs held / IDs sized for"}
    scale = {"type": "log", "domain": [1e-5, 1], "clamp": True}
    colour = {
        "field": "target", "type": "nominal", "title": "sized for", "sort": None,
        "legend": {"symbolOpacity": 1},
    }  # fmt: skip
    tip = [
        {"field": "target", "title": "sized for"},
        {"field": "fill"},
        {"field": "predicted", "format": ".4%"},
        {"field": "measured", "format": ".4%"},
        {"field": "low", "format": ".4%", "title": "95 % from"},
        {"field": "high", "format": ".4%", "title": "to"},
    ]
    return {
        "height": 300,
        "data": {"values": rows},
        "encoding": {"x": x, "color": colour},
        "layer": [
            {
                "mark": {"type": "line"},
                "encoding": {
                    "y": {
                        "field": "predicted", "type": "quantitative", "scale": scale,
                        "title": "false-positive rate", "axis": {"format": "~%"},
                    }
                },
            },
            {
                "transform": seen,
                "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.5},
                "encoding": {
                    "y": {"field": "low", "type": "quantitative", "scale": scale},
                    "y2": {"field": "high"},
                },
            },
            {
                "transform": seen,
                "mark": {"type": "point", "filled": True, "size": 45},
                "encoding": {
                    "y": {"field": "measured", "type": "quantitative", "scale": scale},
                    "tooltip": tip,
                },
            },
            {
                "data": {"values": [{"fill": 1}]},
                "mark": {"type": "rule", "strokeDash": [5, 4]},
                "encoding": {"x": {"field": "fill"}, "color": {"value": "gray"}},
            },
        ],
    }  # fmt: skip


def _cost(choice: Choice) -> Spec:
    """Time against bytes: the knee is where their product is least."""
    rows: list[dict[str, Any]] = []
    for candidate in choice.candidates:
        kind = "another choice"
        if choice.dominated(candidate):
            kind = "dominated"
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
    # Those that matter most lie on top, where several come to the same.
    kinds = ["recommended", "as it is", "another choice", "dominated"]
    rows.sort(key=lambda row: -kinds.index(str(row["kind"])))
    knee = choice.recommended
    gib = [candidate.total_bytes / 2**30 for candidate in choice.candidates]
    xs, ys = _padded(gib), _padded([row["ms"] for row in rows])
    # Those that matter most choose first.
    labels = _labels(rows[::-1], xs, ys)
    sizes = np.geomspace(min(gib), max(gib), 40)
    least = LEAST_BYTES / 2**30
    line = [
        {"gib": size, "ms": knee.cost / 2**30 / max(size, least), "kind": "recommended"}
        for size in sizes.tolist()
    ]
    x = {
        "field": "gib", "type": "quantitative", "scale": {"domain": xs, "nice": False},
        "title": "state + sidecars + segments, GiB",
    }  # fmt: skip
    y = {
        "field": "ms", "type": "quantitative", "scale": {"domain": ys, "nice": False},
        "title": "ms of one core per 1 M records",
    }  # fmt: skip
    colour = {"field": "kind", "type": "nominal", "title": None, "scale": {"domain": kinds}}
    return {
        "height": 300,
        "encoding": {"x": x, "y": y},
        "layer": [
            {
                "data": {"values": line},
                "mark": {"type": "line", "strokeDash": [5, 4], "color": "gray", "clip": True},
            },
            {
                "data": {"values": rows},
                "mark": {"type": "point", "filled": True, "size": 110},
                "encoding": {
                    "color": colour,
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
            *(
                {
                    "data": {"values": placed},
                    "mark": {"type": "text", "fontSize": _FONT, **_PLACES[place][1]},
                    "encoding": {"text": {"field": "label"}},
                }
                for place, placed in labels.items()
            ),
        ],
    }


def _short(sizing: Sizing, base: Sizing) -> str:
    """A choice as `named`, in the words of the table."""
    mib = f"budget={sizing.state_budget_bytes / 2**20:g}M"
    budget = written("state_budget_bytes", sizing.state_budget_bytes)
    return named(sizing, base).replace(budget, mib)


def _padded(values: Sequence[float]) -> tuple[float, float]:
    """A scale's ends, so that no point lies at the edge; of equal values as well."""
    low, high = min(values), max(values)
    room = 0.15 * (high - low) or 0.15 * abs(high) or 1.0
    return low - room, high + room


def _labels(
    rows: Sequence[dict[str, Any]], xs: tuple[float, float], ys: tuple[float, float]
) -> dict[str, list[dict[str, Any]]]:
    """Where each point's label has room, by place; the first points choose first.

    A label that would lie on another, on a point or outside of the chart is left to the tooltip.
    """
    of_x, of_y = _WIDE / (xs[1] - xs[0]), _HIGH / (ys[1] - ys[0])
    points = [((row["gib"] - xs[0]) * of_x, (ys[1] - row["ms"]) * of_y) for row in rows]
    # What is taken: left, top, right, bottom.
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in points]
    found: dict[str, list[dict[str, Any]]] = {place: [] for place in _PLACES}
    for row, (x, y) in zip(rows, points, strict=True):
        wide = _LETTER * len(row["label"])
        for place, (box, _) in _PLACES.items():
            left, top = x + box[0] + box[1] * wide, y + box[2]
            mine = left, top, left + wide, top + _FONT
            inside = left >= 0 and top >= 0 and mine[2] <= _WIDE and mine[3] <= _HIGH
            if inside and not any(_meet(mine, other) for other in taken):
                taken.append(mine)
                found[place].append(row)
                break
    return found


def _meet(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _fill(choice: Choice) -> Spec:
    """IDs of one shard by bucket, from birth until buckets come and go."""
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
            "x": {"field": "at", "type": "quantitative", "title": "horizons since the first start"},
            "y": {
                "field": "ids", "type": "quantitative", "stack": True,
                "title": "live IDs of a shard", "axis": {"format": "~s"},
            },
            # The oldest lies at the bottom.
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


def _shards(demand: Demand) -> Spec:
    """Live IDs of each shard against the mean."""
    fill = np.array(demand.fill_of_shards(), dtype=np.float64)
    mean = float(fill.mean())
    groups = np.array_split(np.arange(len(fill)), min(len(fill), _SHARDS))
    rows = [
        {
            "shard": str(g[0]) if len(g) == 1 else f"worst of {g[0]}-{g[-1]}",
            "ids": float(fill[g].max()),
            "of_mean": float(fill[g].max() / mean) if mean else 1.0,
        }
        for g in groups
    ]
    return {
        "height": 200,
        "layer": [
            {
                "data": {"values": rows},
                "mark": {"type": "bar"},
                "encoding": {
                    "x": {
                        "field": "shard", "type": "nominal", "sort": None, "title": "shard",
                        "axis": {"labelAngle": 0, "labelOverlap": True},
                    },
                    "y": {
                        "field": "ids", "type": "quantitative", "title": "live IDs",
                        "axis": {"format": "~s"},
                    },
                    "tooltip": [
                        {"field": "shard"},
                        {"field": "ids", "format": ",.0f"},
                        {"field": "of_mean", "format": ".3f", "title": "of the mean"},
                    ],
                },
            },
            {
                "data": {"values": [{"mean": mean}]},
                "mark": {"type": "rule", "strokeDash": [5, 4]},
                "encoding": {"y": {"field": "mean", "type": "quantitative"}},
            },
        ],
    }  # fmt: skip


def _repeats(demand: Demand, apart_ms: np.ndarray) -> Spec:
    """Which share of the repeats comes within how long of the first copy."""
    at = np.unique(np.linspace(0, len(apart_ms) - 1, 200, dtype=int))
    rows = [
        {"hours": float(apart_ms[i]) / _HOUR_MS, "share": (int(i) + 1) / len(apart_ms)} for i in at
    ]
    x = {"field": "hours", "type": "quantitative", "title": "hours behind the first copy"}
    return {
        "height": 220,
        "layer": [
            {
                "data": {"values": rows},
                "mark": {"type": "line", "interpolate": "step-after"},
                "encoding": {
                    "x": x,
                    "y": {
                        "field": "share", "type": "quantitative", "title": "share of the repeats",
                        "axis": {"format": "~%"},
                    },
                    "tooltip": [
                        {"field": "hours", "format": ".2f"},
                        {"field": "share", "format": ".2%"},
                    ],
                },
            },
            {
                "data": {"values": [{"hours": demand.horizon_ms / _HOUR_MS, "text": "horizon"}]},
                "mark": {"type": "rule", "strokeDash": [5, 4]},
                "encoding": {"x": x},
            },
        ],
    }  # fmt: skip
