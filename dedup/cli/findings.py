"""Print findings of the tools as lines of text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.text import Text

from dedup.cli.terminal import wrapped
from dedup.tools.check.findings import Finding, Level, in_order

WIDTH = 80
_COLOURS = {
    Level.STOPS: "red",
    Level.BREAKS: "red",
    Level.COSTS: "yellow",
    Level.UNKNOWN: "magenta",
    Level.FINE: "green",
}
_BADGE_CHARS = max(map(len, Level.__members__))
_INDENT = " " * (_BADGE_CHARS + 3)
_OPTION = re.compile(r"--[a-z]+(?:-[a-z]+)*")


def findings_lines(
    findings: Sequence[Finding], width: int = WIDTH, *, fold: bool = False
) -> list[Text]:
    """Return lines for the findings, the most serious first.

    Sentences are wrapped to `width`. Lines with a change are not wrapped, so that users can copy
    them. Print the lines with ``soft_wrap=True``. With `fold`, one entry sums up the rules whose
    facts another option of the command would supply.
    """
    folded = [f for f in findings if fold and f.level is Level.UNKNOWN and _options(f)]
    ordered = in_order(f for f in findings if f not in folded)
    before = [f for f in ordered if f.level is not Level.FINE]
    lines = [line for finding in before for line in _finding(finding, width)]
    lines += _folded(folded, width) if folded else ()
    return lines + [line for f in ordered[len(before) :] for line in _finding(f, width)]


def summary_line(findings: Sequence[Finding]) -> Text:
    """Return how many findings each level has, such as ``1 breaks the guarantee, 9 fine``."""
    counts = Counter(finding.level for finding in findings)
    line = Text(f"{len(findings)} looked at: ")
    for level in Level:
        if counts[level]:
            style = "dim" if level is Level.FINE else f"bold {_COLOURS[level]}"
            line.append(", " if line.spans else "").append(f"{counts[level]} {level}", style=style)
    return line


def _options(finding: Finding) -> str:
    named = list(dict.fromkeys(_OPTION.findall(finding.evidence)))
    # A properties file supplies what any of these options would supply.
    return "--properties or --conf" if "--conf" in named else " or ".join(named)


def _folded(findings: Sequence[Finding], width: int) -> Iterator[Text]:
    need = "1 rule needs" if len(findings) == 1 else f"{len(findings)} rules need"
    yield _head(Level.UNKNOWN, f"{need} another option to be judged; --all lists them")
    by_options: dict[str, list[str]] = {}
    for finding in findings:
        by_options.setdefault(_options(finding), []).append(finding.rule)
    for options, names in by_options.items():
        yield from _sentence(f"{options}: {', '.join(dict.fromkeys(names))}", width)


def _head(level: Level, title: str) -> Text:
    shown = (f" {level.name:<{_BADGE_CHARS}} ", f"reverse bold {_COLOURS[level]}")
    return Text.assemble(shown, " ", (title, "bold"))


def _sentence(text: str, width: int) -> Iterator[Text]:
    for line in wrapped(text, max(20, width - len(_INDENT))):
        yield Text(_INDENT + line)


def _finding(finding: Finding, width: int) -> Iterator[Text]:
    yield _head(finding.level, finding.rule)
    yield from _sentence(finding.evidence, width)
    for line in (finding.change or "").splitlines():
        yield Text(_INDENT).append(line, style="bold")
    if finding.takes is not None:
        yield Text(_INDENT).append(str(finding.takes), style="dim")
