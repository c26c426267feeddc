"""Tables as HTML, for notebooks and reports. Every text is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from dedup.values.duration import cell, iso

#: A notebook's own style puts the text of cells to the right, on one line.
_STYLE = "<style>.dedup td, .dedup th {text-align: left; white-space: pre-line}</style>"
#: Ends of the names of points in time, in milliseconds since 1970.
_TIMES = ("now_ms", "newest_ms", "watermark_ms", "before_ms")


def for_notebook(*parts: str) -> str:
    """Return what a method ``_repr_html_`` returns: paragraphs and tables in one style."""
    return "\n".join((_STYLE, *parts))


def fields_for_notebook(fields: Mapping[str, Any]) -> str:
    """Return names and values as a table that is broken into columns."""
    rows = ((name, iso(at) if name.endswith(_TIMES) else at) for name, at in fields.items())
    return for_notebook(f'<div style="columns: 24em">{table((), rows)}</div>')


def escaped(text: object) -> str:
    """Return a text as HTML, with the parts between back-quotes as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(str(text)))


def table(head: Sequence[str], rows: Iterable[Sequence[object]], kinds: Iterable[str] = ()) -> str:
    """Return a table. `kinds` names a CSS class for each row."""
    lines = [_row("th", head)] if head else []
    for row, kind in zip_longest(rows, kinds):
        lines.append(_row("td", map(cell, row), f' class="{kind}"' if kind else ""))
    return '<table class="dedup">\n' + "\n".join(lines) + "\n</table>"


def _row(tag: str, texts: Iterable[str], kind: str = "") -> str:
    cells = "".join(f"<{tag}>{escaped(text)}</{tag}>" for text in texts)
    return f"<tr{kind}>{cells}</tr>"
