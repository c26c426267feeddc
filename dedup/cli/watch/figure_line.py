"""How a line of the screen of `dedup watch` is laid out: what it is, a figure, and more of it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from dedup.tools.watch.health import share_of
from dedup.tools.watch.watched import Watched

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


def share_lines(one: Watched) -> Iterator[Text]:
    """Yield a line each for records that are clamped, or late, in numbers."""
    meanings = {"future": "have a future timestamp: count as now", "late": "came too late"}
    for count, meaning in meanings.items():
        if share := share_of(count, (batch for _, batch in one.batches)):
            line = figure(f"{count}/s", rate(one.rates()[count]), f"{share:.0%} {meaning}")
            line.stylize("yellow")
            yield line
