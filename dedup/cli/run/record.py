"""What a run finds of earlier runs in its output: their record, their query, and a lock."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dedup.catalog.layout import certificate_path
from dedup.cli.run.options import DEFAULTS, METRICS, RunOptions, flag
from dedup.errors import ConfigError, DedupError
from dedup.sinks.batch_folders import check_not_ahead, published_batches
from dedup.sources.files.file_log import last_number
from dedup.sources.files.text_options import with_meaning
from dedup.spark.machine import home_path
from dedup.storage.localfile import publish
from dedup.values import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORD = "_dedup.json"
LOG = "_dedup.log"
_FORMAT = 1
#: Options whose values are folders. A folder inside the output is recorded by its relative path.
_FOLDERS = ("catalog", "checkpoint", "duplicates", "bad_records")
#: Options that the records of all releases contain.
_NEEDED = {"catalog", "checkpoint", "timestamp", "horizon", "lateness", "late"}


def log_of(where: str) -> str:
    """Return the folder of metrics logs in the output `where`, or `where` if it is no output."""
    output = home_path(where)
    return str(output / METRICS) if (output / RECORD).is_file() else where


def record_of(where: str) -> Record | None:
    """Return the record in the output `where`, or None if `where` is no output of a run."""
    output = home_path(where)
    return Record.read(output) if (output / RECORD).is_file() else None


def catalog_of(where: str, checkpoint: str | None = None) -> tuple[str, str | None]:
    """Return catalog and checkpoint of the output `where`, or the arguments if it is no output."""
    if (record := record_of(where)) is None:
        return where, checkpoint
    return record.options["catalog"], checkpoint or record.options["checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The options and columns of earlier runs, which they write to ``OUTPUT/_dedup.json``."""

    #: Result of `RunOptions.fixed` in the first run.
    options: dict[str, Any]
    #: Columns of the output, as Spark's JSON.
    schema: dict[str, Any]
    #: See `InputFiles`.
    pattern: str | None
    partitioned: bool
    compressed: bool
    shards: int
    #: Result of `RunOptions.rules` in the last run.
    rules: dict[str, Any]
    #: ID of the checkpoint's query, or None before its first micro-batch.
    query_id: str | None = None

    def write(self, output: Path) -> None:
        body = {"format": _FORMAT} | {name: getattr(self, name) for name in self.__slots__}
        for part in ("options", "rules"):
            body[part] = {name: _shortened(name, v, output) for name, v in body[part].items()}
        content = json.dumps(body, indent=1, sort_keys=True).encode()
        publish(output / RECORD, content, create=False)

    @classmethod
    def read(cls, output: Path) -> Self | None:
        """Return the record in an output, or None if the output is new."""
        path = output / RECORD
        if not path.exists():
            if published_batches(output):
                raise ConfigError(
                    f"--output {output} holds batches but no {RECORD}, so another program wrote "
                    "them; give an empty or new folder.",
                    remedy="output-folder",
                )
            return None
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            if body.pop("format") != _FORMAT:
                raise ValueError("unknown format")
            for part in ("options", "rules"):
                body[part] = {name: _absolute(name, v, output) for name, v in body[part].items()}
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
    """Raise ConfigError for options that would change the meaning of an existing output."""
    now = options.fixed() | {"shards": options.shards or record.shards}
    before = DEFAULTS | record.options | {"shards": record.shards}
    # `check_new_schema` compares --schema. With --schema the inference of types no longer matters.
    ignored = {"schema"} if options.schema is None else {"schema", "infer"}
    for values in (now, before):
        values["read_options"] = with_meaning(values["read_options"], options.file_format)
    for name, value in now.items():
        if name in ignored or before.get(name) == value or _is_moved(name, options, record):
            continue
        then = _text(before.get(name))
        way = f" If its files were moved, add --moved-from {then}." if name == "input" else ""
        raise ConfigError(
            f"{flag(name)} is {_text(value)} now and was {then} in the run that made --output "
            f"{options.output}; repeat it, or give a new --output.{way}",
            remedy="changed-settings",
        )


def _is_moved(name: str, options: RunOptions, record: Record) -> bool:
    if record.query_id is None:
        return False
    if name == "checkpoint":
        return checkpoint_query_id(options.checkpoint) == record.query_id
    return name == "catalog" and (options.catalog / certificate_path(record.query_id)).is_file()


def check_unfinished(options: RunOptions, record: Record) -> None:
    """Raise ConfigError for changed rules while a micro-batch is published but not committed.

    Spark will replay the micro-batch, but its published rows stay. Under other rules, the query
    would remember other records than it has published.
    """
    before = DEFAULTS | record.rules
    for name, value in options.rules().items():
        if before[name] != value and not _is_moved_folder(before[name], value):
            check_finished(options, name, value, before[name], record)


def _is_moved_folder(before: Any, now: Any) -> bool:
    are_places = all(str(place).startswith("/") for place in (before, now))
    return are_places and not Path(before).exists() and Path(now).is_dir()


def check_finished(
    options: RunOptions, name: str, now: object, before: object, record: Record
) -> None:
    """Raise ConfigError for a changed option if a micro-batch is published but not committed."""
    begun = unfinished_batch(options)
    if begun is not None and is_published(begun, options, record):
        raise ConfigError(
            f"{flag(name)} is {_text(now)} now and was {_text(before)} in the run before, which "
            f"ended inside micro-batch {begun}. Run once more with the earlier options, so that it "
            "can finish; after that change them.",
            remedy="changed-settings",
        )


def unfinished_batch(options: RunOptions) -> int | None:
    """Return the number of the micro-batch that began but was not committed, or None."""
    begun, done = (last_number(options.checkpoint / log) for log in ("offsets", "commits"))
    return begun if begun != done else None


def is_published(batch_id: int, options: RunOptions, record: Record) -> bool:
    """Return whether a micro-batch is in an output folder of the last run or of this run."""
    rules = (DEFAULTS | record.rules, options.rules())
    beside = {rule[name] for rule in rules for name in ("duplicates", "bad_records")}
    folders = [Path(folder) for folder in beside - {None, "error", "skip"}]
    return any(batch_id in published_batches(folder) for folder in (options.output, *folders))


def check_checkpoint(options: RunOptions, record: Record | None) -> None:
    """Raise ConfigError if another checkpoint made the output, or the checkpoint was restored.

    In both cases the query would reuse numbers of micro-batches that the output holds already. The
    new micro-batches would count as published, and their rows would be lost.
    """
    query_id = checkpoint_query_id(options.checkpoint)
    if record is None and query_id is not None:
        raise ConfigError(
            f"--checkpoint {options.checkpoint} belongs to another run; give a new folder.",
            remedy="output-folder",
        )
    made_by = record.query_id if record else None
    if made_by is not None and query_id != made_by:
        content = f"holds query {query_id}" if query_id else "is empty"
        raise ConfigError(
            f"--output {options.output} was made by query {made_by}, but --checkpoint "
            f"{options.checkpoint} {content}: restore that checkpoint, or give a new --output.",
            remedy="lost-checkpoint",
        )
    check_not_ahead(
        (options.output, options.duplicates, options.aside),
        last_number(options.checkpoint / "offsets"),
        f"which --checkpoint {options.checkpoint} has not begun",
    )


def checkpoint_query_id(checkpoint: Path) -> str | None:
    """Return the ID of a checkpoint's query, or None before its first start."""
    try:
        return parse.name(json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{checkpoint}/metadata is damaged; restore the checkpoint, or give a new --output.",
            remedy="lost-checkpoint",
        ) from None


def observed_so_far(spark: SparkSession, checkpoint: Path, name: str) -> dict[str, int]:
    """Return the integers that Spark has observed under a name in the running micro-batch.

    Returns {} if there are none. Spark has no public interface for these integers, so any error may
    occur.
    """
    query_id = checkpoint_query_id(checkpoint)
    for query in spark.streams.active:
        if str(query.id) == query_id:
            row = query._jsq.streamingQuery().lastExecution().observedMetrics().get(name).get()
            values = {column: row.get(at) for at, column in enumerate(row.schema().fieldNames())}
            return {column: int(v) for column, v in values.items() if isinstance(v, int)}
    return {}


@contextmanager
def exclusive(output: Path) -> Iterator[None]:
    """Lock the output during the context, or raise DedupError if another run holds the lock."""
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


def _shortened(name: str, value: Any, output: Path) -> Any:
    """Return an option as the record holds it, where folders in the output are relative."""
    below = f"{output}/_"
    return value[len(below) - 1 :] if name in _FOLDERS and str(value).startswith(below) else value


def _absolute(name: str, value: Any, output: Path) -> Any:
    if name in _FOLDERS and str(value).startswith("_"):
        return str(output.resolve() / parse.path_below(value))
    return value


def _text(value: Any) -> str:
    if isinstance(value, dict) and value:
        value = [f"{key}={text}" for key, text in value.items()]
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "not given" if value in (None, {}) else str(value)
