"""What `dedup explain` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def sentences(body: dict[str, Any]) -> Iterator[str]:
    """Put what `explain` returns into words, the answer first."""
    name = ", ".join(f"{column}={text}" for column, text in body["id"].items())
    yield f"{name}: {_answer(body)}"
    if not body["certain"] and body["seen"]:
        yield "  only the catalog was asked; --checkpoint DIR adds the newest micro-batches"
    elif not body["certain"]:
        yield "  the newest IDs are in Spark state alone, which --checkpoint DIR reads"
    for found in body["seen"]:
        yield f"  let through at {found['at']}, kept in {found['where']}"
        yield f"  forgotten when the GC watermark reaches {found['bucket_end']}" + (
            " (with late='drop': the late watermark)" if body["stable_timestamps"] else ""
        )
    yield f"  shard {body['shard']} of query {body['query_id']}"
    if body["as_of"] is None:
        yield "  nothing is known of this shard"
    else:
        gc = body["gc_watermark"] or "at no time yet"
        as_of = "as adopted" if body["as_of"] < 0 else f"as of micro-batch {body['as_of']}"
        yield f"  GC watermark {gc}, {as_of}"


def _answer(body: dict[str, Any]) -> str:
    if body["status"] == "remembered":
        return "remembered"
    if body["status"] == "not remembered":
        return "not remembered: it was never let through, or is forgotten"
    if body["certain"]:
        return "unknown: the checkpoint holds no state of its shard"
    return "not known from the catalog alone"
