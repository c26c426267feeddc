"""The flags of `dedup run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dedup.cli import flags as shared
from dedup.cli.ending import Done
from dedup.cli.failures import INTERRUPTED, OK
from dedup.cli.flags import TalkingFlags, argument, command, option, pairs, switch
from dedup.cli.progress import reporter
from dedup.cli.run.run_options import RunOptions
from dedup.cli.stop import stop_on_signals

_INPUT, _TIME, _OUTPUT = "Input", "Time", "Output"
_SIZING, _WATCHING, _SPARK = "Sizing", "Watching", "Spark"


@dataclass(frozen=True, kw_only=True)
class RunFlags(TalkingFlags):
    """What can be given to `dedup run`."""

    input: Annotated[str, argument("INPUT", "Folder of files, or one file.")]
    moved_from: Annotated[
        Path | None,
        option("OLD", "INPUT was OLD before, and holds the same files: take only new ones."),
        _INPUT,
    ] = None
    id: Annotated[list[str], shared.ID]
    horizon: Annotated[str, shared.HORIZON]
    output: Annotated[str, option("DIR", "Folder of the unique rows.")]
    format: Annotated[shared.Format, _INPUT] = None
    schema: Annotated[
        str | None, option("DDL", "Columns: 'id STRING, amount INT'. May add some later."), _INPUT
    ] = None
    infer: Annotated[shared.Infer, _INPUT] = False
    read_option: Annotated[shared.ReadOption, _INPUT] = None
    new_columns: Annotated[
        str, option("error|ignore|add", "Columns of later files that the output lacks."), _INPUT
    ] = "error"
    bad_records: Annotated[
        str,
        option(
            "error|skip|DIR",
            "Rows that cannot be read: stop, leave them out, or set them aside in DIR.",
        ),
        _INPUT,
    ] = "error"
    null_ids: Annotated[str, option("emit|drop|error", "Records without an ID."), _INPUT] = "emit"
    files_per_trigger: Annotated[int, option("N", "Files a micro-batch."), _INPUT] = 10
    order_files: Annotated[shared.OrderFiles, _INPUT] = "time"
    timestamp: Annotated[
        str | None,
        option(
            "COL", "Event time, by which the horizon is measured. Default: the run's own clock."
        ),
        _TIME,
    ] = None
    timestamp_format: Annotated[shared.TimestampFormat, _TIME] = None
    null_timestamps: Annotated[
        str, option("error|now|drop|emit", "Records without a timestamp."), _TIME
    ] = "error"
    source_partition: Annotated[
        list[str] | None,
        option("COL", "Column that tells clocks apart, such as a producer; repeat for several."),
        _TIME,
    ] = None
    lateness: Annotated[shared.Lateness, _TIME] = None
    late: Annotated[str, option("emit|drop", "Late records whose ID is not known."), _TIME] = "emit"
    max_late: Annotated[
        float,
        option("PERCENT", "With --late drop, stop when more of the run's records are late."),
        _TIME,
    ] = 1.0
    stable_timestamps: Annotated[shared.Stable, _TIME] = False
    max_future: Annotated[
        str | None,
        option("DURATION", "Timestamps further ahead count as now. Default: 10 minutes."),
        _TIME,
    ] = None
    idle_timeout: Annotated[
        str | None,
        option(
            "DURATION", "How long to wait for a silent clock; never: always. Default: 10 minutes."
        ),
        _TIME,
    ] = None
    order_by: Annotated[
        list[str] | None,
        option("COL", "Of copies in one micro-batch with one timestamp, keep the smallest COL."),
        _OUTPUT,
    ] = None
    guarantee: Annotated[
        str,
        option(
            "exactly-once|at-most-once|at-least-once",
            "Look IDs up, trust the filters, or check nothing.",
        ),
        _OUTPUT,
    ] = "exactly-once"
    check_payload: Annotated[
        list[str] | None,
        option("COL", "Column in which copies may not differ: one that does is a conflict."),
        _OUTPUT,
    ] = None
    conflicts: Annotated[
        str, option("drop|emit", "Duplicates that differ in a --check-payload column."), _OUTPUT
    ] = "drop"
    duplicates: Annotated[
        Path | None, option("DIR", "Folder of the rows that are left out."), _OUTPUT
    ] = None
    verdict: Annotated[
        str | None,
        option("COL", "Add a column with each row's verdict, and let every row go on."),
        _OUTPUT,
    ] = None
    output_format: Annotated[
        str | None,
        option("FMT", "csv, json or parquet; else as the input, and parquet for orc."),
        _OUTPUT,
    ] = None
    catalog: Annotated[Path | None, option("DIR", "Default: OUTPUT/_catalog."), _OUTPUT] = None
    checkpoint: Annotated[Path | None, option("DIR", "Default: OUTPUT/_checkpoint."), _OUTPUT] = (
        None
    )
    shards: Annotated[
        int | None, option("N", "Default: as many as cores. Fixed for ever."), _SIZING
    ] = None
    buckets: Annotated[shared.Buckets, _SIZING] = None
    fpr: Annotated[shared.Fpr, _SIZING] = None
    state_budget_bytes: Annotated[shared.StateBudget, _SIZING] = None
    keep_expired: Annotated[str | None, option("DURATION", "Before expired files go."), _SIZING] = (
        None
    )
    log: Annotated[
        Path | None,
        option("DIR", "Metrics log. Default: OUTPUT/_metrics, which `dedup watch OUTPUT` follows."),
        _WATCHING,
    ] = None
    prometheus_port: Annotated[
        int | None,
        option(
            "PORT", "Serve the metrics to Prometheus while the run lasts.", least=0, most=65_535
        ),
        _WATCHING,
    ] = None
    prometheus_address: Annotated[
        str, option("HOST", "Where: 0.0.0.0 for all networks of this machine."), _WATCHING
    ] = "127.0.0.1"
    parquet: Annotated[
        str,
        option(
            "auto|spark",
            "Who reads and writes Parquet: dedup where it may, which is faster, or Spark.",
        ),
        _SPARK,
    ] = "auto"
    master: Annotated[str, option("local[N]", "Cores to use."), _SPARK] = "local[*]"
    driver_memory: Annotated[str, option("SIZE", "Memory of the JVM."), _SPARK] = "2g"
    dry_run: Annotated[
        bool, switch("Check everything, print the plan, take no rows.", "--dry-run")
    ] = False

    def options(self) -> RunOptions:
        """Return what is asked of the run, under the names of `RunOptions`."""
        given = dict(vars(self))
        for name in ("dry_run", "as_json", "quiet"):
            del given[name]
        given["file_format"] = given.pop("format")
        read = pairs(given.pop("read_option"), "--read-option")
        given["read_options"] = tuple(sorted(read.items()))
        for name in ("id", "source_partition", "order_by", "check_payload"):
            given[name] = tuple(given[name] or ())
        return RunOptions.make(**given)


@command(RunFlags, "dedup run events --id order_id --horizon '7 days' --output unique")
def run(flags: RunFlags) -> Done:
    """De-duplicate a folder of files; run again, it takes only the files that are new.

    Each micro-batch appears in DIR/batch=<id>/ whole or not at all.
    """
    from dedup.cli.run import screen, work
    from dedup.cli.session import unless_java_ended

    options = flags.options()
    if flags.dry_run:
        plan = work.plan(options)
        if not flags.as_json:
            screen.show_plan(plan)
        return Done(OK, {"status": "dry run", "plan": plan})
    talk, outcome = reporter(quiet=flags.quiet), None
    try:
        with stop_on_signals() as stop, unless_java_ended(stop):
            outcome = work.run(options, talk, stop=stop)
    finally:
        talk.close()
    if outcome is None:
        raise KeyboardInterrupt
    # Without a micro-batch all figures would be zero, and the run has said why.
    if outcome.figures.batches and not (flags.quiet or flags.as_json):
        screen.show(outcome, options)
    body = {
        "status": "interrupted" if outcome.interrupted else "ok",
        "output": str(options.output),
        "query_id": outcome.query_id,
        "time": screen.time_of(options),
        "written_again": list(outcome.written_again),
    }
    code = INTERRUPTED if outcome.interrupted else OK
    return Done(code, body | outcome.figures.to_json())
