"""`dedup run`: do the run, or print the plan of a dry run."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from dedup.cli.commands import Done
from dedup.cli.failures import INTERRUPTED, OK
from dedup.cli.figures import table
from dedup.cli.run import work
from dedup.cli.run.options import RunFlags
from dedup.cli.run.progress import reporting
from dedup.cli.session import unless_java_ended
from dedup.cli.stop import stop_on_signals


def run(flags: RunFlags) -> Done:
    options, outcome = flags.options, None
    if flags.dry_run:
        plan = work.plan(options)
        return Done(OK, {"status": "dry run", "plan": plan}, plan_lines(plan))
    with (
        reporting(quiet=flags.quiet) as reporter,
        stop_on_signals() as stop,
        unless_java_ended(stop),
    ):
        outcome = work.run(options, reporter, stop=stop)
    if outcome is None:
        raise KeyboardInterrupt
    clock = options.timestamp or "the run's own clock"
    body = {
        "status": "interrupted" if outcome.interrupted else "ok",
        "output": str(options.output),
        "query_id": outcome.query_id,
        "time": clock,
        "written_again": list(outcome.written_again),
    }
    why = "the column of --timestamp" if options.timestamp else "no --timestamp is given"
    title, notes = f"dedup run {options.output}", [("time", clock, why)]
    code = INTERRUPTED if outcome.interrupted else OK
    # If no micro-batch ran, all figures are zero, and the run has printed the reason.
    shown = outcome.figures.batches and not flags.quiet
    lines = [table(outcome.figures, title, notes)] if shown else []
    return Done(code, body | outcome.figures.to_json(), lines)


def plan_lines(plan: dict[str, Any]) -> list[str | Table]:
    """Return the plan of a dry run as lines. Options that were not given are omitted."""
    rows = Table(box=box.SIMPLE, show_header=False, title="dry run", title_justify="left")
    shown = plan | {"id": {name: plan["columns"].get(name, "") for name in plan["id"]}}
    if plan["output_columns"] == plan["columns"]:
        shown["output_columns"] = "the same"
    for name, value in shown.items():
        if name == "notes" or value in (None, [], {}) or value is False:
            continue
        if isinstance(value, dict):
            value = [f"{key} {text}" for key, text in value.items()]
        lines = value if isinstance(value, list) else [value]
        rows.add_row(name.replace("_", " "), "\n".join(map(str, lines)))
    return [rows, *plan["notes"]]
