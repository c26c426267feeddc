"""`dedup explain`: what a query remembers of one record ID."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dedup import tools
from dedup.cli.catalog import open_catalog
from dedup.cli.commands import Done
from dedup.cli.failures import CANNOT_TELL, NOT_FOUND, OK
from dedup.cli.flags import ExplainFlags

_CODES = {"remembered": OK, "not remembered": NOT_FOUND, "cannot tell": CANNOT_TELL}


def explain(flags: ExplainFlags) -> Done:
    """Look a record ID up; the exit code is the answer."""
    root, snapshot = open_catalog(flags.root, flags.checkpoint)
    body = tools.explain(root, flags.id, snapshot, flags.query).to_json()
    return Done(_CODES[body["status"]], body, sentences(body))


def sentences(body: dict[str, Any]) -> Iterator[str]:
    """Describe the result of `tools.explain`, the answer first."""
    name = ", ".join(f"{column}={text}" for column, text in body["id"].items())
    yield f"{name}: {_answer(body)}"
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


def _answer(body: dict[str, Any]) -> str:
    if body["status"] == "remembered":
        return "remembered"
    if body["status"] == "not remembered":
        return "not remembered: it was never emitted, or it is forgotten"
    if body["certain"]:
        return "unknown: the checkpoint holds no state of its shard"
    return "not known from the catalog alone"
