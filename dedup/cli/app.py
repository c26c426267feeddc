"""The `dedup` command, put together of those in the folders beside this module."""

from __future__ import annotations

from typing import Annotated

import typer

from dedup.cli.catalog.command import catalog_app
from dedup.cli.check.command import check
from dedup.cli.demo.command import demo
from dedup.cli.explain.command import explain
from dedup.cli.failures import OK
from dedup.cli.help_screen import App
from dedup.cli.prepare.command import prepare
from dedup.cli.printing import say, while_read
from dedup.cli.remedies.command import remedies
from dedup.cli.run.command import run
from dedup.cli.sink.command import sink_app
from dedup.cli.tune.command import tune
from dedup.cli.version import version_lines
from dedup.cli.watch.command import watch

app = App(
    name="dedup",
    help="Let each record ID pass once per horizon: Spark Structured Streaming on this machine.",
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 damage, 4 unsafe settings, 5 not found, "
    "6 cannot tell, 10-15 verdicts of watch, 130 interrupted.",
)
for command in (run, demo, watch, check, explain, tune, prepare, remedies):
    app.command()(command)
app.add_typer(catalog_app, name="catalog")
app.add_typer(sink_app, name="sink")


def _version(wanted: bool) -> None:
    if wanted:
        with while_read():
            say("\n".join(version_lines()))
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
