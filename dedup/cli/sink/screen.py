"""What `dedup sink` prints: lines that are the same on a terminal and through a pipe."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from dedup.core.duration import counted, size

_WIDTH = 80
#: What is staged, by its role.
_ROLES = {
    "planned": "of micro-batch {}, and about to be shown",
    "left over": "left over of micro-batch {}; the query's next one removes it",
    "not planned": "of micro-batch {}, which is under way, or of a start that ended in it",
    "foreign": "put there by nobody that is known",
}


def sink_lines(body: dict[str, Any]) -> Iterator[str]:
    """Put what `inspect_sink` found into lines."""
    for sink in body["sinks"]:
        yield f"query {sink['query_id']}, sink {sink['sink']}"
        yield from _table(sink["slots"])
        yield from textwrap.wrap(sink["restart"], _WIDTH, break_long_words=False)
        yield ""
    if not body["sinks"]:
        yield f"Nothing is published by the markers of topic {body['markers']}."
        yield ""
    if not body["held_back"]:
        yield "No open transaction holds readers of committed records back."
        return
    for held in body["held_back"]:
        yield from _held(held, body)


def folder_lines(body: dict[str, Any]) -> Iterator[str]:
    """Put what `inspect_files` found into lines."""
    sink = f", sink {body['sink']}" if body["sink"] else ""
    yield f"query {body['query_id']}{sink}"
    if body["batch_id"] is None:
        yield "No micro-batch is published."
    else:
        state = "is published" if body["whole"] else "is decided, and not whole yet"
        yield f"Micro-batch {body['batch_id']} {state}."
        if body["rows"] is not None:
            yield (
                f"  {body['rows']:,} rows in {_files(body['files'], body['nbytes'])}, decided "
                f"{body['time']} by {body['writer'] or 'an unknown writer'}"
            )
    yield from textwrap.wrap(body["restart"], _WIDTH, break_long_words=False)
    yield ""
    if not body["staged"]:
        yield "Nothing is staged."
    for staged in body["staged"]:
        yield (
            f"{staged['folder']}: {_files(staged['files'], staged['nbytes'])}, "
            f"{_ROLES[staged['role']].format(staged['batch_id'])}"
        )


def _files(count: int, nbytes: int) -> str:
    return f"{counted(count, 'file')}, {size(nbytes)}"


def _table(slots: list[dict[str, Any]]) -> Iterator[str]:
    yield f"{'slice':>7} {'micro-batch':>12} {'rows':>13}  {'published':<21} writer"
    for slot in slots:
        number = "whole" if slot["slot"] is None else slot["slot"]
        yield (
            f"{number:>7} {slot['batch_id']:>12,} {slot['rows']:>13,}  "
            f"{slot['time']:<21} {slot['writer'] or '-'}"
        )
        if slot["attempted"] is not None:
            state = "its transaction is open" if slot["open"] else "which was aborted"
            yield f"{'':>7} {slot['attempted']:>12,}  was attempted since; {state}"


def _held(held: dict[str, Any], body: dict[str, Any]) -> Iterator[str]:
    since = f", the first of them from {held['since']}" if held["since"] else ""
    text = (
        f"{held['topic']}-{held['partition']}: an open transaction holds readers of committed "
        f"records back at offset {held['readable']:,}, {held['end'] - held['readable']:,} before "
        f"the end{since}. It ends when its owner commits, or when its time limit is over"
    )
    longest = body["max_timeout_ms"]
    text += f" (at most {longest / 60_000:.0f} minutes here)." if longest else "."
    yield from textwrap.wrap(text, _WIDTH, break_long_words=False)
    yield (
        f"  kafka-transactions.sh --bootstrap-server {body['servers']} describe-producers "
        f"--topic {held['topic']} --partition {held['partition']}"
    )
