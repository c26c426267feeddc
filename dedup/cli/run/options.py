"""The options of `dedup run`: checked without Spark, frozen, and kept as JSON beside the output."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dedup.cli.run.folders import METRICS, check_folders, local_folder
from dedup.core.duration import duration_ms
from dedup.errors import ConfigError
from dedup.machine import machine_cores

#: Column that tells the side output's rows apart; readers skip names that begin with "_".
VERDICT = "dedup_verdict"
FORMATS = ("csv", "json", "parquet")

#: Options that decide which rows are the same, or how the folder reads: a later run keeps them.
FIXED = (
    "input",
    "id",
    "file_format",
    "schema",
    "infer",
    "read_options",
    "timestamp",
    "timestamp_format",
    "stable_timestamps",
    "output_format",
    "catalog",
    "checkpoint",
)
#: Options that decide what becomes of a record; a later run may change them.
RULES = (
    "horizon",
    "lateness",
    "late",
    "source_partition",
    "idle_timeout",
    "max_future",
    "order_by",
    "null_ids",
    "null_timestamps",
    "bad_records",
    "new_columns",
    "duplicates",
    "verdict",
)
#: What someone may write who has `skip` in mind.
_NO_FOLDERS = ("drop", "ignore", "emit", "fail", "true", "false")
_MEMORY = re.compile(r"\d+[kmgt]", re.IGNORECASE)
_MASTER = re.compile(r"local(?:\[(\d+|\*)(?:,\d+)?\])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Everything that `dedup run` was asked for.

    Parameters
    ----------
    input : Path
        Folder of files (read with its subfolders), or one file.
    id : tuple of str
        ID columns, at least one.
    horizon : str
        Duration, as Spark writes them.
    output : Path
        Folder of the unique rows.
    file_format : str or None
        ``csv``, ``json`` or ``parquet``; None: guess from the names in `input`.
    schema : str or None
        DDL of the columns.
    infer : bool
        CSV only: let Spark guess types; otherwise every column is a string.
    read_options : tuple of (str, str)
        Options for Spark's reader, over the defaults.
    timestamp, timestamp_format : str or None
        Event-time column, and the Spark pattern to parse it with; for numbers ``seconds`` or
        ``milliseconds``, since 1970.
    lateness : str or None
        Duration; None: the operator's default.
    late, null_ids, null_timestamps : str
        Policies of the operator.
    source_partition, order_by : tuple of str
        Columns that identify a clock, and that order copies inside one micro-batch.
    stable_timestamps : bool
        Every copy of a record carries the same timestamp.
    max_future, idle_timeout : str or None
        Durations; None: the operator's defaults. An `idle_timeout` of ``never`` is none at all.
    bad_records : str
        ``error``, ``skip``, or the folder of rows that cannot be read.
    duplicates : Path or None
        Folder of the side output.
    verdict : str or None
        Column to add; then every row goes on.
    catalog, checkpoint : Path
        Folders of the operator and of Spark.
    files_per_trigger : int
        Files a micro-batch, >= 1.
    shards : int or None
        None: as many as cores, or as the run before.
    buckets, fpr, state_budget_bytes, keep_expired
        Sizing of the operator; None: its default.
    master, driver_memory : str
        Spark's; one machine only.
    output_format : str or None
        None: as the input.
    log : Path
        Folder of the metrics log.
    prometheus_port : int or None
        Where the metrics are served; 0: any port that is free.
    new_columns : str
        What becomes of columns that the output does not know: ``error``, ``ignore`` or ``add``.

    Raises
    ------
    ConfigError
        From `check`: the first option that cannot work, with its value and what to change.
    """

    input: Path
    id: tuple[str, ...]
    horizon: str
    output: Path
    file_format: str | None = None
    schema: str | None = None
    infer: bool = False
    read_options: tuple[tuple[str, str], ...] = ()
    timestamp: str | None = None
    timestamp_format: str | None = None
    lateness: str | None = None
    late: str = "emit"
    null_ids: str = "emit"
    null_timestamps: str = "error"
    source_partition: tuple[str, ...] = ()
    stable_timestamps: bool = False
    max_future: str | None = None
    idle_timeout: str | None = None
    order_by: tuple[str, ...] = ()
    bad_records: str = "error"
    duplicates: Path | None = None
    verdict: str | None = None
    catalog: Path
    checkpoint: Path
    log: Path
    prometheus_port: int | None = None
    files_per_trigger: int = 10
    shards: int | None = None
    buckets: int | None = None
    fpr: float | None = None
    state_budget_bytes: int | None = None
    keep_expired: str | None = None
    master: str = "local[*]"
    driver_memory: str = "2g"
    output_format: str | None = None
    new_columns: str = "error"

    @classmethod
    def make(
        cls,
        *,
        input: str | Path,  # noqa: A002
        output: str | Path,
        catalog: str | Path | None = None,
        checkpoint: str | Path | None = None,
        duplicates: str | Path | None = None,
        bad_records: str = "error",
        log: str | Path | None = None,
        **options: Any,
    ) -> RunOptions:
        """Options with absolute paths and the default folders below the output, checked."""
        out = local_folder("--output", output)
        made = cls(
            input=local_folder("INPUT", input),
            output=out,
            catalog=local_folder("--catalog", catalog or out / "_catalog"),
            checkpoint=local_folder("--checkpoint", checkpoint or out / "_checkpoint"),
            duplicates=local_folder("--duplicates", duplicates) if duplicates else None,
            bad_records=bad_records
            if bad_records in ("error", "skip")
            else str(local_folder("--bad-records", bad_records)),
            log=local_folder("--log", log or out / METRICS),
            **options,
        )
        made.check()
        return made

    @property
    def aside(self) -> Path | None:
        """Folder of the rows that cannot be read, if they are kept."""
        return None if self.bad_records in ("error", "skip") else Path(self.bad_records)

    @property
    def cores(self) -> int:
        """Cores that `master` stands for."""
        match = _MASTER.fullmatch(self.master)
        count = match.group(1) if match else None
        if count == "*":
            return machine_cores()
        return int(count or 1)

    def check(self) -> None:
        """Refuse what cannot work, before Spark starts."""
        if not self.input.exists():
            raise ConfigError(f"INPUT {self.input} does not exist.")
        if not self.id or any(not name for name in self.id):
            raise ConfigError("--id needs the name of a column.")
        repeated = sorted({name for name in self.id if self.id.count(name) > 1})
        if repeated:
            raise ConfigError(f"--id {repeated[0]} is given twice; name each column once.")
        self._check_choices()
        self._check_times()
        self._check_numbers()
        check_folders(self)

    def _check_choices(self) -> None:
        for option, value, allowed in (
            ("--format", self.file_format, (None, *FORMATS)),
            ("--output-format", self.output_format, (None, *FORMATS)),
            ("--late", self.late, ("emit", "drop")),
            ("--null-ids", self.null_ids, ("emit", "drop", "error")),
            ("--null-timestamps", self.null_timestamps, ("error", "now", "drop", "emit")),
            ("--new-columns", self.new_columns, ("error", "ignore", "add")),
        ):
            if value not in allowed:
                names = ", ".join(name for name in allowed if name)
                raise ConfigError(f"{option} {value} is not one of {names}.")
        if self.schema is not None and self.infer:
            raise ConfigError("--schema and --infer contradict each other; give one of them.")
        if self.schema is not None and not self.schema.strip():
            raise ConfigError("--schema is empty; give columns such as 'id STRING, amount INT'.")
        if self.aside is not None and self.aside.name in _NO_FOLDERS:
            raise ConfigError(
                f"--bad-records {self.aside.name} is not one of error, skip; a folder needs "
                "another name."
            )
        if self.bad_records != "error" and any(n.lower() == "mode" for n, _ in self.read_options):
            raise ConfigError(
                f"--bad-records {self.bad_records} and --read-option mode=... contradict each "
                "other; give one of them."
            )
        if self.verdict is not None and self.duplicates is not None:
            raise ConfigError(
                "--verdict lets every row go on, so that --duplicates would have none; give one of "
                "them."
            )
        if self.verdict is not None and self.verdict.lower() in ("", "batch"):
            raise ConfigError(f"--verdict {self.verdict!r} cannot be the name of a column here.")
        if not _MASTER.fullmatch(self.master):
            raise ConfigError(
                f"--master {self.master} is not a local one: `dedup run` works on one machine, "
                "give local[N] or local[*]. On a cluster, use dedup_by_id in a job of your own."
            )
        if not _MEMORY.fullmatch(self.driver_memory):
            raise ConfigError(f"--driver-memory {self.driver_memory} is not a size such as 2g.")

    def _check_times(self) -> None:
        if duration_ms(self.horizon, option="--horizon") < 1:
            raise ConfigError(f"--horizon {self.horizon} is no time at all; give 1 ms or more.")
        if self.keep_expired is not None:
            duration_ms(self.keep_expired, option="--keep-expired")
        if self.lateness is not None:
            duration_ms(self.lateness, option="--lateness")
        if self.max_future is not None:
            duration_ms(self.max_future, option="--max-future")
        if self.idle_timeout not in (None, "never"):
            duration_ms(self.idle_timeout, option="--idle-timeout")
        if self.timestamp is not None:
            return
        for option, value in (
            ("--timestamp-format", self.timestamp_format),
            ("--lateness", self.lateness),
            ("--late drop", "drop" if self.late == "drop" else None),
            ("--source-partition", self.source_partition or None),
            ("--stable-timestamps", self.stable_timestamps or None),
            ("--max-future", self.max_future),
            ("--idle-timeout", self.idle_timeout),
            ("--null-timestamps", None if self.null_timestamps == "error" else "..."),
        ):
            if value is not None:
                raise ConfigError(f"{option} has no meaning without --timestamp; name the column.")

    def _check_numbers(self) -> None:
        for option, value in (
            ("--files-per-trigger", self.files_per_trigger),
            ("--shards", self.shards),
            ("--buckets", self.buckets),
            ("--state-budget-bytes", self.state_budget_bytes),
        ):
            if value is not None and value < 1:
                raise ConfigError(f"{option} {value} is below 1.")
        if self.fpr is not None and not 0 < self.fpr < 1:
            raise ConfigError(f"--fpr {self.fpr} does not lie between 0 and 1.")

    def fixed(self) -> dict[str, Any]:
        """Return what a later run into the same output must repeat."""
        whole = self.to_json()
        return {name: whole[name] for name in FIXED}

    def rules(self) -> dict[str, Any]:
        """Return what a later run may change, but not between a micro-batch and its replay."""
        whole = self.to_json()
        return {name: whole[name] for name in RULES}

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` gives an equal object back."""
        return {name: _plain(name, value) for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def from_json(cls, whole: Mapping[str, Any]) -> RunOptions:
        """Read what `to_json` wrote; an unknown name is a ConfigError."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(whole) - known)
        if unknown:
            raise ConfigError(
                f"Unknown option {unknown[0]!r}; known are {', '.join(sorted(known))}."
            )
        values = dict(whole)
        for name in ("input", "output", "catalog", "checkpoint", "duplicates", "log"):
            if values.get(name) is not None:
                values[name] = Path(values[name])
        for name in ("id", "source_partition", "order_by"):
            values[name] = tuple(values.get(name, ()))
        values["read_options"] = tuple(sorted(values.get("read_options", {}).items()))
        return cls(**values)


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if name == "read_options":
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


#: What an option was before there was one: records of earlier releases do not have it.
DEFAULTS = {
    option.name: _plain(option.name, option.default)
    for option in dataclasses.fields(RunOptions)
    if option.default is not dataclasses.MISSING
}
