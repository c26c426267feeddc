"""The flags of `dedup run`, and how its plan and its figures are printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from dedup.cli.ending import finish
from dedup.cli.failures import INTERRUPTED, OK
from dedup.cli.figures import table
from dedup.cli.progress import Reporter, reporter
from dedup.cli.run.options import RunOptions, pairs
from dedup.cli.stop import StopRequest, stop_on_signals

if TYPE_CHECKING:
    from dedup.cli.run.drain import RunOutcome

_INPUT, _TIME, _OUTPUT = "Input", "Time", "Output"
_SIZING, _WATCHING, _SPARK = "Sizing", "Watching", "Spark"


def run(
    input: Annotated[  # noqa: A002
        Path, typer.Argument(metavar="INPUT", help="Folder of files, or one file.")
    ],
    id: Annotated[  # noqa: A002
        list[str], typer.Option("--id", metavar="COL", help="ID column; repeat for several.")
    ],
    horizon: Annotated[
        str, typer.Option(metavar="DURATION", help="How long an ID is remembered: '7 days'.")
    ],
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the unique rows.")],
    format: Annotated[  # noqa: A002
        str | None,
        typer.Option(
            metavar="FMT",
            help="csv, json or parquet; else by file names.",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="DDL",
            help="Columns: 'id STRING, amount INT'. May change later.",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    infer: Annotated[
        bool,
        typer.Option(
            "--infer",
            help="CSV: guess types (default: every column a string).",
            rich_help_panel=_INPUT,
        ),
    ] = False,
    read_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Option of Spark's reader, such as sep=';'.",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    new_columns: Annotated[
        str,
        typer.Option(
            metavar="error|ignore|add",
            help="Columns of later files that the output lacks.",
            rich_help_panel=_INPUT,
        ),
    ] = "error",
    bad_records: Annotated[
        str,
        typer.Option(
            metavar="error|skip|DIR",
            help="Rows that cannot be read: stop, leave them out, or set them aside in DIR.",
            rich_help_panel=_INPUT,
        ),
    ] = "error",
    null_ids: Annotated[
        str,
        typer.Option(
            metavar="emit|drop|error", help="Records without an ID.", rich_help_panel=_INPUT
        ),
    ] = "emit",
    files_per_trigger: Annotated[
        int, typer.Option(metavar="N", help="Files a micro-batch.", rich_help_panel=_INPUT)
    ] = 10,
    timestamp: Annotated[
        str | None,
        typer.Option(
            metavar="COL",
            help="Event time, by which the horizon is measured. Default: the run's own clock.",
            rich_help_panel=_TIME,
        ),
    ] = None,
    timestamp_format: Annotated[
        str | None,
        typer.Option(
            metavar="FMT",
            help="Spark's pattern ('yyyy-MM-dd HH:mm:ss'), or seconds or milliseconds since 1970.",
            rich_help_panel=_TIME,
        ),
    ] = None,
    null_timestamps: Annotated[
        str,
        typer.Option(
            metavar="error|now|drop|emit",
            help="Records without a timestamp.",
            rich_help_panel=_TIME,
        ),
    ] = "error",
    source_partition: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COL",
            help="Column that tells clocks apart, such as a producer; repeat for several.",
            rich_help_panel=_TIME,
        ),
    ] = None,
    lateness: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How far behind is still on time.", rich_help_panel=_TIME
        ),
    ] = None,
    late: Annotated[
        str,
        typer.Option(metavar="emit|drop", help="Late, unknown records.", rich_help_panel=_TIME),
    ] = "emit",
    stable_timestamps: Annotated[
        bool,
        typer.Option(
            "--stable-timestamps",
            help="All copies of a record have the same timestamp. Fixed for ever.",
            rich_help_panel=_TIME,
        ),
    ] = False,
    max_future: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Timestamps further ahead count as now. Default: 10 minutes.",
            rich_help_panel=_TIME,
        ),
    ] = None,
    idle_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="After it nobody waits for a silent clock, or never. Default: 10 minutes.",
            rich_help_panel=_TIME,
        ),
    ] = None,
    order_by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COL",
            help="Of copies in one micro-batch with the same time the smallest goes on.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    duplicates: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of the rows that do not go on.", rich_help_panel=_OUTPUT
        ),
    ] = None,
    verdict: Annotated[
        str | None,
        typer.Option(
            metavar="COL",
            help="Add a column with each row's verdict, and let every row go on.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    output_format: Annotated[
        str | None,
        typer.Option(
            metavar="FMT", help="csv, json or parquet; else as the input.", rich_help_panel=_OUTPUT
        ),
    ] = None,
    catalog: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Default: OUTPUT/_catalog.", rich_help_panel=_OUTPUT),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Default: OUTPUT/_checkpoint.", rich_help_panel=_OUTPUT),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Default: as many as cores. Fixed for ever.",
            rich_help_panel=_SIZING,
        ),
    ] = None,
    buckets: Annotated[
        int | None, typer.Option(metavar="N", help="Buckets per horizon.", rich_help_panel=_SIZING)
    ] = None,
    fpr: Annotated[
        float | None,
        typer.Option(metavar="P", help="False positives of the filters.", rich_help_panel=_SIZING),
    ] = None,
    state_budget_bytes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Spark state of a shard.", rich_help_panel=_SIZING),
    ] = None,
    keep_expired: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Before expired files go.", rich_help_panel=_SIZING),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Metrics log. Default: OUTPUT/_metrics, which `dedup watch OUTPUT` follows.",
            rich_help_panel=_WATCHING,
        ),
    ] = None,
    prometheus_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="Serve the metrics to Prometheus while the run lasts.",
            rich_help_panel=_WATCHING,
        ),
    ] = None,
    master: Annotated[
        str, typer.Option(metavar="local[N]", help="Cores to use.", rich_help_panel=_SPARK)
    ] = "local[*]",
    driver_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory of the JVM.", rich_help_panel=_SPARK)
    ] = "2g",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the plan, take no rows.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """De-duplicate a folder of files; run again, it takes only the files that are new.

    Each micro-batch appears in DIR/batch=<id>/ whole or not at all.
    """
    # Before any other name is bound.
    given = dict(locals())
    from dedup.cli.run import work as job

    def work() -> tuple[int, dict[str, Any]]:
        options = _options(given)
        if dry_run:
            plan = job.plan(options)
            if not as_json:
                _print_plan(plan)
            return OK, {"status": "dry run", "plan": plan}
        talk = reporter(quiet=quiet)
        try:
            with stop_on_signals() as stop:
                outcome = _run(options, talk, stop)
        finally:
            talk.close()
        # Without a micro-batch all figures would be zero, and the run has said why.
        if outcome.figures.batches and not quiet and not as_json:
            title = f"dedup run {options.output}"
            Console().print(table(outcome.figures, title, _time_line(options)))
        status = "interrupted" if outcome.interrupted else "ok"
        body = {
            "status": status,
            "output": str(options.output),
            "query_id": outcome.query_id,
            "time": _time_line(options)[0][1],
            "written_again": list(outcome.written_again),
        }
        return (INTERRUPTED if outcome.interrupted else OK), body | outcome.figures.to_json()

    finish(work, as_json=as_json)


def _options(given: dict[str, Any]) -> RunOptions:
    """The flags under the names of `RunOptions`, which are theirs but for two."""
    named = {k: v for k, v in given.items() if k not in ("dry_run", "as_json", "quiet")}
    named["file_format"] = named.pop("format")
    named["read_options"] = pairs(named.pop("read_option") or [])
    for name in ("id", "source_partition", "order_by"):
        named[name] = tuple(named[name] or ())
    return RunOptions.make(**named)


def _run(options: RunOptions, talk: Reporter, stop: StopRequest) -> RunOutcome:
    from dedup.cli.run import work as job
    from dedup.cli.session import unless_java_ended

    with unless_java_ended(stop):
        return job.run(options, talk, stop=stop)
    raise KeyboardInterrupt


def _time_line(options: RunOptions) -> list[tuple[str, str, str]]:
    """What the horizon is measured by."""
    if options.timestamp is not None:
        return [("time", options.timestamp, "the column of --timestamp")]
    return [("time", "the run's own clock", "no --timestamp is given")]


def _print_plan(plan: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    notes = plan["notes"]
    rows = Table(box=box.SIMPLE, show_header=False, title="dry run", title_justify="left")
    for name, value in plan.items():
        if name == "notes":
            continue
        shown = "default" if value is None else "none" if value in ({}, []) else value
        rows.add_row(name, " ".join(shown) if isinstance(shown, list) else str(shown))
    console = Console()
    console.print(rows)
    for note in notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
