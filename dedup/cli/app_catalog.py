"""The flags of `dedup catalog` and its tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from dedup.cli.ending import finish
from dedup.cli.failures import DAMAGE, OK

if TYPE_CHECKING:
    from dedup.spark.state_reader import Snapshot

catalog_app = typer.Typer(
    help="Look into a catalog, verify it, clean it up, go on after a loss.", no_args_is_help=True
)

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
    from dedup.cli import catalog

    def work() -> tuple[int, dict[str, Any]]:
        place = catalog.open_root(root)
        body = catalog.inspect(place, _known(place, checkpoint), query)
        if not as_json:
            _print_inspection(body, list_segments=list_segments)
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
    from dedup.cli import catalog

    def work() -> tuple[int, dict[str, Any]]:
        place = catalog.open_root(root)
        known = _known(place, checkpoint)
        others = catalog.verify_others(place, known, query)
        checked = catalog.verify(place, known, query)
        bad = [(s, r) for s, r in checked if not r.ok]
        # What was forgotten is known to be lost.
        open_damage = [s for s, _ in bad if not s.forgotten]
        body = {
            "root": place.url(),
            "status": "damaged" if open_damage or others else "ok",
            "segments": len(checked),
            "ids": sum(r.count for _, r in checked),
            "damaged": [s.to_json() | {"problems": list(r.problems)} for s, r in bad],
            "damaged_objects": [asdict(problem) for problem in others],
        }
        if not as_json:
            _print_verification(body)
        return (DAMAGE if open_damage or others else OK), body

    finish(work, as_json=as_json)


@catalog_app.command()
def forget(
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
    from dedup.cli import catalog

    def work() -> tuple[int, dict[str, Any]]:
        place = catalog.open_root(root)
        body = catalog.forget(place, segment, query_id=query, shard=shard)
        if not as_json:
            bucket = f"{body['start']} to {body['end']}" if body["start"] else "bucket unknown"
            Console().print(
                f"Accepted: segment {segment} of shard {body['shard']} ({bucket}) may be lost. "
                "Start the query again.",
                markup=False,
                highlight=False,
                soft_wrap=True,
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
    from dedup.cli import catalog_upkeep

    def work() -> tuple[int, dict[str, Any]]:
        body = catalog_upkeep.vacuum(
            root, checkpoint, older_than=older_than, sole=sole, dry_run=dry_run
        )
        if not as_json:
            _print_vacuum(body)
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
    once more. The lost checkpoint must never run again.
    """
    from dedup.cli import catalog_upkeep

    def work() -> tuple[int, dict[str, Any]]:
        body = catalog_upkeep.adopt(root, checkpoint, query, sole=sole)
        if not as_json:
            as_of = "adopted before" if body["epoch"] < 0 else f"of micro-batch {body['epoch']}"
            Console().print(
                f"{body['ids']:,} IDs in {body['segments']:,} segments as {as_of}. Start the query "
                f"with checkpoint {body['checkpoint']}; newer IDs are unknown and may be emitted "
                "once more.",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        return OK, body

    finish(work, as_json=as_json)


def _known(place: Any, checkpoint: str | None) -> Snapshot | None:
    from dedup.cli import catalog

    return None if checkpoint is None else catalog.snapshot(place, checkpoint)


def _print_inspection(body: dict[str, Any], *, list_segments: bool) -> None:
    console = Console()
    for query in body["queries"]:
        _print_query(console, query)
    if body["foreign_files"]:
        console.print(f"{body['foreign_files']} foreign files, left alone")
    if list_segments:
        # Lines, not a table: names are long, and other tools cut and sort this.
        for line in body["segments"]:
            size = (line["sst_bytes"] or 0) + (line["filter_bytes"] or 0)
            note = " missing" if line["missing"] else " forgotten" if line["forgotten"] else ""
            values = (line["shard"], line["segment"], line["standing"] + note, line["ids"])
            typer.echo("\t".join(_texts(*values, line["start"], line["end"], size)))


def _print_query(console: Console, query: dict[str, Any]) -> None:
    rows = Table(title=f"query {query['query_id']}", box=box.SIMPLE, title_justify="left")
    rows.show_header = False
    rows.add_row("as of", query["as_of"])
    rows.add_row("record ID", ", ".join(query["id"]))
    rows.add_row("timestamp", query["timestamp"] or "-")
    rows.add_row("shards", str(query["shards"] or "-"))
    for kind, sizes in sorted(query["files"].items()):
        rows.add_row(f"{kind} files", f"{sizes['files']:,}, {sizes['bytes']:,} bytes")
    for standing, count in sorted(query["segments"].items()):
        rows.add_row(f"segments {standing}", f"{count:,}")
    if query["missing"]:
        rows.add_row("segments MISSING", f"{query['missing']:,}")
    if query["forgotten"]:
        rows.add_row("segments forgotten", f"{query['forgotten']:,}")
    console.print(rows)
    if query["state"]:
        columns = ("shard", "batch", "buckets", "segments", "expired", "sealed", "tail")
        shards = Table(title="state", box=box.SIMPLE, title_justify="left")
        for name in (*columns, "GC watermark"):
            shards.add_column(name, justify="right", no_wrap=True)
        for state in query["state"]:
            shards.add_row(*_texts(*state.values()))
        console.print(shards)


def _print_verification(body: dict[str, Any]) -> None:
    console = Console()
    for bad in body["damaged"]:
        note = " (forgotten)" if bad["forgotten"] else ""
        for problem in bad["problems"]:
            text = f"shard {bad['shard']} segment {bad['segment']}{note}: {problem}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
    for other in body["damaged_objects"]:
        text = f"{other['name']}: {other['problem']}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    text = f"{body['segments']:,} segments, {body['ids']:,} IDs: {body['status']}"
    console.print(text, markup=False, highlight=False)


def _print_vacuum(body: dict[str, Any]) -> None:
    verb = "would be deleted" if body["dry_run"] else "deleted"
    for name in body["files"]:
        typer.echo(name)
    for name in body["foreign"]:
        typer.echo(f"{name}\tforeign, left alone")
    rest = f", {body['young']} too young" if body["young"] else ""
    forgotten = f"; {len(body['runs'])} other runs forgotten" if body["runs"] else ""
    text = f"{len(body['files']):,} files, {body['bytes']:,} bytes {verb}{rest}{forgotten}"
    Console().print(text, markup=False, highlight=False)


def _texts(*values: object) -> list[str]:
    return ["-" if v is None else f"{v:,}" if isinstance(v, int) else str(v) for v in values]
