"""What `dedup run` prints: its plan, or its figures."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from dedup.cli.figures import table
from dedup.cli.run.drain import RunOutcome
from dedup.cli.run.run_options import RunOptions
from dedup.cli.terminal import Terminal


def time_of(options: RunOptions) -> str:
    """Return what the horizon is measured by."""
    return options.timestamp or "the run's own clock"


def show(outcome: RunOutcome, options: RunOptions) -> None:
    """Print the figures of a run."""
    why = "the column of --timestamp" if options.timestamp else "no --timestamp is given"
    title = f"dedup run {options.output}"
    Terminal().print(table(outcome.figures, title, [("time", time_of(options), why)]))


def show_plan(plan: dict[str, Any]) -> None:
    """Print what `dedup run --dry-run` found."""
    rows = Table(box=box.SIMPLE, show_header=False, title="dry run", title_justify="left")
    for name, value in plan.items():
        if name == "notes":
            continue
        shown = "default" if value is None else "none" if value in ({}, []) else value
        rows.add_row(name, " ".join(shown) if isinstance(shown, list) else str(shown))
    console = Terminal()
    console.print(rows)
    for note in plan["notes"]:
        console.print(note, soft_wrap=True)
