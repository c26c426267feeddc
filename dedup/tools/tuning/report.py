"""The report of `dedup tune`: one HTML file without dependencies, with two charts of Vega-Lite."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from dedup.errors import MissingExtraError
from dedup.tools.check.findings import Finding
from dedup.tools.tuning.candidates import LEAST_BYTES, Choice, named, written
from dedup.tools.tuning.demand import Sizing

_TEMPLATE = "report.html"
Spec = dict[str, Any]
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
#: Moments in the chart of the fill.
_MOMENTS = 120
_DASHED = {"strokeDash": [5, 4]}
#: Kinds of choices, the most important first.
_KINDS = ["recommended", "as it is", "another choice", "dominated"]


def check_extra() -> None:
    """Raise MissingExtraError without vl-convert-python, before anything is measured."""
    _bundle_module()


def page(
    *,
    title: str,
    verdict: str,
    header: Sequence[str],
    rows: Sequence[tuple[str, Sequence[str]]],
    findings: Sequence[Finding],
    legend: Sequence[tuple[str, str]],
    charts: dict[str, dict[str, Any]],
    foot: str,
) -> str:
    """Return the page; MissingExtraError without vl-convert-python, which contains Vega-Lite.

    Each row has its kind: ``recommended``, ``today``, ``dominated`` or empty. Charts are Vega-Lite
    specifications by their place in the page.
    """
    fields = {
        "title": _text(title),
        "verdict": _text(verdict),
        "head": "".join(f"<th>{_text(name)}</th>" for name in header),
        "rows": "\n".join(_row(kind, cells) for kind, cells in rows),
        "findings": "\n".join(_finding(finding) for finding in findings),
        "legend": "\n".join(f"<dt>{_text(a)}</dt><dd>{_text(b)}</dd>" for a, b in legend),
        "foot": _text(foot),
        # In a script element, only its end needs escaping.
        "charts": json.dumps(charts).replace("</", "<\\/"),
        "library": _bundle_module().javascript_bundle().replace("</script", "<\\/script"),
    }
    template = (files(__package__) / _TEMPLATE).read_text(encoding="utf-8")
    parts = template.split("@@")
    # Every second part is the name of a field. The contents of fields are not searched.
    return "".join(fields[p] if i % 2 else p for i, p in enumerate(parts))


def _bundle_module() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise MissingExtraError("report", "--html") from None
    return vl_convert


def _row(kind: str, cells: Sequence[str]) -> str:
    inner = "".join(f"<td>{_text(cell)}</td>" for cell in cells)
    return f'<tr class="{kind}">{inner}</tr>'


def _finding(finding: Finding) -> str:
    change = f"<code>{_text(finding.change)}</code>" if finding.change else ""
    takes = f"<small>{_text(str(finding.takes))}</small>" if finding.takes else ""
    return (
        f'<li class="{finding.level.name.lower()}"><b>{_text(finding.rule)}</b> '
        f"<i>{_text(str(finding.level))}</i><p>{_text(finding.evidence)}</p>{change} {takes}</li>"
    )


def _text(text: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))


def charts(choice: Choice) -> dict[str, Spec]:
    """Return the charts by their place in the page."""
    specs = {"cost": _cost(choice), "fill": _fill(choice)}
    return {name: {"$schema": _SCHEMA, "width": "container", **s} for name, s in specs.items()}


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
    """Return time against bytes: the knee is where their product is least."""
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
    """Return a row for each choice, the most important last, because later points cover others."""
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
            # The oldest bucket at the bottom.
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
