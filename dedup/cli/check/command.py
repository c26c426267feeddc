"""The flags of `dedup check`, and how its findings are printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console

from dedup.checks.findings import Finding
from dedup.cli.ending import finish


def check(
    checkpoint: Annotated[
        str, typer.Argument(metavar="DIR", help="Checkpoint, or the OUTPUT of `dedup run`.")
    ],
    catalog: Annotated[
        str | None, typer.Option(metavar="ROOT", help="Path or URI of the catalog.")
    ] = None,
    log: Annotated[
        str | None, typer.Option(metavar="DIR", help="DedupListener(log=DIR): options, figures.")
    ] = None,
    query: Annotated[
        str | None, typer.Option(metavar="ID", help="ID or name that the query should have.")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Spark setting of the next start.")
    ] = None,
    properties: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="All of them, as spark-defaults.conf; the rest is default."
        ),
    ] = None,
    source_option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Option of the source: maxOffsetsPerTrigger=..."),
    ] = None,
    kafka_retention: Annotated[
        str | None, typer.Option(metavar="DURATION", help="retention.ms: '7 days', or forever.")
    ] = None,
    horizon: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Horizon of the next start.")
    ] = None,
    late: Annotated[
        str | None, typer.Option(metavar="emit|drop", help="late= of the next start.")
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="List every rule that cannot be judged by what was given."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout.")
    ] = False,
) -> None:
    """Say which settings break the guarantee or cost speed, and what to change.

    Starts no Spark and changes nothing. Exit code 4: something breaks the guarantee.
    """
    from dedup.cli.check import work as job

    def work() -> tuple[int, dict[str, Any]]:
        given = job.Given(
            log=log,
            query=query,
            catalog=catalog,
            conf=conf or (),
            properties=properties,
            source_options=source_option or (),
            kafka_retention=kafka_retention,
            horizon=horizon,
            late=late,
        )
        code, body, findings = job.check(checkpoint, given)
        if not as_json:
            _print(body, findings, fold=not every)
        return code, body

    finish(work, as_json=as_json)


def _print(body: dict[str, Any], findings: Sequence[Finding], *, fold: bool) -> None:
    from dedup.cli.findings_screen import WIDTH, findings_lines, summary_line

    console = Console()
    name = f" ({body['name']})" if body["name"] else ""
    since = (
        "not started yet" if body["batch_id"] is None else f"as of micro-batch {body['batch_id']}"
    )
    width = min(WIDTH, console.width) if console.is_terminal else WIDTH
    for line in (
        f"query {body['query_id']}{name}, {since}",
        *findings_lines(findings, width, fold=fold),
        summary_line(findings),
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
