"""The options of `dedup run`: checked without Spark, frozen, and kept as JSON beside the output."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    "output_format",
    "catalog",
    "checkpoint",
)
#: Options that decide what becomes of a record; a later run may change them.
RULES = ("horizon", "lateness", "late", "null_ids", "duplicates")
_MEMORY = re.compile(r"\d+[kmgt]", re.IGNORECASE)
_MASTER = re.compile(r"local(?:\[(\d+|\*)(?:,\d+)?\])?")
_OWN_FOLDERS = ("_staging", "_lock", "_dedup.json", "_dedup.log")


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
        Event-time column, and the Spark pattern to parse it with.
    lateness : str or None
        Duration; None: the operator's default.
    late, null_ids : str
        Policies of the operator.
    duplicates : Path or None
        Folder of the side output.
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
    duplicates: Path | None = None
    catalog: Path
    checkpoint: Path
    files_per_trigger: int = 10
    shards: int | None = None
    buckets: int | None = None
    fpr: float | None = None
    state_budget_bytes: int | None = None
    keep_expired: str | None = None
    master: str = "local[*]"
    driver_memory: str = "2g"
    output_format: str | None = None

    @classmethod
    def make(
        cls,
        *,
        input: str | Path,  # noqa: A002
        output: str | Path,
        catalog: str | Path | None = None,
        checkpoint: str | Path | None = None,
        duplicates: str | Path | None = None,
        **options: Any,
    ) -> RunOptions:
        """Options with absolute paths and the default folders below the output, checked."""
        out = _folder("--output", output)
        made = cls(
            input=_folder("INPUT", input),
            output=out,
            catalog=_folder("--catalog", catalog or out / "_catalog"),
            checkpoint=_folder("--checkpoint", checkpoint or out / "_checkpoint"),
            duplicates=_folder("--duplicates", duplicates) if duplicates else None,
            **options,
        )
        made.check()
        return made

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
        self._check_folders()

    def _check_choices(self) -> None:
        for option, value, allowed in (
            ("--format", self.file_format, (None, *FORMATS)),
            ("--output-format", self.output_format, (None, *FORMATS)),
            ("--late", self.late, ("emit", "drop")),
            ("--null-ids", self.null_ids, ("emit", "drop", "error")),
        ):
            if value not in allowed:
                names = ", ".join(name for name in allowed if name)
                raise ConfigError(f"{option} {value} is not one of {names}.")
        if self.schema is not None and self.infer:
            raise ConfigError("--schema and --infer contradict each other; give one of them.")
        if self.schema is not None and not self.schema.strip():
            raise ConfigError("--schema is empty; give columns such as 'id STRING, amount INT'.")
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
        if self.timestamp is not None:
            return
        for option, value in (
            ("--timestamp-format", self.timestamp_format),
            ("--lateness", self.lateness),
            ("--late drop", "drop" if self.late == "drop" else None),
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

    def _check_folders(self) -> None:
        places = {
            "--output": self.output,
            "--catalog": self.catalog,
            "--checkpoint": self.checkpoint,
        }
        if self.duplicates is not None:
            places["--duplicates"] = self.duplicates
        for option, path in places.items():
            if path.exists() and not path.is_dir():
                raise ConfigError(f"{option} {path} is a file; give a folder.")
            if path.is_relative_to(self.input):
                raise ConfigError(
                    f"{option} {path} lies in INPUT {self.input}, so that the next run would read "
                    "what this one wrote; give a folder elsewhere."
                )
        if self.input.is_relative_to(self.output):
            raise ConfigError(
                f"INPUT {self.input} lies in --output {self.output}, where readers of the output "
                "would find it; give a folder elsewhere."
            )
        for option, path in places.items():
            _check_hidden(option, path, self.output)
        names = list(places)
        for i, one in enumerate(names):
            for other in names[i + 1 :]:
                _check_apart(one, places[one], other, places[other], self.output)

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
        whole = dataclasses.asdict(self)
        for name, value in whole.items():
            if isinstance(value, Path):
                whole[name] = str(value)
            elif name == "id":
                whole[name] = list(value)
            elif name == "read_options":
                whole[name] = dict(value)
        return whole

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
        for name in ("input", "output", "catalog", "checkpoint", "duplicates"):
            if values.get(name) is not None:
                values[name] = Path(values[name])
        values["id"] = tuple(values["id"])
        values["read_options"] = tuple(sorted(values.get("read_options", {}).items()))
        return cls(**values)


def pairs(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Options of Spark's reader from ``KEY=VALUE``, in order; ConfigError where one is not that."""
    for text in texts:
        if "=" not in text:
            raise ConfigError(f"--read-option {text} is not KEY=VALUE.")
    return tuple(sorted((t.partition("=")[0], t.partition("=")[2]) for t in texts))


def _folder(option: str, value: str | Path) -> Path:
    text = str(value)
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+://", text):
        raise ConfigError(f"{option} {text} is not on a local file system; give a local path.")
    return Path(text).expanduser().resolve()


def _check_hidden(option: str, path: Path, output: Path) -> None:
    """Refuse a folder below the output that readers of the output would look into."""
    if path == output or not path.is_relative_to(output):
        return
    first = path.relative_to(output).parts[0]
    if not first.startswith("_"):
        raise ConfigError(
            f"{option} {path} lies in --output {output}, where readers would find it; give a "
            "folder elsewhere, or one whose name begins with an underscore."
        )
    if first in _OWN_FOLDERS:
        raise ConfigError(f"{option} {path}: {first} is used by `dedup run`; choose another name.")


def _check_apart(one: str, a: Path, other: str, b: Path, output: Path) -> None:
    if a == b or (a.is_relative_to(b) and b != output) or (b.is_relative_to(a) and a != output):
        raise ConfigError(f"{one} {a} and {other} {b} overlap; give each a folder of its own.")
