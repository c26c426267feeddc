"""The flags of `dedup catalog`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dedup.cli import flags as shared
from dedup.cli.catalog.screen import (
    acceptance_lines,
    adoption_lines,
    inspection_lines,
    vacuum_lines,
    verification_lines,
)
from dedup.cli.ending import Done
from dedup.cli.failures import DAMAGE, NOT_FOUND, OK
from dedup.cli.flags import Flags, command, option, switch
from dedup.cli.help_screen import App
from dedup.core.duration import duration_ms

catalog_app = App(help="Look into a catalog, verify it, clean it up, go on after a loss.")


@dataclass(frozen=True, kw_only=True)
class CatalogFlags(Flags):
    """Which catalog, and how it is looked at."""

    root: shared.Root
    checkpoint: Annotated[
        str | None,
        option("DIR", "Checkpoint of the query: only it tells live segments from others."),
    ] = None
    query: shared.OnlyQuery = None


@dataclass(frozen=True, kw_only=True)
class InspectFlags(CatalogFlags):
    """What can be given to `dedup catalog inspect`."""

    list_segments: Annotated[bool, switch("List every segment.", "--segments")] = False


@dataclass(frozen=True, kw_only=True)
class AcceptLossFlags(Flags):
    """What can be given to `dedup catalog accept-loss`."""

    root: shared.Root
    segment: Annotated[str, option("NAME", "Segment, as the query's error names it.")]
    query: shared.OnlyQuery = None
    shard: Annotated[int | None, option("N", "Only this shard.")] = None


@dataclass(frozen=True, kw_only=True)
class VacuumFlags(Flags):
    """What can be given to `dedup catalog vacuum`."""

    root: shared.Root
    checkpoint: Annotated[str, option("DIR", "Checkpoint of the query: what it names stays.")]
    older_than: Annotated[
        str, option("TIME", "Younger files may belong to a micro-batch under way.")
    ] = "24 hours"
    sole: Annotated[
        bool, switch("You promise that no other checkpoint of this query will run again.", "--sole")
    ] = False
    dry_run: Annotated[bool, switch("Only say what would be deleted.", "--dry-run")] = False


@dataclass(frozen=True, kw_only=True)
class AdoptFlags(Flags):
    """What can be given to `dedup catalog adopt`."""

    root: shared.Root
    checkpoint: Annotated[str, option("DIR", "Where the new checkpoint is to be.")]
    query: shared.OnlyQuery = None
    sole: Annotated[
        bool,
        switch(
            "Several checkpoints used it; you promise that the sink has all that they wrote.",
            "--sole",
        ),
    ] = False


@command(InspectFlags, "dedup catalog inspect catalog")
def inspect(flags: InspectFlags) -> Done:
    """Say what a catalog holds."""
    from dedup import tools
    from dedup.cli.catalog.work import opened

    root, snapshot = opened(flags.root, flags.checkpoint)
    body = tools.inspect(root, snapshot, flags.query).to_json()
    return Done(OK, body, inspection_lines(body, list_segments=flags.list_segments))


@command(CatalogFlags, "dedup catalog verify catalog --checkpoint checkpoint")
def verify(flags: CatalogFlags) -> Done:
    """Read every file of the catalog; exit with 3 if one is damaged or missing."""
    from dedup import tools
    from dedup.cli.catalog.work import opened

    root, snapshot = opened(flags.root, flags.checkpoint)
    found = tools.verify(root, snapshot, flags.query)
    body = found.to_json()
    return Done(OK if found.ok else DAMAGE, body, verification_lines(body))


@command(AcceptLossFlags, "dedup catalog accept-loss catalog --segment NAME")
def accept_loss(flags: AcceptLossFlags) -> Done:
    """Accept the loss of one damaged segment: its IDs may then be emitted once more.

    The query takes note at its next start; a segment that is whole stays in use.
    """
    from dedup import tools
    from dedup.cli.run.output_folder import catalog_of

    root, _ = catalog_of(flags.root)
    body = tools.accept_loss(root, flags.segment, flags.query, flags.shard).to_json()
    return Done(OK, body, acceptance_lines(body))


@command(VacuumFlags, "dedup catalog vacuum catalog --checkpoint checkpoint --dry-run")
def vacuum(flags: VacuumFlags) -> Done:
    """Delete what no manifest names: orphans and half-written files. Foreign files stay."""
    from dedup import tools
    from dedup.cli.catalog.work import snapshot
    from dedup.cli.run.output_folder import catalog_of
    from dedup.tools.repair.opening import open_root

    # A slip of the pen is told before Spark starts.
    duration_ms(flags.older_than, option="--older-than")
    root = open_root(catalog_of(flags.root)[0])
    body = tools.vacuum(
        root,
        snapshot(root, flags.checkpoint),
        older_than=flags.older_than,
        sole=flags.sole,
        dry_run=flags.dry_run,
    ).to_json()
    return Done(OK, body, vacuum_lines(body))


@command(AdoptFlags, "dedup catalog adopt catalog --checkpoint new-checkpoint")
def adopt(flags: AdoptFlags) -> Done:
    """Make a new checkpoint that goes on with a catalog whose own is lost.

    Start the query with it. IDs that only the lost checkpoint held, the newest ones, may be emitted
    once more. The lost checkpoint must never run again. Exit code 5: the catalog held no ID, so
    that none was saved.
    """
    from dedup import tools
    from dedup.cli.run.output_folder import catalog_of

    root, _ = catalog_of(flags.root)
    found = tools.adopt(root, flags.checkpoint, flags.query, sole=flags.sole)
    body = found.to_json()
    return Done(OK if found.ids else NOT_FOUND, body, adoption_lines(body))


for _command in (inspect, verify, accept_loss, vacuum, adopt):
    catalog_app.command()(_command)
