"""The flags of `dedup catalog` and its tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dedup.cli.catalog.screen import (
    adoption_lines,
    inspection_lines,
    vacuum_lines,
    verification_lines,
)
from dedup.cli.ending import finish, while_read
from dedup.cli.failures import DAMAGE, NOT_FOUND, OK
from dedup.cli.help_screen import App

if TYPE_CHECKING:
    from dedup.spark.driver.state_reader import Snapshot

catalog_app = App(help="Look into a catalog, verify it, clean it up, go on after a loss.")

_ROOT = Annotated[str, typer.Argument(metavar="ROOT", help="Path or URI of the catalog.")]
_CHECKPOINT = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="Checkpoint of the query: only it tells live segments from others."
    ),
]
_QUERY = Annotated[str | None, typer.Option(metavar="ID", help="Only this query.")]
_JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


@catalog_app.command()
def inspect(
    root: _ROOT,
    checkpoint: _CHECKPOINT = None,
    query: _QUERY = None,
    list_segments: Annotated[bool, typer.Option("--segments", help="List every segment.")] = False,
    as_json: _JSON = False,
) -> None:
    """Say what a catalog holds."""
    from dedup.cli.catalog import work as catalog

    def work() -> tuple[int, dict[str, Any]]:
        place = catalog.open_root(root)
        body = catalog.inspect(place, _known(place, checkpoint), query)
        if not as_json:
            _say(inspection_lines(body, list_segments=list_segments))
        return OK, body

    finish(work, as_json=as_json)


@catalog_app.command()
def verify(
    root: _ROOT,
    checkpoint: _CHECKPOINT = None,
    query: _QUERY = None,
    as_json: _JSON = False,
) -> None:
    """Read every file of the catalog; exit with 3 if one is damaged or missing."""
    from dedup.cli.catalog import work as catalog

    def work() -> tuple[int, dict[str, Any]]:
        place = catalog.open_root(root)
        known = _known(place, checkpoint)
        others = catalog.verify_others(place, known, query)
        checked = catalog.verify(place, known, query)
        bad = [(s, r) for s, r in checked if not r.ok]
        # A loss that was accepted is no news.
        open_damage = [s for s, _ in bad if not s.loss_accepted]
        body = {
            "root": place.url(),
            "status": "damaged" if open_damage or others else "ok",
            "segments": len(checked),
            "ids": sum(r.count for _, r in checked),
            "damaged": [s.to_json() | {"problems": list(r.problems)} for s, r in bad],
            "damaged_objects": [asdict(problem) for problem in others],
        }
        if not as_json:
            _say(verification_lines(body))
        return (DAMAGE if open_damage or others else OK), body

    finish(work, as_json=as_json)


@catalog_app.command()
def accept_loss(
    root: _ROOT,
    segment: Annotated[
        str, typer.Option(metavar="NAME", help="Segment, as the query's error names it.")
    ],
    query: _QUERY = None,
    shard: Annotated[int | None, typer.Option(metavar="N", help="Only this shard.")] = None,
    as_json: _JSON = False,
) -> None:
    """Accept the loss of one damaged segment: its IDs may then be emitted once more.

    The query takes note at its next start; a segment that is whole stays in use.
    """
    from dedup.cli.catalog import work as catalog

    def work() -> tuple[int, dict[str, Any]]:
        place = catalog.open_root(root)
        body = catalog.accept_loss(place, segment, query_id=query, shard=shard)
        if not as_json:
            bucket = f"{body['start']} to {body['end']}" if body["start"] else "bucket unknown"
            _say(
                [
                    f"Accepted: segment {segment} of shard {body['shard']} ({bucket}) may be lost.",
                    "Start the query again.",
                ]
            )
        return OK, body

    finish(work, as_json=as_json)


@catalog_app.command()
def vacuum(
    root: _ROOT,
    checkpoint: Annotated[
        str,
        typer.Option(metavar="DIR", help="Checkpoint of the query: what it names stays."),
    ],
    older_than: Annotated[
        str,
        typer.Option(metavar="TIME", help="Younger files may belong to a micro-batch under way."),
    ] = "24 hours",
    sole: Annotated[
        bool,
        typer.Option(
            "--sole", help="No other checkpoint of this query is in use: its other runs are over."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be deleted.")
    ] = False,
    as_json: _JSON = False,
) -> None:
    """Delete what no manifest names: orphans and half-written files. Foreign files stay."""
    from dedup.cli.catalog import upkeep as catalog_upkeep

    def work() -> tuple[int, dict[str, Any]]:
        body = catalog_upkeep.vacuum(
            root, checkpoint, older_than=older_than, sole=sole, dry_run=dry_run
        )
        if not as_json:
            _say(vacuum_lines(body))
        return OK, body

    finish(work, as_json=as_json)


@catalog_app.command()
def adopt(
    root: _ROOT,
    checkpoint: Annotated[
        str, typer.Option(metavar="DIR", help="Where the new checkpoint is to be.")
    ],
    query: _QUERY = None,
    sole: Annotated[
        bool,
        typer.Option("--sole", help="The sink holds all that is told of, though history branched."),
    ] = False,
    as_json: _JSON = False,
) -> None:
    """Make a new checkpoint that goes on with a catalog whose own is lost.

    Start the query with it. IDs that only the lost checkpoint held, the newest ones, may be emitted
    once more. The lost checkpoint must never run again. Exit code 5: the catalog held no ID, so
    that none was saved.
    """
    from dedup.cli.catalog import upkeep as catalog_upkeep

    def work() -> tuple[int, dict[str, Any]]:
        body = catalog_upkeep.adopt(root, checkpoint, query, sole=sole)
        if not as_json:
            _say(adoption_lines(body))
        return (OK if body["ids"] else NOT_FOUND), body

    finish(work, as_json=as_json)


def _known(place: Any, checkpoint: str | None) -> Snapshot | None:
    from dedup.cli.catalog import work as catalog

    return None if checkpoint is None else catalog.snapshot(place, checkpoint)


def _say(lines: Iterable[str]) -> None:
    with while_read():
        for line in lines:
            print(line)
