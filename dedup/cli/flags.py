"""Flags of all commands except `dedup run`, and readers for settings that flags give."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dedup.cli.commands import Flags, argument, option, switch
from dedup.errors import ConfigError
from dedup.spark.machine import home_path
from dedup.spark.options import BY_ID

_PROPERTY = re.compile(r"\s*([^\s=:]+)\s*[\s=:]\s*(.*?)\s*")
_LOAD, _NOW, _READ = "Load", "What the query has now", "Reading a sample"

# Declarations of fields that several classes below share.
timestamp_format_flag = partial(
    option, "FMT", "Spark's pattern ('yyyy-MM-dd HH:mm:ss'), or seconds or milliseconds since 1970."
)
format_flag = partial(option, "FMT", "csv, json, parquet or orc; else by file names.", "--format")
infer_flag = partial(switch, "CSV: guess types (default: every column a string).", "--infer")
read_option_flag = partial(
    option, "KEY=VALUE", "Option of Spark's reader, such as sep=';'.", "--read-option"
)
order_files_flag = partial(
    option,
    "time|name",
    "Read files in the order of their modification times (by name within a second), or of their "
    "names alone.",
    default="time",
)
_root = partial(argument, "ROOT", "Path or URI of the catalog, or OUTPUT of `dedup run`.")
_only_query = partial(option, "ID", "Only this query.")
_log_flag = partial(
    option, "DIR", "Metrics log: DIR of DedupListener(log=DIR), or OUTPUT of `dedup run`."
)


def operator_option(name: str, note: str = "", **more: Any) -> Any:
    """Declare a field that holds an option of `dedup_by_id`. The help text ends with `note`."""
    declared = BY_ID[name]
    return option(declared.metavar, declared.help + note, declared.flag, **more)


@dataclass(frozen=True, kw_only=True)
class QuietFlags(Flags):
    """Flags of every command that reports its progress."""

    quiet: bool = switch("Print only errors.", "--quiet", "-q")


@dataclass(frozen=True, kw_only=True)
class VerifyFlags(Flags):
    """Read every file of the catalog; exit with 3 if one is damaged or missing."""

    work = "dedup.cli.catalog:verify"
    example = "dedup catalog verify catalog --checkpoint checkpoint"

    root: str = _root()
    checkpoint: str | None = option(
        "DIR", "Checkpoint of the query: only it shows which segments are live."
    )
    query: str | None = _only_query()


@dataclass(frozen=True, kw_only=True)
class InspectFlags(VerifyFlags):
    """Show what a catalog holds."""

    work = "dedup.cli.catalog:inspect"
    example = "dedup catalog inspect catalog"

    list_segments: bool = switch("List every segment.", "--segments")


@dataclass(frozen=True, kw_only=True)
class AcceptLossFlags(Flags):
    """Accept the loss of one damaged segment: its IDs may then be emitted once more.

    The query reads this at its next start. It keeps using a segment that is whole.
    """

    work = "dedup.cli.catalog:accept_loss"
    example = "dedup catalog accept-loss catalog --segment NAME"

    root: str = _root()
    segment: str = option("NAME", "Segment, as the query's error names it.", default=MISSING)
    query: str | None = _only_query()
    shard: int | None = option("N", "Only this shard.")


@dataclass(frozen=True, kw_only=True)
class VacuumFlags(Flags):
    """Delete what no manifest names: orphans and half-written files. Foreign files stay."""

    work = "dedup.cli.catalog:vacuum"
    example = "dedup catalog vacuum catalog --checkpoint checkpoint --dry-run"

    root: str = _root()
    checkpoint: str = option(
        "DIR", "Checkpoint of the query: files that it names stay.", default=MISSING
    )
    older_than: str = option(
        "TIME", "Younger files may belong to a running micro-batch.", default="24 hours"
    )
    sole: bool = switch(
        "You promise that no other checkpoint of this query will run again.", "--sole"
    )
    dry_run: bool = switch("List the files, delete none.", "--dry-run")


@dataclass(frozen=True, kw_only=True)
class AdoptFlags(Flags):
    """Make a new checkpoint for a catalog whose own checkpoint is lost.

    Start the query with it. IDs that only the lost checkpoint held, the newest ones, may be emitted
    once more. The lost checkpoint must never run again. Exit code 5: the catalog held no ID, so
    none was saved.
    """

    work = "dedup.cli.catalog:adopt"
    example = "dedup catalog adopt catalog --checkpoint new-checkpoint"

    root: str = _root()
    checkpoint: str = option("DIR", "Place of the new checkpoint.", default=MISSING)
    query: str | None = _only_query()
    sole: bool = switch(
        "Several checkpoints used it; you promise that the sink has everything they wrote.",
        "--sole",
    )


@dataclass(frozen=True, kw_only=True)
class RescaleFlags(Flags):
    """Give the state of a stopped query another number of partitions.

    The query continues from the same checkpoint. Its state must be in RocksDB, and PySpark 4.2 or
    newer. If the command is cut off, the query does not start until you repeat the command.
    """

    work = "dedup.cli.catalog:rescale"
    example = "dedup catalog rescale checkpoint --partitions 16"

    checkpoint: str = argument("DIR", "Checkpoint of the query.")
    partitions: int = option("N", "New number of state partitions.", default=MISSING)


@dataclass(frozen=True, kw_only=True)
class RebuildFlags(Flags):
    """Write what a stopped query remembers into a new catalog, for a new checkpoint.

    The new query judges as the old one would have, and may have other shards, state partitions and
    another state store. The old query does not start again. If the command is cut off, repeat it.
    """

    work = "dedup.cli.catalog:rebuild"
    example = (
        "dedup catalog rebuild catalog --checkpoint checkpoint --to catalog-2 "
        "--new-checkpoint checkpoint-2 --shards 32"
    )

    root: str = argument("ROOT", "Path or URI of the catalog.")
    checkpoint: str | None = option("DIR", "Checkpoint of the query.")
    to: str | None = option(
        "ROOT", "Place of the new catalog. With --reopen only if its URI has options."
    )
    new_checkpoint: str | None = option("DIR", "Place of the new checkpoint.")
    shards: int | None = option("N", "New number of shards. Default: as before.")
    without: str | None = option(
        "FILE", "Leave out the IDs in FILE, one a line, or a JSON array for several columns."
    )
    reopen: bool = switch("Give the rebuilt query up: the old one may start again.", "--reopen")
    query: str | None = option("ID", "With --reopen: only this query.")


@dataclass(frozen=True, kw_only=True)
class CheckFlags(Flags):
    """Show which settings break the guarantee or cost speed, and what to change.

    It starts no Spark and changes nothing. Exit code 4: something breaks the guarantee.
    """

    work = "dedup.cli.check:check"
    example = "dedup check checkpoint --log metrics"

    checkpoint: str = argument("DIR", "Checkpoint, or the OUTPUT of `dedup run`.")
    catalog: str | None = option("ROOT", "Path or URI of the catalog.")
    log: str | None = _log_flag()
    query: str | None = option("ID", "ID or name that the query should have.")
    conf: list[str] | None = option("KEY=VALUE", "Spark setting of the next start.")
    properties: str | None = option(
        "FILE", "All of them, as spark-defaults.conf; the rest is default."
    )
    source_option: list[str] | None = option(
        "KEY=VALUE", "Option of the source: failOnDataLoss=..."
    )
    sink_option: list[str] | None = option("KEY=VALUE", "Option of the Kafka sink: topic=...")
    kafka_retention: str | None = option("DURATION", "retention.ms: '7 days', or forever.")
    horizon: str | None = option("DURATION", "Horizon of the next start.")
    late: str | None = option("emit|drop", "Option late= of the next start.")
    every: bool = switch("List every rule that needs another option to be judged.", "--all")


@dataclass(frozen=True, kw_only=True)
class DoctorFlags(Flags):
    """Show whether driver, executors, disks and storage can run queries, and what to change.

    It runs two small Spark jobs and leaves nothing behind. Exit code 4: no query can run.
    """

    work = "dedup.cli.doctor:doctor"
    example = "dedup doctor --master spark://host:7077 --catalog s3://bucket/dedup"

    catalog: str | None = option("ROOT", "Path or URI of the catalog, to be used as queries do.")
    server: list[str] | None = option(
        "HOST:PORT", "Broker or database that every machine should reach."
    )
    master: str | None = option("URL", "Spark master, or sc://... (default: this machine).")
    conf: list[str] | None = option("KEY=VALUE", "Spark setting of your queries.")


@dataclass(frozen=True, kw_only=True)
class DemoFlags(QuietFlags):
    """Make up a stream with known duplicates, de-duplicate it, and check every figure."""

    work = "dedup.cli.demo:demo"
    example = "dedup demo --folder demo"

    folder: Path | None = option("DIR", "Keep everything here. Default: nowhere.")
    events: int = option("N", "Events before copies.", default=400_000)
    seed: int = option("N", "Same seed, same events.", default=7)


@dataclass(frozen=True, kw_only=True)
class ExplainFlags(Flags):
    """Show when a record ID was emitted, where it is kept, and until when it is remembered.

    Exit codes: 0 it is remembered, 5 it is not, 6 the catalog alone cannot tell: without
    --checkpoint the newest IDs are unknown.
    """

    work = "dedup.cli.catalog:explain"
    example = "dedup explain catalog order-42 --checkpoint checkpoint"

    root: str = _root()
    id: list[str] = argument("ID...", "Value of each ID column, in order.")
    checkpoint: str | None = option("DIR", "Checkpoint of the query: only it knows the newest IDs.")
    query: str | None = option("ID", "Which query.")


@dataclass(frozen=True, kw_only=True)
class PrepareFlags(QuietFlags):
    """Make later starts of Spark on this machine quicker: keep its Java classes in a file."""

    work = "dedup.cli.prepare:prepare"
    example = "dedup prepare"

    again: bool = switch("Replace the file of an earlier run.", "--again")


@dataclass(frozen=True, kw_only=True)
class RemediesFlags(Flags):
    """Show what to do about an error; without TOPIC, list the topics."""

    work = "dedup.cli.remedies:remedies"
    example = "dedup remedies late"

    topic: str | None = argument("[TOPIC]", "As the error's last line names it.", default=None)


@dataclass(frozen=True, kw_only=True)
class InspectSinkFlags(Flags):
    """Show what a sink has published, what is unfinished, and what the next start does.

    Kafka: also whether open transactions hold readers back. Folder: also the staged files.

    It changes nothing, and a query may write at the same time.
    """

    work = "dedup.cli.sink:inspect"
    example = "dedup sink inspect dedup_files path=orders --checkpoint checkpoint"

    format_name: str = argument(
        "FORMAT", "Format, such as dedup_kafka; dedup_files for an OUTPUT of `dedup run`."
    )
    options: list[str] | None = argument(
        "[KEY=VALUE...]", "The sink's options, such as topic=orders.", default=None
    )
    checkpoint: str | None = option(
        "DIR", "Checkpoint of the query: shows what its next start does."
    )
    properties: str | None = option(
        "FILE", "More of the sink's options, such as kafka.sasl.password=..., one a line."
    )


@dataclass(frozen=True, kw_only=True)
class TuneFlags(Flags):
    """Measure what choices of filter sizing cost for a load, and recommend one.

    The load is a number, a sample of the data, the metrics log or the catalog of a query. Exit code
    3: a filter missed an ID that it holds, which is a fault.
    """

    work = "dedup.cli.tune:tune"
    example = "dedup tune --ids-per-day 20M --horizon '7 days'"

    ids_per_day: str | None = option("N", "New IDs a day: 20M.", panel=_LOAD)
    sample: str | None = option("INPUT", "Files as of `dedup run`.", panel=_LOAD)
    log: str | None = _log_flag(panel=_LOAD)
    query: str | None = option("ID", "Which of the log's.", panel=_LOAD)
    catalog: str | None = option("ROOT", "Catalog of a query.", panel=_LOAD)
    checkpoint: str | None = option("DIR", "Its checkpoint.", panel=_LOAD)
    horizon: str | None = operator_option("horizon")
    lateness: str | None = operator_option("lateness")
    duplicate_share: float | None = option("P", "Share of records that repeat an ID: 0.05.")
    batch: str | None = option(
        "DURATION", "From micro-batch to micro-batch. Default: the log's, else a minute."
    )
    id_bytes: int | None = option("N", "Length of an ID; a UUID has 17.")
    cores: int | None = option("N", "Of all executors together. Default: this machine's.")
    shards: int | None = option("N", "Default: as many as cores; else as the log or catalog has.")
    bucket_length: str | None = operator_option("bucket_length", panel=_NOW)
    fpr: float | None = operator_option("fpr", panel=_NOW)
    state_budget_bytes: str | None = operator_option("state_budget_bytes", panel=_NOW)
    filter_state_bytes: str | None = operator_option("filter_state_bytes", panel=_NOW)
    stable_timestamps: bool = operator_option("stable_timestamps", default=False, panel=_NOW)
    late: str | None = option("emit|drop", "Default: emit.", panel=_NOW)
    id: list[str] | None = operator_option("id", " Repeat the flag.", panel=_READ)
    timestamp: str | None = option("COL", "Event time.", panel=_READ)
    timestamp_format: str | None = timestamp_format_flag(panel=_READ)
    format: str | None = format_flag(panel=_READ)
    schema: str | None = option("DDL", "Columns: 'id STRING, amount INT'.", panel=_READ)
    infer: bool = infer_flag(panel=_READ)
    read_option: list[str] | None = read_option_flag(panel=_READ)
    order_files: str = order_files_flag(panel=_READ)
    html: Path | None = option("FILE", "Write a report with charts.")
    quiet: bool = switch("Report no progress.", "--quiet", "-q")


@dataclass(frozen=True, kw_only=True)
class WatchFlags(Flags):
    """Watch a running query: whether its GC watermark keeps up, and what holds it; q leaves.

    A larger terminal shows more: curves and a table of the last micro-batches.

    With --once or --json the exit code is the verdict: 0 OK, 10 LAGGING, 11 STALLED, 12 STOPPED,
    13 REWOUND, 14 LATE, 15 FUTURE, 16 SHORTENED.
    """

    work = "dedup.cli.watch:watch"
    example = "dedup watch unique"

    where: str = argument(
        "DIR|URL",
        "DedupListener(log=DIR), the OUTPUT of `dedup run`, or where "
        "DedupListener(prometheus_port=...) serves.",
    )
    query: str | None = option("ID", "Which query, by ID or name.")
    once: bool = switch("Look once and leave.", "--once")
    every: float = option("SECONDS", "How often to look.", least=0.1, most=86_400, default=2.0)


def pairs(texts: Iterable[str] | None, flag: str) -> dict[str, str]:
    """Return the settings in texts such as ``KEY=VALUE``.

    Raises ConfigError for any other text. The error omits the text, which may hold a secret.
    """
    settings = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not (key.strip() and equals):
            name = re.match(r"[\w.-]*=?", text)
            raise ConfigError(f"{flag} {name and name[0]} is not KEY=VALUE.")
        settings[key.strip()] = value
    return settings


def read_properties(where: str) -> dict[str, str]:
    """Return the settings in the file of ``--properties``, such as ``spark-defaults.conf``.

    Raises ConfigError if the file cannot be read, or if a line is not a property. The error names
    only the number of the line, which may hold a secret.
    """
    path = home_path(where)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigError(f"--properties {where} cannot be read: {reason}.") from None
    settings = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip()[0] in "#!":
            continue
        match = _PROPERTY.fullmatch(line)
        if match is None:
            raise ConfigError(f"--properties {where}, line {number}: it is not KEY VALUE.")
        settings[match[1]] = match[2]
    return settings
