"""How a line of the screen of `dedup watch` is laid out: what it is, a figure, and more of it."""

from __future__ import annotations

from rich.text import Text

WIDTH, HEIGHT = 80, 24
LABEL, VALUE = 17, 21


def figure(label: str, value: str | None, more: str) -> Text:
    """A line with a figure, ``-`` where there is none."""
    text = Text(f"{label:<{LABEL}}")
    text.append(f"{value or '-':<{VALUE}}", style="bold")
    text.append(more)
    return text


def rate(per_second: float | None) -> str:
    """A figure per second, without digits that nobody reads."""
    if per_second is None:
        return "-"
    return f"{per_second:,.0f}" if per_second >= 10 or per_second == 0 else f"{per_second:.1f}"
