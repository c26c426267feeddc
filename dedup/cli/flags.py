"""Flags of all commands except `dedup run`, and the pairs and files of settings that they name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from dedup.cli.commands import Flags, argument, option, switch
from dedup.errors import ConfigError
from dedup.spark.machine import home_path
from dedup.spark.options import BY_ID

TIMESTAMP_FORMAT = option(
    "FMT", "Spark's pattern ('yyyy-MM-dd HH:mm:ss'), or seconds or milliseconds since 1970."
)
FORMAT = option("FMT", "csv, json, parquet or orc; else by file names.", "--format")
INFER = switch("CSV: guess types (default: every column a string).", "--infer")
READ_OPTION = option("KEY=VALUE", "Option of Spark's reader, such as sep=';'.", "--read-option")
ORDER_FILES = option(
    "time|name",
    "Read files in the order of their modification times (by name within a second), or of their "
    "names alone.",
)
_LOG = option("DIR", "Metrics log: DIR of DedupListener(log=DIR), or OUTPUT of `dedup run`.")
_PROPERTY = re.compile(r"\s*([^\s=:]+)\s*[\s=:]\s*(.*?)\s*")
_LOAD, _NOW, _READ = "Load", "What the query has now", "Reading a sample"

_Root = Annotated[str, argument("ROOT", "Path or URI of the catalog, or OUTPUT of `dedup run`.")]
_OnlyQuery = Annotated[str | None, option("ID", "Only this query.")]


def operator_option(name: str, *, has_default: bool = True) -> Any:
    """Return an option of `dedup_by_id` as a flag; its help names a default that the flag lacks."""
    declared = BY_ID[name]
    hidden = "" if has_default or declared.default is None else f" Default: {declared.default}."
    return option(declared.metavar, declared.help + hidden, declared.flag)


@dataclass(frozen=True, kw_only=True)
class QuietFlags(Flags):
    """Flags of every command that reports its progress."""

    quiet: Annotated[bool, switch("Print only errors.", "--quiet", "-q")] = False


@dataclass(frozen=True, kw_only=True)
class VerifyFlags(Flags):
    """Read every file of the catalog; exit with 3 if one is damaged or missing."""

    work = "dedup.cli.catalog:verify"
    example = "dedup catalog verify catalog --checkpoint checkpoint"

    root: _Root
    checkpoint: Annotated[
        str | None, option("DIR", "Checkpoint of the query: only it shows which segments are live.")
    ] = None
    query: _OnlyQuery = None


@dataclass(frozen=True, kw_only=True)
class InspectFlags(VerifyFlags):
    """Show what a catalog holds."""

    work = "dedup.cli.catalog:inspect"
    example = "dedup catalog inspect catalog"

    list_segments: Annotated[bool, switch("List every segment.", "--segments")] = False


@dataclass(frozen=True, kw_only=True)
class AcceptLossFlags(Flags):
    """Accept the loss of one damaged segment: its IDs may then be emitted once more.

    The query reads this at its next start. It keeps using a segment that is whole.
    """

    work = "dedup.cli.catalog:accept_loss"
    example = "dedup catalog accept-loss catalog --segment NAME"

    root: _Root
    segment: Annotated[str, option("NAME", "Segment, as the query's error names it.")]
    query: _OnlyQuery = None
    shard: Annotated[int | None, option("N", "Only this shard.")] = None


@dataclass(frozen=True, kw_only=True)
class VacuumFlags(Flags):
    """Delete what no manifest names: orphans and half-written files. Foreign files stay."""

    work = "dedup.cli.catalog:vacuum"
    example = "dedup catalog vacuum catalog --checkpoint checkpoint --dry-run"

    root: _Root
    checkpoint: Annotated[str, option("DIR", "Checkpoint of the query: files that it names stay.")]
    older_than: Annotated[
        str, option("TIME", "Younger files may belong to a running micro-batch.")
    ] = "24 hours"
    sole: Annotated[
        bool, switch("You promise that no other checkpoint of this query will run again.", "--sole")
    ] = False
    dry_run: Annotated[bool, switch("List the files, delete none.", "--dry-run")] = False


@dataclass(frozen=True, kw_only=True)
class AdoptFlags(Flags):
    """Make a new checkpoint for a catalog whose own checkpoint is lost.

    Start the query with it. IDs that only the lost checkpoint held, the newest ones, may be emitted
    once more. The lost checkpoint must never run again. Exit code 5: the catalog held no ID, so
    none was saved.
    """

    work = "dedup.cli.catalog:adopt"
    example = "dedup catalog adopt catalog --checkpoint new-checkpoint"

    root: _Root
    checkpoint: Annotated[str, option("DIR", "Place of the new checkpoint.")]
    query: _OnlyQuery = None
    sole: Annotated[
        bool,
        switch(
            "Several checkpoints used it; you promise that the sink has everything they wrote.",
            "--sole",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class CheckFlags(Flags):
    """Show which settings break the guarantee or cost speed, and what to change.

    It starts no Spark and changes nothing. Exit code 4: something breaks the guarantee.
    """

    work = "dedup.cli.check:check"
    example = "dedup check checkpoint --log metrics"

    checkpoint: Annotated[str, argument("DIR", "Checkpoint, or the OUTPUT of `dedup run`.")]
    catalog: Annotated[str | None, option("ROOT", "Path or URI of the catalog.")] = None
    log: Annotated[str | None, _LOG] = None
    query: Annotated[str | None, option("ID", "ID or name that the query should have.")] = None
    conf: Annotated[list[str] | None, option("KEY=VALUE", "Spark setting of the next start.")] = (
        None
    )
    properties: Annotated[
        str | None, option("FILE", "All of them, as spark-defaults.conf; the rest is default.")
    ] = None
    source_option: Annotated[
        list[str] | None, option("KEY=VALUE", "Option of the source: failOnDataLoss=...")
    ] = None
    sink_option: Annotated[
        list[str] | None, option("KEY=VALUE", "Option of the Kafka sink: topic=...")
    ] = None
    kafka_retention: Annotated[
        str | None, option("DURATION", "retention.ms: '7 days', or forever.")
    ] = None
    horizon: Annotated[str | None, option("DURATION", "Horizon of the next start.")] = None
    late: Annotated[str | None, option("emit|drop", "Option late= of the next start.")] = None
    every: Annotated[
        bool, switch("List every rule that needs another option to be judged.", "--all")
    ] = False


@dataclass(frozen=True, kw_only=True)
class DemoFlags(QuietFlags):
    """Make up a stream with known duplicates, de-duplicate it, and check every figure."""

    work = "dedup.cli.demo:demo"
    example = "dedup demo --folder demo"

    folder: Annotated[Path | None, option("DIR", "Keep everything here. Default: nowhere.")] = None
    events: Annotated[int, option("N", "Events before copies.")] = 400_000
    seed: Annotated[int, option("N", "Same seed, same events.")] = 7


@dataclass(frozen=True, kw_only=True)
class ExplainFlags(Flags):
    """Show when a record ID was emitted, where it is kept, and until when it is remembered.

    Exit codes: 0 it is remembered, 5 it is not, 6 the catalog alone cannot tell: without
    --checkpoint the newest IDs are unknown.
    """

    work = "dedup.cli.explain:explain"
    example = "dedup explain catalog order-42 --checkpoint checkpoint"

    root: _Root
    id: Annotated[list[str], argument("ID...", "Value of each ID column, in order.")]
    checkpoint: Annotated[
        str | None, option("DIR", "Checkpoint of the query: only it knows the newest IDs.")
    ] = None
    query: Annotated[str | None, option("ID", "Which query.")] = None


@dataclass(frozen=True, kw_only=True)
class PrepareFlags(QuietFlags):
    """Make later starts of Spark on this machine quicker: keep its Java classes in a file."""

    work = "dedup.cli.prepare:prepare"
    example = "dedup prepare"

    again: Annotated[bool, switch("Replace the file of an earlier run.", "--again")] = False


@dataclass(frozen=True, kw_only=True)
class RemediesFlags(Flags):
    """Show what to do about an error; without TOPIC, list the topics."""

    work = "dedup.cli.remedies:remedies"
    example = "dedup remedies late"

    topic: Annotated[str | None, argument("[TOPIC]", "As the error's last line names it.")] = None


@dataclass(frozen=True, kw_only=True)
class InspectSinkFlags(Flags):
    """Show what a sink of Kafka, or a folder of files, has published, and what is unfinished.

    Kafka: each slice, and whether open transactions hold readers back.

    Folder: its owner, its last micro-batch, and the staged files.

    It changes nothing, and a query may write at the same time.
    """

    work = "dedup.cli.sink:inspect"
    example = "dedup sink inspect localhost:9092 orders-once --checkpoint checkpoint"

    where: Annotated[
        str,
        argument(
            "SERVERS|FOLDER",
            "Kafka's addresses, host:port, with commas; or the path or s3:// URI of a folder of "
            "files.",
        ),
    ]
    topic: Annotated[
        str | None, argument("[TOPIC]", "Topic that the sink writes to; leave it out for a folder.")
    ] = None
    markers: Annotated[str | None, option("TOPIC", "Topic of its markers; else TOPIC-markers.")] = (
        None
    )
    checkpoint: Annotated[
        str | None, option("DIR", "Checkpoint of the query: shows what its next start does.")
    ] = None
    query: _OnlyQuery = None
    command_config: Annotated[
        str | None,
        option("FILE", "Client's properties (security.protocol=...), as for Kafka's tools."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TuneFlags(Flags):
    """Measure what choices of filter sizing cost for a load, and recommend one.

    The load is a number, a sample of the data, the metrics log or the catalog of a query. Exit code
    3: a filter missed an ID that it holds, which is a fault.
    """

    work = "dedup.cli.tune:tune"
    example = "dedup tune --ids-per-day 20M --horizon '7 days'"

    ids_per_day: Annotated[str | None, option("N", "New IDs a day: 20M."), _LOAD] = None
    sample: Annotated[str | None, option("INPUT", "Files as of `dedup run`."), _LOAD] = None
    log: Annotated[str | None, _LOG, _LOAD] = None
    query: Annotated[str | None, option("ID", "Which of the log's."), _LOAD] = None
    catalog: Annotated[str | None, option("ROOT", "Catalog of a query."), _LOAD] = None
    checkpoint: Annotated[str | None, option("DIR", "Its checkpoint."), _LOAD] = None
    horizon: Annotated[str | None, operator_option("horizon")] = None
    lateness: Annotated[str | None, operator_option("lateness")] = None
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
        int | None, option("N", "Default: as many as cores; else as the log or catalog has.")
    ] = None
    buckets: Annotated[int | None, operator_option("buckets"), _NOW] = None
    fpr: Annotated[float | None, operator_option("fpr"), _NOW] = None
    state_budget_bytes: Annotated[int | None, operator_option("state_budget_bytes"), _NOW] = None
    stable_timestamps: Annotated[bool, operator_option("stable_timestamps"), _NOW] = False
    late: Annotated[str | None, option("emit|drop", "Default: emit."), _NOW] = None
    id: Annotated[list[str] | None, operator_option("id"), _READ] = None
    timestamp: Annotated[str | None, option("COL", "Event time."), _READ] = None
    timestamp_format: Annotated[str | None, TIMESTAMP_FORMAT, _READ] = None
    format: Annotated[str | None, FORMAT, _READ] = None
    schema: Annotated[str | None, option("DDL", "Columns: 'id STRING, amount INT'."), _READ] = None
    infer: Annotated[bool, INFER, _READ] = False
    read_option: Annotated[list[str] | None, READ_OPTION, _READ] = None
    order_files: Annotated[str, ORDER_FILES, _READ] = "time"
    html: Annotated[Path | None, option("FILE", "Write a report with charts.")] = None
    quiet: Annotated[bool, switch("Report no progress.", "--quiet", "-q")] = False


@dataclass(frozen=True, kw_only=True)
class WatchFlags(Flags):
    """Watch a running query: whether its GC watermark keeps up, and what holds it; q leaves.

    A larger terminal shows more: curves and a table of the last micro-batches.

    With --once or --json the exit code is the verdict: 0 OK, 10 LAGGING, 11 STALLED, 12 STOPPED,
    13 REWOUND, 14 LATE, 15 FUTURE.
    """

    work = "dedup.cli.watch:watch"
    example = "dedup watch unique"

    where: Annotated[
        str,
        argument(
            "DIR|URL",
            "DedupListener(log=DIR), the OUTPUT of `dedup run`, or where "
            "DedupListener(prometheus_port=...) serves.",
        ),
    ]
    query: Annotated[str | None, option("ID", "Which query, by ID or name.")] = None
    once: Annotated[bool, switch("Look once and leave.", "--once")] = False
    every: Annotated[float, option("SECONDS", "How often to look.", least=0.1, most=86_400)] = 2.0


def pairs(texts: Iterable[str] | None, flag: str) -> dict[str, str]:
    """Return the settings in texts ``KEY=VALUE``.

    Raises ConfigError for any other text, without its value, which may be a secret.
    """
    settings = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not (key.strip() and equals):
            name = re.match(r"[\w.-]*=?", text)
            raise ConfigError(f"{flag} {name and name[0]} is not KEY=VALUE.")
        settings[key.strip()] = value
    return settings


def read_properties(where: str, flag: str) -> dict[str, str]:
    """Return the settings in a file of properties, which Java's and Spark's tools share.

    Raises ConfigError if the file cannot be read, or for the first line that is not a property,
    by its number: the line may hold a secret.
    """
    path = home_path(where)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigError(f"{flag} {where} cannot be read: {reason}.") from None
    settings = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip()[0] in "#!":
            continue
        match = _PROPERTY.fullmatch(line)
        if match is None:
            raise ConfigError(f"{flag} {where}, line {number}: it is not KEY VALUE.")
        settings[match[1]] = match[2]
    return settings
