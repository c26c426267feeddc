"""The report of `dedup tune` as one HTML file that needs nothing else."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from dedup.errors import MissingExtraError
from dedup.tools.check.findings import Finding

_TEMPLATE = "report.html"


def check_extra() -> None:
    """Refuse a report before anything is measured where it could not be drawn.

    Raises
    ------
    MissingExtraError
        Without vl-convert-python.
    """
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
    """Return the page.

    Parameters
    ----------
    title, verdict, foot : str
    header : sequence of str
        Of the table's columns.
    rows : sequence of (str, sequence of str)
        Each with its kind: ``recommended``, ``today``, ``dominated`` or empty.
    findings : sequence of Finding
    legend : sequence of (str, str)
        Words and what they mean.
    charts : dict of str to Vega-Lite specification

    Raises
    ------
    MissingExtraError
        Without vl-convert-python, which brings Vega-Lite.
    """
    fields = {
        "title": _text(title),
        "verdict": _text(verdict),
        "head": "".join(f"<th>{_text(name)}</th>" for name in header),
        "rows": "\n".join(_row(kind, cells) for kind, cells in rows),
        "findings": "\n".join(_finding(finding) for finding in findings),
        "legend": "\n".join(f"<dt>{_text(a)}</dt><dd>{_text(b)}</dd>" for a, b in legend),
        "foot": _text(foot),
        # Nothing in a script element is unescaped but its own end.
        "charts": json.dumps(charts).replace("</", "<\\/"),
        "library": _bundle_module().javascript_bundle().replace("</script", "<\\/script"),
    }
    template = (files(__package__) / _TEMPLATE).read_text(encoding="utf-8")
    parts = template.split("@@")
    # Every second part is a field's name: what a field holds is never looked into again.
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
