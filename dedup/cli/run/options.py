"""Declare and check the options of `dedup run`. The output keeps some of them as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from functools import partial
from inspect import Parameter
from itertools import combinations
from pathlib import Path
from typing import Any, Self, get_origin, get_type_hints

from typer.models import ArgumentInfo

from dedup.cli.commands import argument, option, parameter, switch
from dedup.cli.flags import (
    QuietFlags,
    format_flag,
    infer_flag,
    operator_option,
    order_files_flag,
    pairs,
    read_option_flag,
    timestamp_format_flag,
)
from dedup.errors import ConfigError
from dedup.sinks.output_owner import list_keeper
from dedup.sources.files.file_order import ORDERS
from dedup.spark.machine import home_path, local_cores
from dedup.spark.options import BY_ID
from dedup.storage.uri import scheme_of
from dedup.values.option import choice, number, text, whole

#: Folder in the output that holds the metrics log, which `dedup watch OUTPUT` reads.
METRICS = "_metrics"
_OWN_FOLDERS = ("_staging", "_lock", "_dedup.json", "_dedup.log", "_dedup.files")
#: Formats whose files hold their columns and types, with the name for messages.
COLUMNAR = {"parquet": "Parquet", "orc": "ORC"}
_OUTPUT_FORMATS = ("csv", "json", "parquet")
#: Words that a user may give by mistake instead of `skip`. They cannot be names of folders.
_NO_FOLDERS = ("drop", "ignore", "emit", "fail", "true", "false")
#: Panels of the help screen.
_INPUT, _TIME, _OUTPUT = "Input", "Time", "Output"
_SIZING, _WATCHING, _SPARK = "Sizing", "Watching", "Spark"
#: Which options a later run may change. A *fixed* option decides which rows are equal or how the
#: folder is read, and every run must repeat it. A *rule* decides what happens to a record. A run
#: may change a rule, but not between a micro-batch and its replay. Other options may always change.
_FIXED, _RULE = "fixed", "rule"
_TIMED_RULE: dict[str, Any] = {"panel": _TIME, "kept": _RULE, "timed": True}
_OUTPUT_RULE: dict[str, Any] = {"panel": _OUTPUT, "kept": _RULE}


def _operators(name: str, default: Any = None, **more: Any) -> Any:
    """Declare an option of `dedup_by_id`. Without `default`, help shows the operator's default."""
    declared = BY_ID[name]
    usual = None if default is not None else declared.default
    note = "" if usual is None else f" Default: {usual}."
    return operator_option(
        name, note, default=default, kind=declared.kind, for_operator=True, **more
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of `dedup run`, with absolute paths. Create them with `make`, which checks them.

    The metadata of a field holds ``kept`` (fixed or rule), the ``kind`` that checks the value, and
    ``timed`` if the option has no meaning without ``--timestamp``. ``bad_records`` is ``error``,
    ``skip``, or the folder for rows that cannot be read.
    """

    input: Path = argument("INPUT", "Folder of files, or one file.", kept=_FIXED)
    moved_from: Path | None = option(
        "OLD", "INPUT was OLD before, and holds the same files: take only new ones.", panel=_INPUT
    )
    id: tuple[str, ...] = operator_option("id", " Repeat the flag.", default=MISSING, kept=_FIXED)
    horizon: str = _operators("horizon", MISSING, kept=_RULE)
    output: Path = option("DIR", "Folder of the unique rows.", default=MISSING)
    file_format: str | None = format_flag(
        panel=_INPUT, kept=_FIXED, kind=choice(*_OUTPUT_FORMATS, "orc")
    )
    schema: str | None = option(
        "DDL",
        "Columns: 'id STRING, amount INT'. May add some later.",
        panel=_INPUT,
        kept=_FIXED,
        kind=text(r"(?s).*\S.*", "name columns such as 'id STRING, amount INT'."),
    )
    infer: bool = infer_flag(panel=_INPUT, kept=_FIXED)
    read_options: tuple[tuple[str, str], ...] = read_option_flag(
        default=(), panel=_INPUT, kept=_FIXED
    )
    new_columns: str = option(
        "error|ignore|add",
        "Columns of later files that the output lacks.",
        default="error",
        panel=_INPUT,
        kept=_RULE,
        kind=choice("error", "ignore", "add"),
    )
    bad_records: str = option(
        "error|skip|DIR",
        "Rows that cannot be read: stop, leave them out, or set them aside in DIR.",
        default="error",
        panel=_INPUT,
        kept=_RULE,
    )
    null_ids: str = _operators("null_ids", "emit", panel=_INPUT, kept=_RULE)
    files_per_trigger: int | None = option(
        "N",
        "Files a micro-batch. Default: 256 MiB of text a core, 64 MiB if packed.",
        panel=_INPUT,
        kind=whole(),
    )
    order_files: str = order_files_flag(panel=_INPUT, kind=choice(*ORDERS))
    timestamp: str | None = option(
        "COL",
        "Event time, by which the horizon is measured. Default: the run's own clock.",
        panel=_TIME,
        kept=_FIXED,
    )
    timestamp_format: str | None = timestamp_format_flag(panel=_TIME, kept=_FIXED, timed=True)
    null_timestamps: str = _operators("null_timestamps", "error", **_TIMED_RULE)
    source_partition: tuple[str, ...] = option(
        "COL",
        "Column that tells clocks apart, such as a producer; repeat for several.",
        default=(),
        **_TIMED_RULE,
    )
    lateness: str | None = _operators("lateness", **_TIMED_RULE)
    late: str = _operators("late", "emit", **_TIMED_RULE)
    max_late: float = option(
        "PERCENT",
        "With --late drop, stop when more of the run's records are late.",
        default=1.0,
        panel=_TIME,
        kind=number(lambda share: 0 <= share <= 100, "from 0 to 100"),
    )
    stable_timestamps: bool = _operators(
        "stable_timestamps", False, panel=_TIME, kept=_FIXED, timed=True
    )
    max_future: str | None = _operators("max_future", **_TIMED_RULE)
    idle_timeout: str | None = _operators("idle_timeout", **_TIMED_RULE)
    order_by: tuple[str, ...] = option(
        "COL",
        "Of copies in one micro-batch with one timestamp, keep the smallest COL.",
        default=(),
        **_OUTPUT_RULE,
    )
    guarantee: str = _operators("guarantee", "exactly-once", **_OUTPUT_RULE)
    check_payload: tuple[str, ...] = option(
        "COL",
        "Column in which copies may not differ: one that does is a conflict.",
        default=(),
        **_OUTPUT_RULE,
    )
    conflicts: str = _operators("conflicts", "drop", **_OUTPUT_RULE)
    duplicates: Path | None = option("DIR", "Folder of the rows that are left out.", **_OUTPUT_RULE)
    verdict: str | None = option(
        "COL",
        "Add a column with each row's verdict, and emit every row.",
        kind=text("(?i)(?!batch$).+", "be the name of a column other than batch."),
        **_OUTPUT_RULE,
    )
    output_format: str | None = option(
        "FMT",
        "csv, json or parquet; else as the input, and parquet for orc.",
        panel=_OUTPUT,
        kept=_FIXED,
        kind=choice(*_OUTPUT_FORMATS),
    )
    catalog: Path = option("DIR", "Default: OUTPUT/_catalog.", panel=_OUTPUT, kept=_FIXED)
    checkpoint: Path = option("DIR", "Default: OUTPUT/_checkpoint.", panel=_OUTPUT, kept=_FIXED)
    shards: int | None = option(
        "N", "Default: as many as cores. Permanent.", panel=_SIZING, kind=whole()
    )
    bucket_length: str | None = _operators("bucket_length", panel=_SIZING)
    fpr: float | None = _operators("fpr", panel=_SIZING)
    state_budget_bytes: str | None = _operators("state_budget_bytes", panel=_SIZING)
    filter_state_bytes: str | None = _operators("filter_state_bytes", panel=_SIZING)
    keep_expired: str | None = _operators("keep_expired", panel=_SIZING)
    log: Path = option(
        "DIR",
        "Metrics log. Default: OUTPUT/_metrics, which `dedup watch OUTPUT` follows.",
        panel=_WATCHING,
    )
    prometheus_port: int | None = option(
        "PORT",
        "Serve the metrics to Prometheus during the run.",
        panel=_WATCHING,
        kind=whole(0, 65_535),
    )
    prometheus_address: str = option(
        "HOST",
        "Where: 0.0.0.0 for all networks of this machine.",
        default="127.0.0.1",
        panel=_WATCHING,
    )
    parquet: str = option(
        "auto|spark",
        "Who reads and writes Parquet: dedup if it can, faster, or Spark.",
        default="auto",
        panel=_SPARK,
        kind=choice("auto", "spark"),
    )
    master: str = option("local[N]", "Cores to use.", default="local[*]", panel=_SPARK)
    driver_memory: str = option(
        "SIZE",
        "Memory of the JVM.",
        default="2g",
        panel=_SPARK,
        kind=text(r"(?i)\d+[kmgt]", "be a size such as 2g."),
    )

    @classmethod
    def make(cls, **options: Any) -> Self:
        """Return checked options. Folders may be text. By default they are in the output folder.

        Raises ConfigError for the first option that cannot work. The error says what to change.
        """
        out = options["output"] = local_folder("--output", options["output"])
        defaults = {"catalog": out / "_catalog", "checkpoint": out / "_checkpoint"}
        for name, default in {**defaults, "log": out / METRICS, "duplicates": None}.items():
            place = options.get(name) or default
            options[name] = None if place is None else local_folder(flag(name), place)
        options["input"] = local_folder("INPUT", options["input"])
        if (aside := options.get("bad_records", "error")) not in ("error", "skip"):
            options["bad_records"] = str(local_folder("--bad-records", aside))
        if moved_from := options.get("moved_from"):
            # Do not resolve this path, because a link to the new place may have replaced it.
            options["moved_from"] = home_path(moved_from).absolute()
        made = cls(**options)
        made._check()
        return made

    @property
    def aside(self) -> Path | None:
        """Folder for rows that cannot be read, or None if the run does not keep these rows."""
        return None if self.bad_records in ("error", "skip") else Path(self.bad_records)

    @property
    def cores(self) -> int:
        return local_cores(self.master) or 1

    def fixed(self) -> dict[str, Any]:
        """Return the options that a later run into the same output must repeat."""
        return self._kept(_FIXED)

    def rules(self) -> dict[str, Any]:
        """Return the options that may change, but not between a micro-batch and its replay."""
        return self._kept(_RULE)

    def _kept(self, kept: str) -> dict[str, Any]:
        kept_names = {name for name, each in OPTIONS.items() if each.metadata.get("kept") == kept}
        return {name: value for name, value in self.to_json().items() if name in kept_names}

    def for_operator(self) -> dict[str, Any]:
        """Return the given options that go to `dedup_by_id` unchanged."""
        taken = [name for name, each in OPTIONS.items() if "for_operator" in each.metadata]
        return {name: value for name in taken if (value := getattr(self, name)) is not None}

    def to_json(self) -> dict[str, Any]:
        return {name: _plain(name, value) for name, value in asdict(self).items()}

    def _check(self) -> None:
        if not self.input.exists():
            raise ConfigError(f"INPUT {self.input} does not exist.")
        if len(set(self.id)) < len(self.id):
            # If the user meant another column, rows that differ only in that column would be lost.
            raise ConfigError(f"--id names a column twice: {', '.join(self.id)}.")
        for name, each in OPTIONS.items():
            value, kind = getattr(self, name), each.metadata.get("kind")
            if kind is not None and value is not None:
                kind.check(value, flag(name))
            if "timed" in each.metadata and self.timestamp is None and value != each.default:
                shown = f"{flag(name)} drop" if name == "late" else flag(name)
                raise ConfigError(f"{shown} has no meaning without --timestamp; name the column.")
        # The operator makes the next two checks as well, but only after Spark has started.
        if self.conflicts != "drop" and not self.check_payload:
            raise ConfigError(
                f"--conflicts {self.conflicts} has no meaning without --check-payload; name the "
                "columns to compare."
            )
        if self.check_payload and self.guarantee != "exactly-once":
            raise ConfigError(
                f"--guarantee {self.guarantee} does not read the catalog, which holds the payloads "
                "to compare with. Leave out --check-payload or --guarantee."
            )
        if self.aside is not None and self.aside.name in _NO_FOLDERS:
            raise ConfigError(
                f"--bad-records {self.aside.name} is not one of error, skip; a folder needs "
                "another name."
            )
        if self.schema is not None and self.infer:
            raise ConfigError("--schema and --infer contradict each other; give one of them.")
        if self.verdict is not None and self.duplicates is not None:
            raise ConfigError(
                "--verdict emits every row, so --duplicates would get none; give one of them."
            )
        if not local_cores(self.master):
            raise ConfigError(
                f"--master {self.master} is not a local one: `dedup run` works on one machine, "
                "give local[N] or local[*]. On a cluster, use dedup_by_id in your own job."
            )
        folders = {
            "--catalog": self.catalog,
            "--checkpoint": self.checkpoint,
            "--duplicates": self.duplicates,
            "--bad-records": self.aside,
            "--log": self.log,
        }
        others = {name: path for name, path in folders.items() if path is not None}
        _check_folders(self.input, self.output, others)


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if name == "read_options":
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


#: Fields of `RunOptions` by name.
OPTIONS = {each.name: each for each in fields(RunOptions)}
#: Values of options that are missing in the record of an earlier release.
DEFAULTS = {
    name: _plain(name, each.default)
    for name, each in OPTIONS.items()
    if each.default is not MISSING
}


def flag(name: str) -> str:
    """Return how a user gives an option, such as ``--late``."""
    shown = OPTIONS[name].metadata["shown"]
    if isinstance(shown, ArgumentInfo):
        return str(shown.metavar)
    return next(iter(shown.param_decls or ()), f"--{name.replace('_', '-')}")


@dataclass(frozen=True, kw_only=True)
class RunFlags(QuietFlags):
    """De-duplicate a folder of files; run again, it takes only the files that are new.

    Each micro-batch appears in DIR/batch=<id>/ whole or not at all.
    """

    work = "dedup.cli.run.command:run"
    example = "dedup run events --id order_id --horizon '7 days' --output unique"

    options: RunOptions
    dry_run: bool = switch("Check everything, print the plan, take no rows.", "--dry-run")

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        given = {name: values.pop(name) for name in OPTIONS}
        for name, value in given.items():
            if OPTIONS[name].default == () or name == "id":
                given[name] = tuple(value or ())
        read = pairs(given["read_options"], "--read-option")
        given["read_options"] = tuple(sorted(read.items()))
        return cls(options=RunOptions.make(**given), **values)

    @classmethod
    def parameters(cls) -> Iterator[Parameter]:
        """Yield the parameters of the run's options, then the parameters of the command's flags."""
        hints = get_type_hints(RunOptions)
        for name, each in OPTIONS.items():
            kind, default = hints[name], each.default
            if get_origin(kind) is tuple:
                kind, default = list[str], default or None
            elif kind in (Path, Path | None):
                kind = str
            yield parameter(name, kind, each.metadata["shown"], default)
        yield from super().parameters()


def local_folder(option: str, value: str | Path) -> Path:
    """Return an absolute path, or raise ConfigError for the URI of another storage."""
    text = str(value)
    if not text:
        raise ConfigError(f"{option} is empty; give a folder.")
    scheme = scheme_of(text)
    # A `Path` of s3://bucket has lost a slash.
    if scheme is not None and (text.startswith(f"{scheme}:/") or not Path(text).exists()):
        raise ConfigError(
            f"{option} {text} is a URI, but a folder on this machine is needed: give its path, "
            "which must begin with a slash if its name has a colon."
        )
    return home_path(text).resolve()


def _check_folders(source: Path, output: Path, others: Mapping[str, Path]) -> None:
    places = {"--output": output, **others}
    for name, path in places.items():
        existing = next(place for place in (path, *path.parents) if place.exists())
        if not existing.is_dir():
            raise ConfigError(f"{name} {existing} is a file; give a folder.")
        owner = list_keeper(partial(_has_folder, path))
        if owner is not None:
            raise ConfigError(
                f"{name} {path} belongs to {owner}, whose readers would not see what a run writes; "
                "give another folder."
            )
        if path.is_relative_to(source):
            raise ConfigError(
                f"{name} {path} is in INPUT {source}, so the next run would read what this one "
                "wrote; give a folder elsewhere."
            )
    if source.is_relative_to(output):
        raise ConfigError(
            f"INPUT {source} is in --output {output}, where readers of the output would find it; "
            "give a folder elsewhere."
        )
    for name, path in others.items():
        # Readers of the output also read folders inside it, except those named with an underscore.
        first = path.relative_to(output).parts[:1] if path.is_relative_to(output) else ()
        if first and not first[0].startswith("_"):
            raise ConfigError(
                f"{name} {path} is in --output {output}, where readers would find it; give a "
                "folder elsewhere, or one whose name begins with an underscore."
            )
        if first and first[0] in _OWN_FOLDERS:
            raise ConfigError(
                f"{name} {path}: {first[0]} is used by `dedup run`; choose another name."
            )
    for (one, a), (other, b) in combinations(places.items(), 2):
        if a == b or (a.is_relative_to(b) and b != output) or (b.is_relative_to(a) and a != output):
            raise ConfigError(f"{one} {a} and {other} {b} overlap; give each its own folder.")


def _has_folder(path: Path, name: str) -> bool:
    return (path / name).is_dir()
