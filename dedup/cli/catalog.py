"""`dedup catalog` and `dedup explain`: inspect, verify, clean up and repair a catalog.

Reports have lines of 80 columns, on a terminal and in a pipe alike. Names of files and segments are
never broken, so that users can copy them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dedup import tools
from dedup.cli.commands import Done
from dedup.cli.failures import CANNOT_TELL, DAMAGE, NOT_FOUND, OK
from dedup.cli.flags import (
    AcceptLossFlags,
    AdoptFlags,
    ExplainFlags,
    InspectFlags,
    RebuildFlags,
    RescaleFlags,
    VacuumFlags,
    VerifyFlags,
)
from dedup.cli.run.record import catalog_of, record_of
from dedup.cli.session import reading_session
from dedup.cli.terminal import wrapped
from dedup.errors import ConfigError
from dedup.storage.root import Root
from dedup.tools.repair.contents import LOSS_ACCEPTED
from dedup.tools.repair.opening import Snapshot, checkpoint_place, open_root
from dedup.values.duration import cell, duration_ms, size

_WIDTH = 80
_LABEL = 20
#: Number of newest IDs that a shard keeps in state before it writes a segment, with IDs of 29 bytes
#: and the default `state_budget_bytes`.
_NEWEST_IDS = 18_000
_NEW_NAME = (
    "Give the sink a new name (option `name`; dedup_files also a new path; stable and "
    "once_per_batch a new `at`; dedup_folder a new output): micro-batches are numbered from 0 "
    "again, and the sink holds these numbers under the old name."
)
#: Exit code and words for each answer of `explain`.
_ANSWERS = {
    "remembered": (OK, "remembered"),
    "not remembered": (NOT_FOUND, "not remembered: it was never emitted, or it is forgotten"),
    "cannot tell": (CANNOT_TELL, "cannot tell"),
}
#: Columns of the table of shards, and the fields that they show.
_SHARD_COLUMNS = {
    "shard": "shard",
    "batch": "epoch",
    "buckets": "buckets",
    "segments": "segments",
    "expired": "expired",
    "in segments": "segment_ids",
    "in state": "tail_ids",
    "GC watermark": "gc_watermark",
}


def open_catalog(where: str, checkpoint: str | None) -> tuple[Root, Snapshot | None]:
    """Open a catalog, given its root or the OUTPUT of `dedup run`.

    Also read the query's state if `checkpoint` is given or OUTPUT holds a checkpoint.
    """
    where, checkpoint = catalog_of(where, checkpoint)
    root = open_root(where)
    return root, None if checkpoint is None else snapshot(root, checkpoint)


def snapshot(root: Root, checkpoint: str) -> Snapshot:
    """Read the state in a checkpoint in a new session. Raises the errors of `read_checkpoint`."""
    place = checkpoint_place(checkpoint)
    with reading_session() as session:
        return tools.read_checkpoint(root, place, session)


def inspect(flags: InspectFlags) -> Done:
    root, state = open_catalog(flags.root, flags.checkpoint)
    body = tools.inspect(root, state, flags.query).to_json()
    return Done(OK, body, inspection_lines(body, list_segments=flags.list_segments))


def verify(flags: VerifyFlags) -> Done:
    root, state = open_catalog(flags.root, flags.checkpoint)
    report = tools.verify(root, state, flags.query)
    body = report.to_json()
    return Done(OK if report.ok else DAMAGE, body, _verification_lines(body))


def accept_loss(flags: AcceptLossFlags) -> Done:
    root, _ = catalog_of(flags.root)
    body = tools.accept_loss(root, flags.segment, flags.query, flags.shard).to_json()
    bucket = f"{body['start']} to {body['end']}" if body["start"] else "bucket unknown"
    accepted = f"segment {body['segment']} of shard {body['shard']} ({bucket}) may be lost."
    return Done(OK, body, [f"Accepted: {accepted}", "Start the query again."])


def vacuum(flags: VacuumFlags) -> Done:
    duration_ms(flags.older_than, option="--older-than")  # reject a typo before Spark starts
    root = open_root(catalog_of(flags.root)[0])
    body = tools.vacuum(
        root,
        snapshot(root, flags.checkpoint),
        older_than=flags.older_than,
        sole=flags.sole,
        dry_run=flags.dry_run,
    ).to_json()
    return Done(OK, body, _vacuum_lines(body))


def adopt(flags: AdoptFlags) -> Done:
    root, _ = catalog_of(flags.root)
    adopted = tools.adopt(root, flags.checkpoint, flags.query, sole=flags.sole)
    body = adopted.to_json()
    return Done(OK if adopted.ids else NOT_FOUND, body, _adoption_lines(body))


def rescale(flags: RescaleFlags) -> Done:
    with reading_session() as session:
        body = tools.rescale(flags.checkpoint, flags.partitions, session).to_json()
    return Done(OK, body, _rescaling_lines(body))


def rebuild(flags: RebuildFlags) -> Done:
    if flags.reopen:
        given_up = asdict(tools.reopen(flags.root, flags.query, flags.to))
        folder = f"{given_up['root']}/{given_up['query_id']}"
        line = f"Open again. Delete {given_up['checkpoint']} and {folder}."
        return Done(OK, given_up, [line])
    if not (flags.checkpoint and flags.to and flags.new_checkpoint):
        raise ConfigError("Give --checkpoint, --to and --new-checkpoint, or --reopen.")
    parents = (Path(place).parent for place in (flags.root, flags.checkpoint))
    if any(record_of(str(place)) for place in (flags.root, *parents)):
        raise ConfigError(
            "The output of `dedup run` cannot be rebuilt, only the query of a program."
        )
    with reading_session() as session:
        body = tools.rebuild(
            flags.root,
            flags.checkpoint,
            flags.to,
            flags.new_checkpoint,
            shards=flags.shards,
            without=flags.without,
            spark=session,
        ).to_json()
    return Done(OK, body, _rebuilding_lines(body, without=flags.without))


def explain(flags: ExplainFlags) -> Done:
    root, snapshot = open_catalog(flags.root, flags.checkpoint)
    body = tools.explain(root, flags.id, snapshot, flags.query).to_json()
    code, _ = _ANSWERS[body["status"]]
    return Done(code, body, sentences(body))


def sentences(body: dict[str, Any]) -> Iterator[str]:
    """Describe the result of `dedup.tools.explain` in sentences. The first is the answer."""
    name = ", ".join(f"{column}={text}" for column, text in body["id"].items())
    _, answer = _ANSWERS[body["status"]]
    yield f"{name}: {answer}"
    if not body["certain"] and body["seen"]:
        yield "  only the catalog was searched; --checkpoint DIR adds the newest micro-batches"
    elif not body["certain"]:
        yield "  the newest IDs are in Spark state alone, which --checkpoint DIR reads"
    for entry in body["seen"]:
        yield f"  emitted at {entry['at']}, kept in {entry['where']}"
        late = " (with late='drop': the late watermark)" if body["stable_timestamps"] else ""
        yield f"  forgotten when the GC watermark reaches {entry['bucket_end']}{late}"
    yield f"  shard {body['shard']} of query {body['query_id']}"
    if body["as_of"] is None:
        yield "  nothing is known of this shard"
    else:
        as_of = "as adopted" if body["as_of"] < 0 else f"as of micro-batch {body['as_of']}"
        yield f"  GC watermark {body['gc_watermark'] or 'not set yet'}, {as_of}"
    if before := body["forgotten_before"]:
        yield f"  times before {before} were forgotten early, because of max_live_ids"


def inspection_lines(body: dict[str, Any], *, list_segments: bool) -> Iterator[str]:
    for number, query in enumerate(body["queries"]):
        if number:
            yield ""
        yield from _query(query)
    if body["foreign_files"]:
        yield ""
        yield f"{body['foreign_files']:,} foreign files, left alone"
    if list_segments:
        yield ""
        # Separate columns by tabs, so that other programs can cut and sort this list.
        for line in body["segments"]:
            size_bytes = (line["sst_bytes"] or 0) + (line["filter_bytes"] or 0)
            note = " missing" if line["missing"] else ""
            if line["loss_accepted"] and not note and line["standing"] != LOSS_ACCEPTED:
                note = f" {LOSS_ACCEPTED}"
            values = (line["shard"], line["segment"], line["standing"] + note, line["ids"])
            yield "\t".join(map(cell, (*values, line["start"], line["end"], size_bytes)))


def _verification_lines(body: dict[str, Any]) -> Iterator[str]:
    for bad in body["damaged"]:
        note = f" ({LOSS_ACCEPTED})" if bad["loss_accepted"] else ""
        for problem in bad["problems"]:
            yield f"shard {bad['shard']} segment {bad['segment']}{note}: {problem}"
    for other in body["damaged_objects"]:
        yield f"{other['name']}: {other['problem']}"
    yield f"{body['segments']:,} segments, {body['ids']:,} IDs: {body['status']}"


def _vacuum_lines(body: dict[str, Any]) -> Iterator[str]:
    yield from body["files"]
    for name in body["foreign"]:
        yield f"{name}\tforeign, left alone"
    verb = "would be deleted" if body["dry_run"] else "deleted"
    rest = f", {body['young']} too young" if body["young"] else ""
    dropped = f"; {len(body['runs'])} other runs dropped" if body["runs"] else ""
    yield f"{len(body['files']):,} files, {size(body['bytes'])} {verb}{rest}{dropped}"


def _adoption_lines(body: dict[str, Any]) -> Iterator[str]:
    as_of = "adopted before" if body["epoch"] < 0 else f"of micro-batch {body['epoch']}"
    if body["ids"]:
        yield f"Saved: {body['ids']:,} IDs in {body['segments']:,} segments, as {as_of}."
    else:
        yield f"Nothing was saved: the catalog, as {as_of}, holds no ID."
    steps = (
        "1. Let the source begin where the old query stopped, or earlier. If it reads files, move "
        "away the files that are older than the horizon.",
        f"2. {_NEW_NAME}",
        f"3. Start the query with checkpoint {body['checkpoint']}",
        "Rows may repeat whose IDs only the lost checkpoint held: the records of later "
        "micro-batches that the source delivers again, and each shard's newest IDs, by default up "
        f"to about {_NEWEST_IDS:,} UUIDs ({_NEWEST_IDS * body['shards']:,} in all). More: dedup "
        "remedies lost-checkpoint",
    )
    yield from _steps(steps)


def _rebuilding_lines(body: dict[str, Any], *, without: str | None) -> Iterator[str]:
    yield (
        f"Rebuilt: {body['ids']:,} IDs in {body['segments']:,} segments of {body['shards']} "
        f"shards, as of micro-batch {body['epoch']}."
    )
    if without is not None:
        yield f"Left out: {body['left_out']:,} IDs. Not remembered anyway: {body['unknown']:,}."
    offsets = " ".join(body["offsets"])
    steps = (
        "1. Let the source begin exactly where the old query stopped: for Kafka "
        f"start=FromCheckpoint({body['obsolete'][1]!r}) of kafka_records. Spark's last offset: "
        f"{offsets}",
        f"2. {_NEW_NAME}",
        f"3. Start the query with checkpoint {body['checkpoint']} and catalog {body['root']}",
        "4. Once it has committed micro-batches, remove start= and delete the folders of the old "
        f"query: {', '.join(body['obsolete'])}",
    )
    yield from _steps(steps)


def _steps(steps: Sequence[str]) -> Iterator[str]:
    for step in steps:
        indent = "   " if step[0].isdigit() else ""
        yield from wrapped(step, _WIDTH, indent=indent)


def _rescaling_lines(body: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{body['partitions_before']} -> {body['partitions']} state partitions, as micro-batch "
        f"{body['batch_id']}."
    )
    given = f", with shards={body['shards']}" if body["operator"] == "dedup_by_sequence" else ""
    yield f"Start the query as before{given}."
    if body["partitions"] > body["shards"]:
        yield from wrapped(
            f"The operator has {body['shards']} shards: more partitions than shards give it no "
            "more parallelism.",
            _WIDTH,
        )


def _query(query: dict[str, Any]) -> Iterator[str]:
    yield f"query {query['query_id']}"
    shards = query["state"]
    lines = {
        "as of": query["as_of"],
        "record ID": ", ".join(query["id"]) or "-",
        "timestamp": query["timestamp"] or "-",
        "shards": cell(query["shards"]),
    }
    for kind, files in sorted(query["files"].items()):
        lines[f"{kind} files"] = f"{files['files']:,}, {size(files['bytes'])}"
    for standing, count in sorted(query["segments"].items()):
        lines[f"segments {standing}"] = cell(count)
    if query["missing"]:
        lines["segments MISSING"] = cell(query["missing"])
    if query["accepted_losses"]:
        lines["losses accepted"] = cell(query["accepted_losses"])
    if shards:
        in_segments = sum(shard["segment_ids"] for shard in shards)
        in_state = [shard["tail_ids"] for shard in shards if shard["tail_ids"] is not None]
        state = f"{sum(in_state):,} in Spark state" if in_state else "those in Spark state unknown"
        lines["IDs"] = f"{in_segments:,} in segments, {state}"
    for label, value in lines.items():
        for number, part in enumerate(wrapped(value, _WIDTH - _LABEL) or [""]):
            yield f"{'' if number else label:<{_LABEL}}{part}"
    if shards:
        yield ""
        yield from _shards(shards)


def _shards(shards: Sequence[dict[str, Any]]) -> Iterator[str]:
    columns = dict(_SHARD_COLUMNS)
    if len({shard["epoch"] for shard in shards}) == 1:
        del columns["batch"]  # the line "as of" shows it
    if all(shard["tail_ids"] is None for shard in shards):
        del columns["in state"]
    rows = [list(columns), *([cell(s[field]) for field in columns.values()] for s in shards)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap = "  " if sum(widths) + 2 * len(widths) - 2 <= _WIDTH else " "
    for row in rows:
        yield gap.join(f"{text:>{wide}}" for text, wide in zip(row, widths, strict=True))
