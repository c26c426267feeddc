"""The output folder's own memory: what it was made with, by which query, and who writes now."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dedup.catalog.layout import certificate_path
from dedup.cli.run.folders import METRICS
from dedup.cli.run.run_options import DEFAULTS, RunOptions
from dedup.core import parse
from dedup.errors import ConfigError, DedupError
from dedup.sinks.batch_folders import check_not_ahead, published_batches
from dedup.spark.driver.file_log import last_number
from dedup.spark.machine import home_path

RECORD = "_dedup.json"
LOG = "_dedup.log"
_FORMAT = 1
#: What has a place of its own; below the output it is kept without the output's name.
_FOLDERS = ("catalog", "checkpoint", "duplicates", "bad_records")
#: Options that every release has written.
_NEEDED = {"catalog", "checkpoint", "timestamp", "horizon", "lateness", "late"}
_FLAGS = {
    "id": "--id",
    "input": "INPUT",
    "file_format": "--format",
    "read_options": "--read-option",
}


def log_of(where: str) -> str:
    """Return the metrics log of a run whose output is given, else the place itself."""
    output = home_path(where)
    return str(output / METRICS) if (output / RECORD).is_file() else where


def record_of(where: str) -> Record | None:
    """Return what `dedup run` left in its output, or None if the place is no such output."""
    output = home_path(where)
    return Record.read(output) if (output / RECORD).is_file() else None


def catalog_of(where: str, checkpoint: str | None = None) -> tuple[str, str | None]:
    """Return catalog and checkpoint of a run whose output is given, else what is given."""
    if (record := record_of(where)) is None:
        return where, checkpoint
    return record.options["catalog"], checkpoint or record.options["checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a first run leaves for the ones after it, as ``OUTPUT/_dedup.json``.

    Parameters
    ----------
    options : dict
        `RunOptions.fixed` of the first run.
    schema : dict
        Columns of the input, as Spark's JSON.
    pattern : str or None
        Glob of the file names that belong to the input.
    partitioned, compressed : bool
        See `InputFiles`.
    shards : int
        Shards of the catalog.
    rules : dict
        `RunOptions.rules` of the last run.
    query_id : str or None
        Query of the checkpoint; None until its first micro-batch.
    """

    options: dict[str, Any]
    schema: dict[str, Any]
    pattern: str | None
    partitioned: bool
    compressed: bool
    shards: int
    rules: dict[str, Any]
    query_id: str | None = None

    def write(self, output: Path) -> None:
        """Replace the record in one step."""
        body = {"format": _FORMAT} | {name: getattr(self, name) for name in self.__slots__}
        for part in ("options", "rules"):
            body[part] = {name: _kept(name, value, output) for name, value in body[part].items()}
        temporary = output / f"{RECORD}.tmp"
        with temporary.open("w", encoding="utf-8") as handle:
            json.dump(body, handle, indent=1, sort_keys=True)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(output / RECORD)

    @classmethod
    def read(cls, output: Path) -> Self | None:
        """Return the record of earlier runs, or None.

        Raises
        ------
        ConfigError
            If the folder holds a record that cannot be read, or batches without one.
        """
        path = output / RECORD
        if not path.exists():
            if published_batches(output):
                raise ConfigError(
                    f"--output {output} holds batches but no {RECORD}: they come from elsewhere; "
                    "give an empty or new folder.",
                    remedy="output-folder",
                )
            return None
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            if body.pop("format") != _FORMAT:
                raise ValueError("unknown format")
            for part in ("options", "rules"):
                body[part] = {name: _given(name, v, output) for name, v in body[part].items()}
            if lacking := _NEEDED - {*body["options"], *body["rules"]}:
                raise ValueError(f"it lacks {', '.join(sorted(lacking))}")
            if body.get("query_id") is not None:
                parse.name(body["query_id"])
            return cls(**body)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{path} cannot be read ({error}); restore it, or give a new --output.",
                remedy="output-folder",
            ) from None


def check_same(options: RunOptions, record: Record) -> None:
    """Refuse to go on in an output folder with options that would change its meaning.

    Raises
    ------
    ConfigError
        Naming the option and both values.
    """
    now = options.fixed() | {"shards": options.shards or record.shards}
    before = DEFAULTS | record.options | {"shards": record.shards}
    # Compared column by column, and then the guess of the first run does not matter any more.
    apart = {"schema"} if options.schema is None else {"schema", "infer"}
    # Older releases took Spark's option `mode`, which --bad-records replaces.
    for given in (now, before):
        read = given["read_options"]
        given["read_options"] = {k: v for k, v in read.items() if k.lower() != "mode"}
    for name, value in now.items():
        if name in apart or before.get(name) == value or _is_moved(name, options, record):
            continue
        flag, then = _FLAGS.get(name, "--" + name.replace("_", "-")), _text(before.get(name))
        way = f" If its files were moved, add --moved-from {then}." if name == "input" else ""
        raise ConfigError(
            f"{flag} is {_text(value)} now and was {then} in the run that made --output "
            f"{options.output}; repeat it, or give a new --output.{way}",
            remedy="changed-settings",
        )


def _is_moved(name: str, options: RunOptions, record: Record) -> bool:
    """Return whether a folder has a new place, and holds there what belongs to the query."""
    if record.query_id is None:
        return False
    if name == "checkpoint":
        return checkpoint_query_id(options.checkpoint) == record.query_id
    return name == "catalog" and (options.catalog / certificate_path(record.query_id)).is_file()


def check_unfinished(options: RunOptions, record: Record) -> None:
    """Refuse other rules while a micro-batch is published whose commit Spark has yet to write.

    It will run again, and its folder is kept: judged by other rules, its rows and the memory of
    them would differ.

    Raises
    ------
    ConfigError
        Naming the option and both values.
    """
    before = DEFAULTS | record.rules
    for name, value in options.rules().items():
        if name == "new_columns" and name not in record.rules:
            # Releases before it left new columns out, which it now calls an error.
            continue
        if before[name] != value and not _is_moved_folder(before[name], value):
            flag = "--" + name.replace("_", "-")
            check_finished(options, flag, value, before[name], record)


def _is_moved_folder(before: Any, now: Any) -> bool:
    are_places = all(str(place).startswith("/") for place in (before, now))
    return are_places and not Path(before).exists() and Path(now).is_dir()


def check_finished(
    options: RunOptions, flag: str, now: object, before: object, record: Record
) -> None:
    """Refuse another value of an option while a micro-batch is published, but not committed.

    Raises
    ------
    ConfigError
        Naming the option and both values.
    """
    begun = unfinished_batch(options)
    if begun is not None and is_published(begun, options, record):
        raise ConfigError(
            f"{flag} is {_text(now)} now and was {_text(before)} in the run before, which ended "
            f"inside micro-batch {begun}. Run once more with the options of then, so that it can "
            "finish; after that change them.",
            remedy="changed-settings",
        )


def unfinished_batch(options: RunOptions) -> int | None:
    """Return the micro-batch that was begun and is not committed, None where there is none."""
    begun, done = (last_number(options.checkpoint / log) for log in ("offsets", "commits"))
    return begun if begun != done else None


def is_published(batch_id: int, options: RunOptions, record: Record) -> bool:
    """Whether one of the output folders shows a micro-batch: those of then, and of now."""
    given = (DEFAULTS | record.rules, options.rules())
    beside = {rules[name] for rules in given for name in ("duplicates", "bad_records")}
    folders = [Path(folder) for folder in beside - {None, "error", "skip"}]
    return any(batch_id in published_batches(f) for f in (options.output, *folders))


def check_query(options: RunOptions, record: Record | None) -> None:
    """Refuse an output whose batches another checkpoint made: batch numbers would begin again.

    So they do in a checkpoint that was adopted, or put back to an earlier day: folders that are
    there already would be taken for done, and the new rows of their numbers be lost.

    Raises
    ------
    ConfigError
        Naming both, and what to restore or move.
    """
    query_id = checkpoint_query_id(options.checkpoint)
    made_by = record.query_id if record else None
    if made_by is None and query_id is not None and record is None:
        raise ConfigError(
            f"--checkpoint {options.checkpoint} belongs to another run; give a new folder.",
            remedy="output-folder",
        )
    if made_by is not None and query_id != made_by:
        found = f"holds query {query_id}" if query_id else "is empty"
        raise ConfigError(
            f"--output {options.output} was made by query {made_by}, but --checkpoint "
            f"{options.checkpoint} {found}: restore that checkpoint, or give a new --output.",
            remedy="lost-checkpoint",
        )
    begun = last_number(options.checkpoint / "offsets")
    check_not_ahead(
        (options.output, options.duplicates, options.aside),
        begun,
        f"which --checkpoint {options.checkpoint} has not begun",
    )


def checkpoint_query_id(checkpoint: Path) -> str | None:
    """ID that Spark gave to the query of a checkpoint, or None where there is none yet."""
    try:
        return parse.name(json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{checkpoint}/metadata is damaged; restore the checkpoint, or give a new --output.",
            remedy="lost-checkpoint",
        ) from None


@contextmanager
def exclusive(output: Path) -> Iterator[None]:
    """Hold the folder for one run; the lock goes with the process, however it ends.

    Raises
    ------
    DedupError
        If another run holds it.
    """
    output.mkdir(parents=True, exist_ok=True)
    with (output / "_lock").open("a", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DedupError(
                f"Another `dedup run` is writing to {output}; wait for it, or stop it.",
                remedy="output-folder",
            ) from None
        yield


def _kept(name: str, value: Any, output: Path) -> Any:
    """Return an option as the record has it; a folder below the output begins with ``_`` there."""
    below = f"{output}/_"
    return value[len(below) - 1 :] if name in _FOLDERS and str(value).startswith(below) else value


def _given(name: str, value: Any, output: Path) -> Any:
    if name in _FOLDERS and str(value).startswith("_"):
        return str(output.resolve() / parse.path_below(value))
    return value


def _text(value: Any) -> str:
    if isinstance(value, dict) and value:
        value = [f"{key}={text}" for key, text in value.items()]
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "not given" if value in (None, {}) else str(value)
