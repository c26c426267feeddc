"""The options of `dedup run`: checked without Spark, frozen, and kept as JSON beside the output."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dedup.cli.run.folders import METRICS, check_folders, local_folder
from dedup.core.option import Option, choice, number, whole
from dedup.errors import ConfigError
from dedup.spark.driver.file_order import ORDERS
from dedup.spark.machine import home_path, machine_cores
from dedup.spark.options import BY_ID

#: Formats in which each file tells its own columns, as people write them.
COLUMNAR = {"parquet": "Parquet", "orc": "ORC"}
OUTPUT_FORMATS = ("csv", "json", "parquet")
FORMATS = (*OUTPUT_FORMATS, "orc")

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
    "guarantee",
    "check_payload",
    "conflicts",
    "null_ids",
    "null_timestamps",
    "bad_records",
    "new_columns",
    "duplicates",
    "verdict",
)
_OF_OPERATOR = (
    "horizon", "lateness", "late", "max_future", "idle_timeout", "guarantee", "conflicts",
    "null_ids", "null_timestamps", "shards", "buckets", "fpr", "state_budget_bytes", "keep_expired",
)  # fmt: skip
#: Declarations by name of the field.
OPTIONS = {
    **{name: BY_ID[name] for name in _OF_OPERATOR},
    "file_format": Option("format", choice(*FORMATS)),
    "output_format": Option("output_format", choice(*OUTPUT_FORMATS)),
    "order_files": Option("order_files", choice(*ORDERS)),
    "new_columns": Option("new_columns", choice("error", "ignore", "add")),
    "parquet": Option("parquet", choice("auto", "spark")),
    "files_per_trigger": Option("files_per_trigger", whole()),
    "max_late": Option("max_late", number(lambda share: 0 <= share <= 100, "from 0 to 100")),
}
#: What someone may write who has `skip` in mind.
_NO_FOLDERS = ("drop", "ignore", "emit", "fail", "true", "false")
_MEMORY = re.compile(r"\d+[kmgt]", re.IGNORECASE)
_MASTER = re.compile(r"local(?:\[([1-9]\d*|\*)(?:,\d+)?\])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Everything that `dedup run` was asked for.

    The fields are the flags, which `RunFlags` explains, with paths made absolute; but

    Parameters
    ----------
    file_format : str or None
        The flag ``--format``.
    read_options : tuple of (str, str)
        Those of ``--read-option``, by their names.
    bad_records : str
        ``error``, ``skip``, or the folder of rows that cannot be read.

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
    max_late: float = 1.0
    null_ids: str = "emit"
    null_timestamps: str = "error"
    source_partition: tuple[str, ...] = ()
    stable_timestamps: bool = False
    max_future: str | None = None
    idle_timeout: str | None = None
    order_by: tuple[str, ...] = ()
    guarantee: str = "exactly-once"
    check_payload: tuple[str, ...] = ()
    conflicts: str = "drop"
    bad_records: str = "error"
    duplicates: Path | None = None
    verdict: str | None = None
    catalog: Path
    checkpoint: Path
    log: Path
    prometheus_port: int | None = None
    prometheus_address: str = "127.0.0.1"
    files_per_trigger: int = 10
    order_files: str = "time"
    shards: int | None = None
    buckets: int | None = None
    fpr: float | None = None
    state_budget_bytes: int | None = None
    keep_expired: str | None = None
    master: str = "local[*]"
    driver_memory: str = "2g"
    output_format: str | None = None
    new_columns: str = "error"
    parquet: str = "auto"
    moved_from: Path | None = None

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
        moved_from: str | Path | None = None,
        **options: Any,
    ) -> RunOptions:
        """Options with absolute paths and the default folders below the output, checked."""
        out = local_folder("--output", output)
        checked = cls(
            input=local_folder("INPUT", input),
            output=out,
            catalog=local_folder("--catalog", catalog or out / "_catalog"),
            checkpoint=local_folder("--checkpoint", checkpoint or out / "_checkpoint"),
            duplicates=local_folder("--duplicates", duplicates) if duplicates else None,
            bad_records=bad_records
            if bad_records in ("error", "skip")
            else str(local_folder("--bad-records", bad_records)),
            log=local_folder("--log", log or out / METRICS),
            # Not resolved: a link to the new place may be there by now.
            moved_from=home_path(moved_from).absolute() if moved_from else None,
            **options,
        )
        checked.check()
        return checked

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
        folders = {
            "--catalog": self.catalog,
            "--checkpoint": self.checkpoint,
            "--duplicates": self.duplicates,
            "--bad-records": self.aside,
            "--log": self.log,
        }
        others = {option: path for option, path in folders.items() if path is not None}
        check_folders(self.input, self.output, others)

    def _check_choices(self) -> None:
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            option.check_flag(None if (name, value) == ("idle_timeout", "never") else value)
        if self.conflicts != "drop" and not self.check_payload:
            raise ConfigError(
                f"--conflicts {self.conflicts} has no meaning without --check-payload; name the "
                "columns to compare."
            )
        if self.check_payload and self.guarantee != "exactly-once":
            raise ConfigError(
                f"--guarantee {self.guarantee} and --check-payload contradict each other: what "
                "copies are compared with is in the catalog, which is not asked then. Leave one "
                "of them out."
            )
        if self.schema is not None and self.infer:
            raise ConfigError("--schema and --infer contradict each other; give one of them.")
        if self.schema is not None and not self.schema.strip():
            raise ConfigError("--schema is empty; give columns such as 'id STRING, amount INT'.")
        if self.aside is not None and self.aside.name in _NO_FOLDERS:
            raise ConfigError(
                f"--bad-records {self.aside.name} is not one of error, skip; a folder needs "
                "another name."
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

    def fixed(self) -> dict[str, Any]:
        """Return what a later run into the same output must repeat."""
        values = self.to_json()
        return {name: values[name] for name in FIXED}

    def rules(self) -> dict[str, Any]:
        """Return what a later run may change, but not between a micro-batch and its replay."""
        values = self.to_json()
        return {name: values[name] for name in RULES}

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {name: _plain(name, value) for name, value in dataclasses.asdict(self).items()}


def output_format_of(file_format: str) -> str:
    """Return the format of the output where none is given."""
    return file_format if file_format in OUTPUT_FORMATS else "parquet"


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
