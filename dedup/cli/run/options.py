"""Options of `dedup run`: declared once, checked without Spark, kept as JSON with the output."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from functools import partial
from inspect import Parameter
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo

from dedup.catalog.uri import scheme_of
from dedup.cli import flags as shared
from dedup.cli.commands import argument, option, parameter, switch
from dedup.cli.flags import QuietFlags, pairs
from dedup.core.option import Kind, choice, number, text, whole
from dedup.errors import ConfigError
from dedup.sinks.output_owner import list_keeper
from dedup.sources.files.file_order import ORDERS
from dedup.spark.machine import home_path, machine_cores
from dedup.spark.options import BY_ID

#: Folder in the output where `dedup watch OUTPUT` looks.
METRICS = "_metrics"
_OWN_FOLDERS = ("_staging", "_lock", "_dedup.json", "_dedup.log", "_dedup.files")
#: Formats whose files hold their own columns, as people write them.
COLUMNAR = {"parquet": "Parquet", "orc": "ORC"}
_OUTPUT_FORMATS = ("csv", "json", "parquet")
#: Likely typos for `skip`, which would become folders.
_NO_FOLDERS = ("drop", "ignore", "emit", "fail", "true", "false")
_MASTER = re.compile(r"local(?:\[([1-9]\d*|\*)(?:,\d+)?\])?")
#: Panels of the help screen.
_INPUT, _TIME, _OUTPUT = "Input", "Time", "Output"
_SIZING, _WATCHING, _SPARK = "Sizing", "Watching", "Spark"
#: A later run must repeat a fixed option: it decides which rows are the same, or how the folder is
#: read. A run may change a rule, which decides what becomes of a record, but not between a
#: micro-batch and its replay. It may change other options at any time.
_FIXED, _RULE = "fixed", "rule"


class _Declaration(NamedTuple):
    """An option: how the help screen shows it, its values, and what depends on it.

    Without `shown` it is the option of `dedup_by_id` with the same name. With `timed` it has no
    meaning without ``--timestamp``.
    """

    shown: Any
    panel: str
    kept: str
    kind: Kind | None
    timed: bool


def _known(
    shown: Any, panel: str = "", kept: str = "", kind: Kind | None = None, *, timed: bool = False
) -> Any:
    return _Declaration(shown, panel, kept, kind, timed)


def _own(metavar: str, text: str, *rest: Any, **more: Any) -> Any:
    return _known(option(metavar, text), *rest, **more)


def _operators(panel: str = "", kept: str = "", *, timed: bool = False) -> Any:
    return _known(None, panel, kept, timed=timed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of `dedup run` with absolute paths; `make` checks them.

    ``bad_records`` is ``error``, ``skip``, or the folder of the rows that cannot be read.
    """

    input: Annotated[Path, _known(argument("INPUT", "Folder of files, or one file."), kept=_FIXED)]
    moved_from: Annotated[
        Path | None,
        _own("OLD", "INPUT was OLD before, and holds the same files: take only new ones.", _INPUT),
    ] = None
    id: Annotated[tuple[str, ...], _known(shared.operator_option("id"), kept=_FIXED)]
    horizon: Annotated[str, _operators(kept=_RULE)]
    output: Annotated[Path, _own("DIR", "Folder of the unique rows.")]
    file_format: Annotated[
        str | None, _known(shared.FORMAT, _INPUT, _FIXED, choice(*_OUTPUT_FORMATS, "orc"))
    ] = None
    schema: Annotated[
        str | None,
        _own(
            "DDL",
            "Columns: 'id STRING, amount INT'. May add some later.",
            _INPUT,
            _FIXED,
            text(r"(?s).*\S.*", "name columns such as 'id STRING, amount INT'."),
        ),
    ] = None
    infer: Annotated[bool, _known(shared.INFER, _INPUT, _FIXED)] = False
    read_options: Annotated[
        tuple[tuple[str, str], ...], _known(shared.READ_OPTION, _INPUT, _FIXED)
    ] = ()
    new_columns: Annotated[
        str,
        _own(
            "error|ignore|add",
            "Columns of later files that the output lacks.",
            _INPUT,
            _RULE,
            choice("error", "ignore", "add"),
        ),
    ] = "error"
    bad_records: Annotated[
        str,
        _own(
            "error|skip|DIR",
            "Rows that cannot be read: stop, leave them out, or set them aside in DIR.",
            _INPUT,
            _RULE,
        ),
    ] = "error"
    null_ids: Annotated[str, _operators(_INPUT, _RULE)] = "emit"
    files_per_trigger: Annotated[int, _own("N", "Files a micro-batch.", _INPUT, kind=whole())] = 10
    order_files: Annotated[str, _known(shared.ORDER_FILES, _INPUT, kind=choice(*ORDERS))] = "time"
    timestamp: Annotated[
        str | None,
        _own(
            "COL",
            "Event time, by which the horizon is measured. Default: the run's own clock.",
            _TIME,
            _FIXED,
        ),
    ] = None
    timestamp_format: Annotated[
        str | None, _known(shared.TIMESTAMP_FORMAT, _TIME, _FIXED, timed=True)
    ] = None
    null_timestamps: Annotated[str, _operators(_TIME, _RULE, timed=True)] = "error"
    source_partition: Annotated[
        tuple[str, ...],
        _own(
            "COL",
            "Column that tells clocks apart, such as a producer; repeat for several.",
            _TIME,
            _RULE,
            timed=True,
        ),
    ] = ()
    lateness: Annotated[str | None, _operators(_TIME, _RULE, timed=True)] = None
    late: Annotated[str, _operators(_TIME, _RULE, timed=True)] = "emit"
    max_late: Annotated[
        float,
        _own(
            "PERCENT",
            "With --late drop, stop when more of the run's records are late.",
            _TIME,
            kind=number(lambda share: 0 <= share <= 100, "from 0 to 100"),
        ),
    ] = 1.0
    stable_timestamps: Annotated[bool, _operators(_TIME, _FIXED, timed=True)] = False
    max_future: Annotated[str | None, _operators(_TIME, _RULE, timed=True)] = None
    idle_timeout: Annotated[str | None, _operators(_TIME, _RULE, timed=True)] = None
    order_by: Annotated[
        tuple[str, ...],
        _own(
            "COL",
            "Of copies in one micro-batch with one timestamp, keep the smallest COL.",
            _OUTPUT,
            _RULE,
        ),
    ] = ()
    guarantee: Annotated[str, _operators(_OUTPUT, _RULE)] = "exactly-once"
    check_payload: Annotated[
        tuple[str, ...],
        _own(
            "COL",
            "Column in which copies may not differ: one that does is a conflict.",
            _OUTPUT,
            _RULE,
        ),
    ] = ()
    conflicts: Annotated[str, _operators(_OUTPUT, _RULE)] = "drop"
    duplicates: Annotated[
        Path | None, _own("DIR", "Folder of the rows that are left out.", _OUTPUT, _RULE)
    ] = None
    verdict: Annotated[
        str | None,
        _own(
            "COL",
            "Add a column with each row's verdict, and emit every row.",
            _OUTPUT,
            _RULE,
            text("(?i)(?!batch$).+", "be the name of a column other than batch."),
        ),
    ] = None
    output_format: Annotated[
        str | None,
        _own(
            "FMT",
            "csv, json or parquet; else as the input, and parquet for orc.",
            _OUTPUT,
            _FIXED,
            choice(*_OUTPUT_FORMATS),
        ),
    ] = None
    catalog: Annotated[Path, _own("DIR", "Default: OUTPUT/_catalog.", panel=_OUTPUT, kept=_FIXED)]
    checkpoint: Annotated[
        Path, _own("DIR", "Default: OUTPUT/_checkpoint.", panel=_OUTPUT, kept=_FIXED)
    ]
    shards: Annotated[
        int | None, _own("N", "Default: as many as cores. Permanent.", _SIZING, kind=whole())
    ] = None
    buckets: Annotated[int | None, _operators(_SIZING)] = None
    fpr: Annotated[float | None, _operators(_SIZING)] = None
    state_budget_bytes: Annotated[int | None, _operators(_SIZING)] = None
    keep_expired: Annotated[str | None, _operators(_SIZING)] = None
    log: Annotated[
        Path,
        _own(
            "DIR",
            "Metrics log. Default: OUTPUT/_metrics, which `dedup watch OUTPUT` follows.",
            panel=_WATCHING,
        ),
    ]
    prometheus_port: Annotated[
        int | None,
        _own(
            "PORT",
            "Serve the metrics to Prometheus during the run.",
            _WATCHING,
            kind=whole(0, 65_535),
        ),
    ] = None
    prometheus_address: Annotated[
        str, _own("HOST", "Where: 0.0.0.0 for all networks of this machine.", _WATCHING)
    ] = "127.0.0.1"
    parquet: Annotated[
        str,
        _own(
            "auto|spark",
            "Who reads and writes Parquet: dedup if it can, faster, or Spark.",
            _SPARK,
            kind=choice("auto", "spark"),
        ),
    ] = "auto"
    master: Annotated[str, _own("local[N]", "Cores to use.", _SPARK)] = "local[*]"
    driver_memory: Annotated[
        str,
        _own(
            "SIZE",
            "Memory of the JVM.",
            _SPARK,
            kind=text(r"(?i)\d+[kmgt]", "be a size such as 2g."),
        ),
    ] = "2g"

    @classmethod
    def make(cls, **options: Any) -> Self:
        """Return checked options; folders may be texts, and are below the output by default.

        Raises ConfigError for the first option that cannot work, with its value and what to change.
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
            # Not resolved, because a link to the new place may have replaced it.
            options["moved_from"] = home_path(moved_from).absolute()
        made = cls(**options)
        made._check()
        return made

    @property
    def aside(self) -> Path | None:
        """Folder of the rows that cannot be read, if they are kept."""
        return None if self.bad_records in ("error", "skip") else Path(self.bad_records)

    @property
    def cores(self) -> int:
        """Number of cores in `master`."""
        match = _MASTER.fullmatch(self.master)
        count = match[1] if match else None
        return machine_cores() if count == "*" else int(count or 1)

    def fixed(self) -> dict[str, Any]:
        """Return the options that a later run into the same output must repeat."""
        return self._kept(_FIXED)

    def rules(self) -> dict[str, Any]:
        """Return the options that may change, but not between a micro-batch and its replay."""
        return self._kept(_RULE)

    def _kept(self, kept: str) -> dict[str, Any]:
        return {n: value for n, value in self.to_json().items() if OPTIONS[n].kept == kept}

    def for_operator(self) -> dict[str, Any]:
        """Return the options that `dedup_by_id` takes unchanged, as far as they were given."""
        given = {name: value for name in _OPERATORS if (value := getattr(self, name)) is not None}
        return given | ({"idle_timeout": None} if self.idle_timeout == "never" else {})

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: _plain(name, value) for name, value in asdict(self).items()}

    def _check(self) -> None:
        if not self.input.exists():
            raise ConfigError(f"INPUT {self.input} does not exist.")
        if not self.id or not all(self.id):
            raise ConfigError("--id needs the name of a column.")
        for name in self.id:
            if self.id.count(name) > 1:
                raise ConfigError(f"--id {name} is given twice; name each column once.")
        for name, declared in OPTIONS.items():
            value = getattr(self, name)
            never = (name, value) == ("idle_timeout", "never")
            if declared.kind is not None and value is not None and not never:
                declared.kind.check(value, flag(name))
            if declared.timed and self.timestamp is None and _plain(name, value) != DEFAULTS[name]:
                shown = f"{flag(name)} drop" if name == "late" else flag(name)
                raise ConfigError(f"{shown} has no meaning without --timestamp; name the column.")
        self._check_together()
        folders = {name: getattr(self, name) for name in ("catalog", "checkpoint", "duplicates")}
        folders |= {"bad_records": self.aside, "log": self.log}
        others = {flag(name): path for name, path in folders.items() if path is not None}
        _check_folders(self.input, self.output, others)

    def _check_together(self) -> None:
        if self.conflicts != "drop" and not self.check_payload:
            raise ConfigError(
                f"--conflicts {self.conflicts} has no meaning without --check-payload; name the "
                "columns to compare."
            )
        if self.check_payload and self.guarantee != "exactly-once":
            raise ConfigError(
                f"--guarantee {self.guarantee} and --check-payload contradict each other: the "
                "payloads to compare with are in the catalog, which is not read then. Leave one of "
                "them out."
            )
        if self.schema is not None and self.infer:
            raise ConfigError("--schema and --infer contradict each other; give one of them.")
        if self.aside is not None and self.aside.name in _NO_FOLDERS:
            raise ConfigError(
                f"--bad-records {self.aside.name} is not one of error, skip; a folder needs "
                "another name."
            )
        if self.verdict is not None and self.duplicates is not None:
            raise ConfigError(
                "--verdict emits every row, so --duplicates would get none; give one of them."
            )
        if not _MASTER.fullmatch(self.master):
            raise ConfigError(
                f"--master {self.master} is not a local one: `dedup run` works on one machine, "
                "give local[N] or local[*]. On a cluster, use dedup_by_id in your own job."
            )


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if name == "read_options":
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _resolved(name: str, declaration: _Declaration) -> _Declaration:
    if declaration.shown is not None:
        return declaration
    default = RunOptions.__dataclass_fields__[name].default
    shown = shared.operator_option(name, has_default=default is not None)
    return declaration._replace(shown=shown, kind=BY_ID[name].kind)


_HINTS = get_type_hints(RunOptions, include_extras=True)
#: Options that `dedup_by_id` takes unchanged.
_OPERATORS = [name for name, hint in _HINTS.items() if get_args(hint)[1].shown is None]
#: Declarations by name of the field.
OPTIONS = {name: _resolved(name, get_args(hint)[1]) for name, hint in _HINTS.items()}
#: Values of options that the record of an earlier release lacks.
DEFAULTS = {
    each.name: _plain(each.name, each.default)
    for each in fields(RunOptions)
    if each.default is not MISSING
}


def flag(name: str) -> str:
    """Return how a user gives an option, such as ``--late``."""
    shown = OPTIONS[name].shown
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

    given: Mapping[str, Any]
    dry_run: Annotated[
        bool, switch("Check everything, print the plan, take no rows.", "--dry-run")
    ] = False

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Separate the flags of the command from the options of the run."""
        given = {name: values.pop(name) for name in OPTIONS}
        return cls(given=given, **values)

    @classmethod
    def parameters(cls) -> Iterator[Parameter]:
        """Return one parameter for each option, then those for the command's other flags."""
        for each in fields(RunOptions):
            declared, default = OPTIONS[each.name], each.default
            kind = get_args(_HINTS[each.name])[0]
            if get_origin(kind) is tuple:
                kind, default = list[str], default or None
            elif kind not in (bool, int | None, float | None, int, float):
                kind = str
            if default is MISSING and each.name in ("catalog", "checkpoint", "log"):
                default = None
            yield parameter(each.name, kind, declared.shown, default, declared.panel)
        yield from super().parameters()

    def options(self) -> RunOptions:
        """Return the checked options of the run."""
        given = dict(self.given)
        read = pairs(given["read_options"], "--read-option")
        given["read_options"] = tuple(sorted(read.items()))
        for name, value in given.items():
            if isinstance(value, list) or (value is None and DEFAULTS.get(name) == []):
                given[name] = tuple(value or ())
        return RunOptions.make(**given)


def local_folder(option: str, value: str | Path) -> Path:
    """Return the absolute path of a folder on this machine; ConfigError if it is elsewhere."""
    text = str(value)
    if not text:
        raise ConfigError(f"{option} is empty; give a folder.")
    scheme = scheme_of(text)
    # A Path of s3://bucket has lost one of its slashes.
    if scheme is not None and (text.startswith(f"{scheme}:/") or not Path(text).exists()):
        raise ConfigError(
            f"{option} {text} is a URI, but a folder on this machine is needed: give its path, "
            "which must begin with a slash if its name has a colon."
        )
    return home_path(text).resolve()


def _check_folders(source: Path, output: Path, others: Mapping[str, Path]) -> None:
    """Reject folders that would be read, hidden or overwritten by each other."""
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
        _check_hidden(name, path, output)
    for (one, a), (other, b) in combinations(places.items(), 2):
        if a == b or (a.is_relative_to(b) and b != output) or (b.is_relative_to(a) and a != output):
            raise ConfigError(f"{one} {a} and {other} {b} overlap; give each its own folder.")


def _has_folder(path: Path, name: str) -> bool:
    return (path / name).is_dir()


def _check_hidden(name: str, path: Path, output: Path) -> None:
    """Reject a folder in the output that readers of the output would search."""
    if path == output or not path.is_relative_to(output):
        return
    first = path.relative_to(output).parts[0]
    if not first.startswith("_"):
        raise ConfigError(
            f"{name} {path} is in --output {output}, where readers would find it; give a folder "
            "elsewhere, or one whose name begins with an underscore."
        )
    if first in _OWN_FOLDERS:
        raise ConfigError(f"{name} {path}: {first} is used by `dedup run`; choose another name.")
