"""What the `dedup catalog` commands print: lines of 80 columns, the same on a terminal and a pipe.

Names of files and segments are never broken, so that they can be copied.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from dedup.core.duration import size

WIDTH = 80
_LABEL = 20
#: So many take half of the default `state_budget_bytes`, 29 bytes each, before they are sealed.
_NEWEST_IDS = 18_000


def inspection_lines(body: dict[str, Any], *, list_segments: bool) -> Iterator[str]:
    """Put what `inspect` returns into lines."""
    from dedup.tools.repair.contents import LOSS_ACCEPTED  # `dedup --help` needs no RocksDB

    for number, query in enumerate(body["queries"]):
        if number:
            yield ""
        yield from _query(query)
    if body["foreign_files"]:
        yield ""
        yield f"{body['foreign_files']:,} foreign files, left alone"
    if list_segments:
        yield ""
        # Tabs, not columns: names are long, and other tools cut and sort this.
        for line in body["segments"]:
            size_bytes = (line["sst_bytes"] or 0) + (line["filter_bytes"] or 0)
            note = " missing" if line["missing"] else ""
            if line["loss_accepted"] and not note and line["standing"] != LOSS_ACCEPTED:
                note = f" {LOSS_ACCEPTED}"
            values = (line["shard"], line["segment"], line["standing"] + note, line["ids"])
            yield "\t".join(map(_text, (*values, line["start"], line["end"], size_bytes)))


def verification_lines(body: dict[str, Any]) -> Iterator[str]:
    """Put what `verify` returns into lines."""
    from dedup.tools.repair.contents import LOSS_ACCEPTED

    for bad in body["damaged"]:
        note = f" ({LOSS_ACCEPTED})" if bad["loss_accepted"] else ""
        for problem in bad["problems"]:
            yield f"shard {bad['shard']} segment {bad['segment']}{note}: {problem}"
    for other in body["damaged_objects"]:
        yield f"{other['name']}: {other['problem']}"
    yield f"{body['segments']:,} segments, {body['ids']:,} IDs: {body['status']}"


def acceptance_lines(body: dict[str, Any]) -> Iterator[str]:
    """Put what `accept_loss` returns into lines."""
    bucket = f"{body['start']} to {body['end']}" if body["start"] else "bucket unknown"
    place = f"segment {body['segment']} of shard {body['shard']}"
    yield f"Accepted: {place} ({bucket}) may be lost."
    yield "Start the query again."


def vacuum_lines(body: dict[str, Any]) -> Iterator[str]:
    """Put what `vacuum` returns into lines."""
    yield from body["files"]
    for name in body["foreign"]:
        yield f"{name}\tforeign, left alone"
    verb = "would be deleted" if body["dry_run"] else "deleted"
    rest = f", {body['young']} too young" if body["young"] else ""
    dropped = f"; {len(body['runs'])} other runs dropped" if body["runs"] else ""
    yield f"{len(body['files']):,} files, {size(body['bytes'])} {verb}{rest}{dropped}"


def adoption_lines(body: dict[str, Any]) -> Iterator[str]:
    """Put what `adopt` returns into lines."""
    as_of = "adopted before" if body["epoch"] < 0 else f"of micro-batch {body['epoch']}"
    if body["ids"]:
        yield f"Saved: {body['ids']:,} IDs in {body['segments']:,} segments, as {as_of}."
    else:
        yield f"Nothing was saved: the catalog, as {as_of}, holds no ID."
    steps = (
        "1. Let the source begin where the old query stopped, or earlier. Of files, move those "
        "away that are older than the horizon.",
        "2. Give the sink a new name (option `name`; dedup_files also a new path): micro-batches "
        "are numbered from 0 again, and under the old name the sink holds these numbers.",
        f"3. Start the query with checkpoint {body['checkpoint']}",
        "Rows may repeat whose IDs the lost checkpoint alone held: all that the source gives again "
        "of later micro-batches, and each shard's newest IDs, by default up to about "
        f"{_NEWEST_IDS:,} UUIDs ({_NEWEST_IDS * body['shards']:,} in all). More: dedup remedies "
        "lost-checkpoint",
    )
    for step in steps:
        indent = "   " if step[0].isdigit() else ""
        yield from textwrap.wrap(
            step, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )


def _query(query: dict[str, Any]) -> Iterator[str]:
    yield f"query {query['query_id']}"
    yield from _line("as of", query["as_of"])
    yield from _line("record ID", ", ".join(query["id"]) or "-")
    yield from _line("timestamp", query["timestamp"] or "-")
    yield from _line("shards", _text(query["shards"]))
    for kind, found in sorted(query["files"].items()):
        yield from _line(f"{kind} files", f"{found['files']:,}, {size(found['bytes'])}")
    for standing, count in sorted(query["segments"].items()):
        yield from _line(f"segments {standing}", _text(count))
    if query["missing"]:
        yield from _line("segments MISSING", _text(query["missing"]))
    if query["accepted_losses"]:
        yield from _line("losses accepted", _text(query["accepted_losses"]))
    shards = query["state"]
    if not shards:
        return
    in_segments = sum(shard["segment_ids"] for shard in shards)
    in_state = [shard["tail_ids"] for shard in shards if shard["tail_ids"] is not None]
    state = f", {sum(in_state):,} in Spark state" if in_state else ", those in Spark state unknown"
    yield from _line("IDs", f"{in_segments:,} in segments{state}")
    yield ""
    yield from _shards(shards)


def _shards(shards: Sequence[dict[str, Any]]) -> Iterator[str]:
    columns = {
        "shard": "shard",
        "batch": "epoch",
        "buckets": "buckets",
        "segments": "segments",
        "expired": "expired",
        "in segments": "segment_ids",
        "in state": "tail_ids",
        "GC watermark": "gc_watermark",
    }
    # "as of" has told it.
    if len({shard["epoch"] for shard in shards}) == 1:
        del columns["batch"]
    if all(shard["tail_ids"] is None for shard in shards):
        del columns["in state"]
    rows = [list(columns), *([_text(s[field]) for field in columns.values()] for s in shards)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap = "  " if sum(widths) + 2 * len(widths) - 2 <= WIDTH else " "
    for row in rows:
        yield gap.join(f"{cell:>{wide}}" for cell, wide in zip(row, widths, strict=True))


def _line(label: str, value: str) -> Iterator[str]:
    parts = textwrap.wrap(
        value, WIDTH - _LABEL, break_long_words=False, break_on_hyphens=False
    ) or [""]  # fmt: skip
    yield f"{label:<{_LABEL}}{parts[0]}"
    yield from (" " * _LABEL + part for part in parts[1:])


def _text(value: object) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
