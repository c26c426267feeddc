"""The flags of `dedup tune`, and how its result is printed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from dedup.cli.ending import finish
from dedup.cli.failures import FAILED, OK

if TYPE_CHECKING:
    from dedup.cli.tune import work as job

_LOAD, _NOW, _READ = "Load", "What the query has now", "Reading a sample"


def tune(
    ids_per_day: Annotated[
        str | None,
        typer.Option(metavar="N", help="New IDs a day: 20M.", rich_help_panel=_LOAD),
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(metavar="INPUT", help="Files as of `dedup run`.", rich_help_panel=_LOAD),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="DedupListener(log=DIR).", rich_help_panel=_LOAD),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Which of the log's.", rich_help_panel=_LOAD),
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option(metavar="ROOT", help="Catalog of a query.", rich_help_panel=_LOAD),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="Its checkpoint.", rich_help_panel=_LOAD)
    ] = None,
    horizon: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long an ID is remembered.")
    ] = None,
    lateness: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How far behind is still on time.")
    ] = None,
    duplicate_share: Annotated[
        float | None, typer.Option(metavar="P", help="Share of records that repeat an ID: 0.05.")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="From micro-batch to micro-batch. Default: the log's, else a minute.",
        ),
    ] = None,
    id_bytes: Annotated[
        int | None, typer.Option(metavar="N", help="Length of an ID; a UUID has 17.")
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of all executors together. Default: this machine's."),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(metavar="N", help="Default: as many as cores; a log or catalog tells them."),
    ] = None,
    buckets: Annotated[
        int | None, typer.Option(metavar="N", help="Buckets per horizon.", rich_help_panel=_NOW)
    ] = None,
    fpr: Annotated[
        float | None,
        typer.Option(metavar="P", help="False positives of the filters.", rich_help_panel=_NOW),
    ] = None,
    state_budget_bytes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Spark state of a shard.", rich_help_panel=_NOW),
    ] = None,
    stable_timestamps: Annotated[
        bool,
        typer.Option(
            "--stable-timestamps",
            help="Every copy carries the same timestamp.",
            rich_help_panel=_NOW,
        ),
    ] = False,
    late: Annotated[
        str | None,
        typer.Option(metavar="emit|drop", help="Default: emit.", rich_help_panel=_NOW),
    ] = None,
    id: Annotated[  # noqa: A002
        list[str] | None,
        typer.Option(
            "--id", metavar="COL", help="ID column; repeat for several.", rich_help_panel=_READ
        ),
    ] = None,
    timestamp: Annotated[
        str | None, typer.Option(metavar="COL", help="Event time.", rich_help_panel=_READ)
    ] = None,
    timestamp_format: Annotated[
        str | None,
        typer.Option(
            metavar="FMT",
            help="Spark's pattern ('yyyy-MM-dd HH:mm:ss'), or seconds or milliseconds since 1970.",
            rich_help_panel=_READ,
        ),
    ] = None,
    format: Annotated[  # noqa: A002
        str | None,
        typer.Option(
            metavar="FMT", help="csv, json or parquet; else by file names.", rich_help_panel=_READ
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="DDL", help="Columns: 'id STRING, amount INT'.", rich_help_panel=_READ
        ),
    ] = None,
    infer: Annotated[
        bool, typer.Option("--infer", help="CSV: guess types.", rich_help_panel=_READ)
    ] = False,
    read_option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Option of Spark's reader.", rich_help_panel=_READ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report with charts.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Tell of no progress.")] = False,
) -> None:
    """Measure what choices of filter sizing cost for a load, and recommend one.

    The load is a number, a sample of the data, the metrics log or the catalog of a query. Exit code
    3: a filter did not know an ID that it holds, which must never be.
    """
    from dedup.cli.run.options import pairs
    from dedup.cli.tune import work as job

    def work() -> tuple[int, dict[str, Any]]:
        asked = job.Asked(
            ids_per_day=ids_per_day,
            sample=sample,
            log=log,
            catalog=catalog,
            checkpoint=checkpoint,
            query=query,
            horizon=horizon,
            lateness=lateness,
            batch=batch,
            duplicate_share=duplicate_share,
            id_bytes=id_bytes,
            shards=shards,
            cores=cores,
            buckets=buckets,
            fpr=fpr,
            state_budget_bytes=state_budget_bytes,
            stable_timestamps=stable_timestamps,
            late=late,
            read={
                "id": tuple(id or ()),
                "timestamp": timestamp,
                "timestamp_format": timestamp_format,
                "file_format": format,
                "schema": schema,
                "infer": infer,
                "read_options": pairs(read_option or []),
            },
            html=html,
        )
        with _talk(quiet=quiet) as tell:
            result = job.tune(asked, tell)
        code, body, written = result.exit_code, result.to_json(), html
        if html is not None:
            try:
                html.write_text(job.page(result), encoding="utf-8")
            except OSError as error:
                # What was measured is told all the same.
                failure = f"--html {html} cannot be written: {error.strerror}."
                print(f"error: {failure}", file=sys.stderr)
                body["message"], written = failure, None
                if code == OK:
                    code, body["status"] = FAILED, "failed"
        if not as_json:
            _print(result, written)
        return code, body

    finish(work, as_json=as_json)


@contextmanager
def _talk(*, quiet: bool) -> Iterator[job.Progress]:
    """A bar on a terminal's stderr, else a line for each thing that is begun."""
    console = Console(stderr=True, quiet=quiet)
    if console.is_terminal and not quiet:
        columns = BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=1.0)
            yield lambda done, what: bar.update(task, completed=done, description=what)
        return
    said = ""

    def tell(done: float, what: str) -> None:
        nonlocal said
        if what != said:
            said = what
            console.print(f"{done:4.0%} {what}", markup=False, highlight=False)

    yield tell


def _print(result: job.Result, html: Path | None) -> None:
    from dedup.cli.findings_screen import findings_lines
    from dedup.cli.tune import screen as words
    from dedup.cli.tune import work as job

    console = Console()
    width = max(40, min(100, console.width)) if console.is_terminal else 100
    lines = [
        *Text(words.title(result.demand), style="dim").wrap(console, width),
        *Text(words.verdict(result.demand, result.choice), style="bold").wrap(console, width),
        Text(),
        *words.table(result.choice, running=result.demand.running, width=width),
        Text(),
        *findings_lines(result.findings, width),
        *Text(job.measured(result), style="dim").wrap(console, width),
    ]
    if html is not None:
        lines.append(Text(f"report: {html}"))
    for line in lines:
        line.rstrip()
        console.print(line, highlight=False, soft_wrap=True)
