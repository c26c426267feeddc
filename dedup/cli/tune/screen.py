"""What `dedup tune` prints: how far it is, then the verdict, the choices and the findings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar
from rich.text import Text

from dedup.cli.findings_screen import findings_lines
from dedup.cli.terminal import Terminal
from dedup.tools.tuning import format as words
from dedup.tools.tuning.candidates import Choice
from dedup.tools.tuning.tune import Progress, Tuning

#: Columns that a narrow screen does without, in this order.
_SPARED = ("waste", "expect", "state", "budget", "sidecar", "reads/s", "bits")


def table(choice: Choice, *, running: bool, width: int = 100) -> Iterator[Text]:
    """The choices, a line each; where it is narrow, columns are left out from the least telling on.

    Parameters
    ----------
    choice : Choice
    running : bool
        Whether there is a query that has the first of them.
    width : int
        Characters of a line.
    """
    shown = [name for name, _, _ in words.COLUMNS]
    left_out = []
    while sum(wide + 1 for name, wide, _ in words.COLUMNS if name in shown) + 1 > width:
        left_out.append(next(name for name in _SPARED if name in shown))
        shown.remove(left_out[-1])
        if not set(_SPARED) & set(shown):
            break
    head = " ".join(f"{name:>{wide}}" for name, wide, _ in words.COLUMNS if name in shown)
    yield Text(f"  {head}", style="dim")
    for candidate in choice.candidates:
        what = words.kind(choice, candidate)
        mark = {"recommended": ">", "today": "*"}.get(what, " ")
        row = zip(words.cells(candidate), words.COLUMNS, strict=True)
        line = " ".join(f"{cell:>{wide}}" for cell, (name, wide, _) in row if name in shown)
        style = {"recommended": "bold green", "dominated": "dim"}.get(what, "")
        yield Text(f"{mark} {line}", style=style)
    now = "as the query tells, or given" if running else "as given, else the defaults"
    dim = "dim: another is as good or better"
    yield from _wrapped(f"> recommended  * {now}  {dim}  K, M: KiB, MiB", width)
    if left_out:
        yield from _wrapped(
            f"A wider terminal, --json and --html show {', '.join(left_out)}.", width
        )


def _wrapped(text: str, width: int) -> list[Text]:
    return [Text(line) for line in textwrap.wrap(text, width)]


@contextmanager
def progress(*, quiet: bool) -> Iterator[Progress]:
    """A bar on a terminal's stderr, else a line for each thing that is begun."""
    console = Terminal(stderr=True, quiet=quiet)
    if console.is_terminal and not quiet:
        columns = BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        with ProgressBar(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=1.0)
            yield lambda done, what: bar.update(task, completed=done, description=what)
        return
    last = ""

    def tell(done: float, what: str) -> None:
        nonlocal last
        if what != last:
            last = what
            console.print(f"{done:4.0%} {what}")

    yield tell


def show(result: Tuning, html: Path | None) -> None:
    """Print the verdict, the choices, the findings and what they rest on."""
    console = Terminal()
    width = max(40, min(100, console.width)) if console.is_terminal else 100
    lines = [
        *Text(words.title(result.demand), style="dim").wrap(console, width),
        *Text(words.verdict(result.demand, result.choice), style="bold").wrap(console, width),
        Text(),
        *table(result.choice, running=result.demand.running, width=width),
        Text(),
        *findings_lines(result.findings, width),
        *Text(result.measured, style="dim").wrap(console, width),
    ]
    if html is not None:
        lines.append(Text(f"report: {html}"))
    for line in lines:
        line.rstrip()
        console.print(line, soft_wrap=True)
