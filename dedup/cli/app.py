"""The commands and their flags; what they do is in the modules beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dedup.cli.catalog.command import catalog_app
from dedup.cli.check.command import check
from dedup.cli.ending import finish
from dedup.cli.failures import FAILED, INTERRUPTED, OK
from dedup.cli.help_screen import App
from dedup.cli.progress import reporter
from dedup.cli.run.command import run
from dedup.cli.stop import stop_on_signals
from dedup.cli.tune.command import tune

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
app.command()(run)

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
    from dedup.cli.catalog import work as catalog
    from dedup.cli.explain.work import exit_code, sentences
    from dedup.cli.explain.work import explain as explain_id

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
            help="DedupListener(log=DIR), the OUTPUT of `dedup run`, or where "
            "DedupListener(prometheus_port=...) serves.",
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
    from dedup.cli.watch import work as watch_query

    def work() -> tuple[int, dict[str, Any]]:
        look = watch_query.looker(where, query)
        if once or as_json:
            return watch_query.once(look, as_json=as_json)
        with stop_on_signals(tidy=True) as stop:
            watch_query.follow(look, stop, every_s=every, where=where)
        return OK, {}

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
    from dedup.cli.demo import work as job

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
    from dedup.cli.remedies import work as page

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
