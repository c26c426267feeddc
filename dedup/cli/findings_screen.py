"""Findings as lines of text: badge and rule, why, the change, and from when on it works."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.text import Text

from dedup.core.findings import Finding, Level, in_order

WIDTH = 80
#: The badge of each level and its colour; all are padded to the longest.
_BADGES = {
    Level.BREAKS: ("BREAKS", "red"),
    Level.COSTS: ("COSTS", "yellow"),
    Level.UNKNOWN: ("UNKNOWN", "magenta"),
    Level.FINE: ("FINE", "green"),
}
_BADGE_CHARS = max(len(badge) for badge, _ in _BADGES.values())
_INDENT = " " * (_BADGE_CHARS + 3)


def findings_lines(findings: Sequence[Finding], width: int = WIDTH) -> list[Text]:
    """The findings, those that matter most first, without the summary.

    Parameters
    ----------
    findings : sequence of Finding
    width : int
        Sentences are wrapped to it. A change is not, so that it can be copied: print the lines
        with ``soft_wrap=True``.
    """
    return [line for finding in in_order(findings) for line in _finding(finding, width)]


def summary_line(findings: Sequence[Finding]) -> Text:
    """How many findings there are of each level, e.g. ``1 breaks the guarantee, 9 fine``."""
    counts = Counter(finding.level for finding in findings)
    line = Text(f"{len(findings)} looked at: ")
    for level in Level:
        if counts[level]:
            _, colour = _BADGES[level]
            style = "dim" if level is Level.FINE else f"bold {colour}"
            line.append(", " if line.spans else "").append(f"{counts[level]} {level}", style=style)
    return line


def _finding(finding: Finding, width: int) -> Iterator[Text]:
    badge, colour = _BADGES[finding.level]
    head = Text()
    head.append(f" {badge:<{_BADGE_CHARS}} ", style=f"reverse bold {colour}")
    yield head.append(" ").append(finding.rule, style="bold")
    room = max(20, width - len(_INDENT))
    # A setting's name is copied whole.
    for line in textwrap.wrap(
        finding.evidence, room, break_long_words=False, break_on_hyphens=False
    ):
        yield Text(_INDENT + line)
    for line in (finding.change or "").splitlines():
        yield Text(_INDENT).append(line, style="bold")
    if finding.takes is not None:
        yield Text(_INDENT).append(str(finding.takes), style="dim")
