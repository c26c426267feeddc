"""The flags of `dedup tune`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from dedup.cli import flags as shared
from dedup.cli.ending import Done
from dedup.cli.failures import DAMAGE, FAILED, OK
from dedup.cli.flags import Flags, command, option, pairs, switch
from dedup.cli.printing import say

_LOAD, _NOW, _READ = "Load", "What the query has now", "Reading a sample"


@dataclass(frozen=True, kw_only=True)
class TuneFlags(Flags):
    """What can be given to `dedup tune`."""

    ids_per_day: Annotated[str | None, option("N", "New IDs a day: 20M."), _LOAD] = None
    sample: Annotated[str | None, option("INPUT", "Files as of `dedup run`."), _LOAD] = None
    log: Annotated[str | None, shared.LOG, _LOAD] = None
    query: Annotated[str | None, option("ID", "Which of the log's."), _LOAD] = None
    catalog: Annotated[str | None, option("ROOT", "Catalog of a query."), _LOAD] = None
    checkpoint: Annotated[str | None, option("DIR", "Its checkpoint."), _LOAD] = None
    horizon: Annotated[str | None, shared.HORIZON] = None
    lateness: shared.Lateness = None
    duplicate_share: Annotated[
        float | None, option("P", "Share of records that repeat an ID: 0.05.")
    ] = None
    batch: Annotated[
        str | None,
        option("DURATION", "From micro-batch to micro-batch. Default: the log's, else a minute."),
    ] = None
    id_bytes: Annotated[int | None, option("N", "Length of an ID; a UUID has 17.")] = None
    cores: Annotated[
        int | None, option("N", "Of all executors together. Default: this machine's.")
    ] = None
    shards: Annotated[
        int | None, option("N", "Default: as many as cores; a log or catalog tells them.")
    ] = None
    buckets: Annotated[shared.Buckets, _NOW] = None
    fpr: Annotated[shared.Fpr, _NOW] = None
    state_budget_bytes: Annotated[shared.StateBudget, _NOW] = None
    stable_timestamps: Annotated[shared.Stable, _NOW] = False
    late: Annotated[str | None, option("emit|drop", "Default: emit."), _NOW] = None
    id: Annotated[list[str] | None, shared.ID, _READ] = None
    timestamp: Annotated[str | None, option("COL", "Event time."), _READ] = None
    timestamp_format: Annotated[shared.TimestampFormat, _READ] = None
    format: Annotated[shared.Format, _READ] = None
    schema: Annotated[str | None, option("DDL", "Columns: 'id STRING, amount INT'."), _READ] = None
    infer: Annotated[shared.Infer, _READ] = False
    read_option: Annotated[shared.ReadOption, _READ] = None
    order_files: Annotated[shared.OrderFiles, _READ] = "time"
    html: Annotated[Path | None, option("FILE", "Write a report with charts.")] = None
    quiet: Annotated[bool, switch("Tell of no progress.", "--quiet", "-q")] = False


@command(TuneFlags, "dedup tune --ids-per-day 20M --horizon '7 days'")
def tune(flags: TuneFlags) -> Done:
    """Measure what choices of filter sizing cost for a load, and recommend one.

    The load is a number, a sample of the data, the metrics log or the catalog of a query. Exit code
    3: a filter did not know an ID that it holds, which must never be.
    """
    from dedup.cli.tune import screen, work
    from dedup.tools import TuneOptions

    read = {
        "id": tuple(flags.id or ()),
        "timestamp": flags.timestamp,
        "timestamp_format": flags.timestamp_format,
        "file_format": flags.format,
        "schema": flags.schema,
        "infer": flags.infer,
        "order_files": flags.order_files,
        "read_options": tuple(sorted(pairs(flags.read_option, "--read-option").items())),
    }
    given = {field.name: getattr(flags, field.name) for field in fields(TuneOptions)}
    with screen.progress(quiet=flags.quiet) as tell:
        result = work.tune(given, read, flags.html, tell)
    code, body, written = DAMAGE if result.false_negatives else OK, result.to_json(), flags.html
    if flags.html is not None:
        try:
            flags.html.write_text(result.page(), encoding="utf-8")
        except OSError as error:
            # What was measured is told all the same.
            failure = f"--html {flags.html} cannot be written: {error.strerror}."
            say(f"error: {failure}", as_error=True)
            body["message"], written = failure, None
            if code == OK:
                code, body["status"] = FAILED, "failed"
    if not flags.as_json:
        screen.show(result, written)
    return Done(code, body)
