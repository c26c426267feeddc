"""The `dedup` command with all its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

from dedup.cli import flags
from dedup.cli.commands import App
from dedup.cli.failures import EXIT_CODES
from dedup.cli.run.options import RunFlags

app = App(
    name="dedup",
    help="Let each record ID pass once per horizon: Spark Structured Streaming on this machine.",
    pretty_exceptions_enable=False,
    epilog=f"Exit codes: {', '.join(f'{code} {words}' for code, words in EXIT_CODES.items())}.",
)
app.add(
    RunFlags,
    flags.DemoFlags,
    flags.WatchFlags,
    flags.CheckFlags,
    flags.DoctorFlags,
    flags.ExplainFlags,
    flags.TuneFlags,
    flags.PrepareFlags,
    flags.RemediesFlags,
)
_catalog = App(help="Inspect a catalog, verify it, clean it up, or continue after a loss.")
_catalog.add(
    flags.InspectFlags,
    flags.VerifyFlags,
    flags.AcceptLossFlags,
    flags.VacuumFlags,
    flags.AdoptFlags,
    flags.RescaleFlags,
    flags.RebuildFlags,
)
_sink = App(help="Inspect what a sink has published.")
_sink.add(flags.InspectSinkFlags)
app.add_typer(_catalog, name="catalog")
app.add_typer(_sink, name="sink")


#: `main` handles this option before typer loads, so that it works even if an extra is missing.
_Version = Annotated[bool, typer.Option("--version", help="Print versions and kernel path.")]


@app.callback()
def _main(version: _Version = False) -> None:
    pass
