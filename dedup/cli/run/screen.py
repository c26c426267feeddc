"""What `dedup run` prints: its plan, or its figures."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from dedup.cli.figures import table
from dedup.cli.run.drain import RunOutcome
from dedup.cli.run.run_options import RunOptions
from dedup.cli.terminal import Terminal

#: A narrower screen would break the notes behind the figures.
_WIDTH_OF_NOTES = 70


def time_of(options: RunOptions) -> str:
    """Return what the horizon is measured by."""
    return options.timestamp or "the run's own clock"


def show(outcome: RunOutcome, options: RunOptions) -> None:
    """Print the figures of a run."""
    why = "the column of --timestamp" if options.timestamp else "no --timestamp is given"
    title = f"dedup run {options.output}"
    console = Terminal()
    shown = table(outcome.figures, title, [("time", time_of(options), why)])
    if console.width < _WIDTH_OF_NOTES:
        shown.columns.pop()
    console.print(shown)


def show_plan(plan: dict[str, Any]) -> None:
    """Print what `dedup run --dry-run` found."""
    rows = Table(box=box.SIMPLE, show_header=False, title="dry run", title_justify="left")
    told = plan | {"id": {name: plan["columns"].get(name, "") for name in plan["id"]}}
    if plan["output_columns"] == plan["columns"]:
        told["output_columns"] = "the same"
    for name, value in told.items():
        # The help tells what is default.
        if name == "notes" or value in (None, [], {}) or value is False:
            continue
        if isinstance(value, dict):
            value = [f"{key} {text}" for key, text in value.items()]
        lines = value if isinstance(value, list) else [value]
        rows.add_row(name.replace("_", " "), "\n".join(map(str, lines)))
    console = Terminal()
    console.print(rows)
    for note in plan["notes"]:
        console.print(note, soft_wrap=True)
