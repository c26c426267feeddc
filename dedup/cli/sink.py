"""`dedup sink`: inspect what a sink has published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dedup import tools
from dedup.cli.commands import Done
from dedup.cli.failures import OK
from dedup.cli.flags import InspectSinkFlags, pairs, read_properties
from dedup.cli.terminal import wrapped
from dedup.values.duration import counted, size

#: Description of staged files, by their role.
_ROLES = {
    "planned": "of micro-batch {}, which is about to be published",
    "left over": "left over from micro-batch {}; the query's next micro-batch removes it",
    "not planned": "of micro-batch {}, which is running, or of a start that ended in it",
    "foreign": "of unknown origin",
}


def inspect(flags: InspectSinkFlags) -> Done:
    of_file = read_properties(flags.properties) if flags.properties else {}
    options = of_file | pairs(flags.options, "The option")
    if flags.checkpoint is not None:
        options["checkpointLocation"] = flags.checkpoint
    body = tools.inspect_output(flags.format_name, options).to_json()
    return Done(OK, body, folder_lines(body) if "staged" in body else sink_lines(body))


def sink_lines(body: dict[str, Any]) -> Iterator[str]:
    for sink in body["sinks"]:
        yield f"query {sink['query_id']}, sink {sink['sink']}"
        yield from _table(sink["slots"])
        yield from wrapped(sink["restart"])
        yield ""
    if not body["sinks"]:
        yield "There are no markers: nothing is published."
        yield ""
    if body.get("held_back") == []:
        yield "No open transaction holds readers of committed records back."
    for held in body.get("held_back", ()):
        yield from _held(held, body)


def folder_lines(body: dict[str, Any]) -> Iterator[str]:
    sink = f", sink {body['sink']}" if body["sink"] else ""
    yield f"query {body['query_id']}{sink}"
    if body["batch_id"] is None:
        yield "No micro-batch is published."
    else:
        state = "is published" if body["whole"] else "is decided, but not published yet"
        yield f"Micro-batch {body['batch_id']} {state}."
        if body["rows"] is not None:
            yield (
                f"  {body['rows']:,} rows in {_files(body['files'], body['nbytes'])}, decided "
                f"{body['time']} by {body['writer'] or 'an unknown writer'}"
            )
    yield from wrapped(body["restart"])
    yield ""
    if not body["staged"]:
        yield "Nothing is staged."
    for staged in body["staged"]:
        role = _ROLES[staged["role"]].format(staged["batch_id"])
        yield f"{staged['folder']}: {_files(staged['files'], staged['nbytes'])}, {role}"


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
    yield from wrapped(text)
    yield (
        f"  kafka-transactions.sh --bootstrap-server {body['servers']} describe-producers "
        f"--topic {held['topic']} --partition {held['partition']}"
    )
