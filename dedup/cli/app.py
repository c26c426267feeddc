"""The commands and their flags; what they do is in the modules beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dedup.cli.app_catalog import catalog_app
from dedup.cli.app_check import check
from dedup.cli.app_tune import tune
from dedup.cli.ending import finish, stop_on_signals
from dedup.cli.failures import FAILED, INTERRUPTED, OK
from dedup.cli.figures import table
from dedup.cli.help_screen import App
from dedup.cli.progress import reporter
from dedup.cli.run_options import RunOptions, pairs

app = App(
    name="dedup",
    help="Let each record ID pass once per horizon: Spark Structured Streaming on this machine.",
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 damage, 4 unsafe settings, 5 not found, "
    "6 cannot tell, 10-13 verdicts of watch, 130 interrupted.",
)
app.add_typer(catalog_app, name="catalog")
app.command()(tune)
app.command()(check)

_JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
_QUIET = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]


def _version(wanted: bool) -> None:
    if wanted:
        from dedup.cli.version import version_lines

        for line in version_lines():
            typer.echo(line)
        raise typer.Exit(OK)


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print versions and kernel path."
        ),
    ] = False,
) -> None:
    pass


@app.command()
def explain(
    root: Annotated[str, typer.Argument(metavar="ROOT", help="Path or URI of the catalog.")],
    id: Annotated[  # noqa: A002
        list[str], typer.Argument(metavar="ID...", help="Value of each ID column, in order.")
    ],
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Checkpoint of the query: only it knows the newest IDs."),
    ] = None,
    query: Annotated[str | None, typer.Option(metavar="ID", help="Which query.")] = None,
    as_json: _JSON = False,
) -> None:
    """Say when a record ID was let through, where it is kept, and until when it is remembered.

    Exit codes: 0 it is remembered, 5 it is not, 6 the catalog alone cannot tell: without
    --checkpoint the newest IDs are unknown.
    """
    from dedup.cli import catalog
    from dedup.cli.explain import exit_code, sentences
    from dedup.cli.explain import explain as explain_id

    def work() -> tuple[int, dict[str, Any]]:
        place = catalog.open_root(root)
        known = None if checkpoint is None else catalog.snapshot(place, checkpoint)
        body = explain_id(place, id, known, query)
        if not as_json:
            for line in sentences(body):
                typer.echo(line)
        return exit_code(body), body

    finish(work, as_json=as_json)


@app.command()
def watch(
    where: Annotated[
        str,
        typer.Argument(
            metavar="DIR|URL",
            help="DedupListener(log=DIR), or where DedupListener(prometheus_port=...) serves.",
        ),
    ],
    query: Annotated[
        str | None, typer.Option(metavar="ID", help="Which query, by ID or name.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once and leave.")] = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=86_400, help="How often to look.")
    ] = 2.0,
    as_json: _JSON = False,
) -> None:
    """Watch a running query: whether its GC watermark keeps up, and what holds it; q leaves.

    A larger terminal shows more: curves and a table of the last micro-batches.

    With --once or --json the exit code is the verdict:
    0 OK, 10 LAGGING, 11 STALLED, 12 STOPPED, 13 REWOUND.
    """
    from dedup.cli import watch_query

    def work() -> tuple[int, dict[str, Any]]:
        look = watch_query.looker(where, query)
        if once or as_json:
            return watch_query.once(look, as_json=as_json)
        with stop_on_signals(tidy=True) as stop:
            watch_query.follow(look, stop, every_s=every, where=where)
        return OK, {}

    finish(work, as_json=as_json)


@app.command()
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
        str | None, typer.Option(metavar="FMT", help="csv, json or parquet; else by file names.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option(metavar="DDL", help="Columns: 'id STRING, amount INT'.")
    ] = None,
    infer: Annotated[
        bool, typer.Option("--infer", help="CSV: guess types (default: every column a string).")
    ] = False,
    read_option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Option of Spark's reader, such as sep=';'."),
    ] = None,
    timestamp: Annotated[
        str | None, typer.Option(metavar="COL", help="Event time; else processing time.")
    ] = None,
    timestamp_format: Annotated[
        str | None, typer.Option(metavar="FMT", help="Spark pattern: 'yyyy-MM-dd HH:mm:ss'.")
    ] = None,
    lateness: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How far behind is still on time.")
    ] = None,
    late: Annotated[str, typer.Option(metavar="emit|drop", help="Late, unknown records.")] = "emit",
    null_ids: Annotated[
        str, typer.Option(metavar="emit|drop|error", help="Records without an ID.")
    ] = "emit",
    duplicates: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the rows that do not go on.")
    ] = None,
    catalog: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Default: OUTPUT/_catalog.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Default: OUTPUT/_checkpoint.")
    ] = None,
    files_per_trigger: Annotated[int, typer.Option(metavar="N", help="Files a micro-batch.")] = 10,
    output_format: Annotated[
        str | None, typer.Option(metavar="FMT", help="csv, json or parquet; else as the input.")
    ] = None,
    shards: Annotated[
        int | None, typer.Option(metavar="N", help="Default: as many as cores. Fixed for ever.")
    ] = None,
    buckets: Annotated[
        int | None, typer.Option(metavar="N", help="Buckets per horizon.", rich_help_panel="Sizing")
    ] = None,
    fpr: Annotated[
        float | None,
        typer.Option(metavar="P", help="False positives of the filters.", rich_help_panel="Sizing"),
    ] = None,
    state_budget_bytes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Spark state of a shard.", rich_help_panel="Sizing"),
    ] = None,
    keep_expired: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Before expired files go.", rich_help_panel="Sizing"),
    ] = None,
    master: Annotated[
        str, typer.Option(metavar="local[N]", help="Cores to use.", rich_help_panel="Spark")
    ] = "local[*]",
    driver_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory of the JVM.", rich_help_panel="Spark")
    ] = "2g",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the plan, read no rows.")
    ] = False,
    as_json: _JSON = False,
    quiet: _QUIET = False,
) -> None:
    """De-duplicate a folder of files; run again, it takes only the files that are new.

    Each micro-batch appears in DIR/batch=<id>/ whole or not at all.
    """
    from dedup.cli import run as job

    def work() -> tuple[int, dict[str, Any]]:
        options = RunOptions.make(
            input=input,
            id=tuple(id),
            horizon=horizon,
            output=output,
            file_format=format,
            schema=schema,
            infer=infer,
            read_options=pairs(read_option or []),
            timestamp=timestamp,
            timestamp_format=timestamp_format,
            lateness=lateness,
            late=late,
            null_ids=null_ids,
            duplicates=duplicates,
            catalog=catalog,
            checkpoint=checkpoint,
            files_per_trigger=files_per_trigger,
            shards=shards,
            buckets=buckets,
            fpr=fpr,
            state_budget_bytes=state_budget_bytes,
            keep_expired=keep_expired,
            master=master,
            driver_memory=driver_memory,
            output_format=output_format,
        )
        if dry_run:
            plan = job.plan(options)
            if not as_json:
                _print_plan(plan)
            return OK, {"status": "dry run", "plan": plan}
        talk = reporter(quiet=quiet)
        try:
            with stop_on_signals() as stop:
                outcome = job.run(options, talk, stop=stop)
        finally:
            talk.close()
        if not quiet and not as_json:
            Console().print(table(outcome.figures, f"dedup run {options.output}"))
        status = "interrupted" if outcome.interrupted else "ok"
        body = {"status": status, "output": str(options.output), "query_id": outcome.query_id}
        return (INTERRUPTED if outcome.interrupted else OK), body | outcome.figures.to_json()

    finish(work, as_json=as_json)


@app.command()
def demo(
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep everything here. Default: nowhere.")
    ] = None,
    events: Annotated[int, typer.Option(metavar="N", help="Events before copies.")] = 400_000,
    seed: Annotated[int, typer.Option(metavar="N", help="Same seed, same events.")] = 7,
    as_json: _JSON = False,
    quiet: _QUIET = False,
) -> None:
    """Make up a stream with known duplicates, de-duplicate it, and check every figure."""
    from dedup.cli import demo as job

    def work() -> tuple[int, dict[str, Any]]:
        talk = reporter(quiet=quiet)
        try:
            with stop_on_signals() as stop:
                shown = None if quiet or as_json else Console()
                body = job.demo(folder, events=events, seed=seed, talk=talk, show=shown, stop=stop)
        finally:
            talk.close()
        return {"ok": OK, "interrupted": INTERRUPTED}.get(body["status"], FAILED), body

    finish(work, as_json=as_json)


@app.command()
def remedies(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="As the error's last line names it.")
    ] = None,
    as_json: _JSON = False,
) -> None:
    """Say what to do about an error; without TOPIC, list what there is."""
    from dedup.cli import remedies as page

    def work() -> tuple[int, dict[str, Any]]:
        found = page.read_page()
        if topic is None:
            if not as_json:
                for line in page.listing(found):
                    typer.echo(line)
            return OK, {"topics": {name: section.about for name, section in found.items()}}
        section = page.section(found, topic)
        if not as_json:
            typer.echo(section.text)
        return OK, {"topic": topic, "about": section.about, "text": section.text}

    finish(work, as_json=as_json)


def _print_plan(plan: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    rows = Table(box=box.SIMPLE, show_header=False, title="dry run", title_justify="left")
    for name, value in plan.items():
        shown = "default" if value in (None, {}) else value
        rows.add_row(name, " ".join(value) if name == "id" else str(shown))
    Console().print(rows)
