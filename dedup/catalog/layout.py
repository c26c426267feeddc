"""Names of all objects under a catalog root."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from dedup.errors import ConfigError
from dedup.storage.root import Root, StoredFile
from dedup.values.parse import NAME

SEGMENT_SUFFIX = ".sst"
SIDECAR_SUFFIX = ".filter"
ACCEPTED_LOSS_SUFFIX = ".accepted-loss"
PENDING_LIST_SUFFIX = ".pending-list"
#: Name of a shard's manifest backup.
BACKUP_FILE = "backup.json"
#: Name of the adopted state that a shard of a new checkpoint starts with.
ADOPTED_FILE = "adopted.json"
#: Folder for the objects of a query's runs, and for the marks of starts (see `start_path`).
RUNS_FOLDER = "runs"
STARTS_FOLDER = "starts"

Kind: TypeAlias = Literal[
    "certificate", "old_certificate", "successor", "segment", "sidecar", "accepted_loss",
    "pending_list", "backup", "adopted", "run", "start", "temp", "foreign",
]  # fmt: skip

_RUN_ID = "[A-Za-z0-9_][A-Za-z0-9._-]*"
_SEGMENT = rf"(?P<segment>(?P<epoch>\d{{12}})-(?P<run_id>{_RUN_ID})-\d+-\d{{4,}})"
_QUERY = f"(?P<query_id>{NAME.pattern})/"
_SHARD = rf"{_QUERY}shard=(?P<shard>\d{{5,}})/"
_PATTERNS: dict[Kind, str] = {
    "segment": rf"{_SHARD}{_SEGMENT}\.sst",
    "sidecar": rf"{_SHARD}{_SEGMENT}\.filter",
    "accepted_loss": rf"{_SHARD}{_SEGMENT}\.accepted-loss",
    "pending_list": rf"{_SHARD}{_SEGMENT}\.pending-list",
    "backup": rf"{_SHARD}backup\.json",
    "adopted": rf"{_SHARD}adopted\.json",
    "temp": rf"{_QUERY}(.*/)?\.[^/]*\.tmp",
    "certificate": rf"{_QUERY}certificate\.json",
    "old_certificate": rf"{_QUERY}catalog\.json",
    "successor": rf"{_QUERY}successor\.json",
    "start": f"{STARTS_FOLDER}/{NAME.pattern}",
    "run": rf"{_QUERY}{RUNS_FOLDER}/(?P<epoch>\d{{12}})-(?P<run_id>{_RUN_ID}?)"
    r"\.(json|through-(?P<through_epoch>\d{12}))",
    "foreign": f"{_QUERY}.+",
}
#: Pattern of the names of each kind of object. The first pattern that matches counts.
_NAMES = {kind: re.compile(pattern, re.DOTALL) for kind, pattern in _PATTERNS.items()}


@dataclass(frozen=True, slots=True)
class ObjectName:
    """The parts of the name of a file under a catalog root. Parts that the name lacks are None.

    ``epoch`` is the micro-batch that wrote the segment, or in which the run began.
    """

    kind: Kind
    query_id: str | None = None
    shard: int | None = None
    segment: str | None = None
    run_id: str | None = None
    epoch: int | None = None
    through_epoch: int | None = None


@dataclass(frozen=True)
class CatalogFile(StoredFile):
    """A file under a catalog root, with the parts of its name."""

    @cached_property
    def parsed(self) -> ObjectName:
        return parse_name(self.name)


def catalog_files(root: Root, prefix: str = "") -> tuple[CatalogFile, ...]:
    return tuple(CatalogFile(f.name, f.size_bytes, f.modified_ms) for f in root.list(prefix))


def segment_name(epoch: int, run_id: str, task_attempt_id: int, seq: int) -> str:
    """Return the name of the ``seq``-th segment that a task attempt writes for a shard.

    The name is unique within the shard for all time, because Spark numbers the task attempts of a
    run, and run IDs are unique.
    """
    return f"{epoch:012d}-{run_id}-{task_attempt_id}-{seq:04d}"


def checked_query_id(query_id: str) -> str:
    if not NAME.fullmatch(query_id):
        raise ConfigError(
            f"query ID {query_id!r} cannot name a folder: use letters, digits, '.', '_' and '-'"
        )
    return query_id


def certificate_path(query_id: str) -> str:
    return f"{checked_query_id(query_id)}/certificate.json"


def old_certificate_path(query_id: str) -> str:
    """Return the name that the certificate had before the first release."""
    return f"{checked_query_id(query_id)}/catalog.json"


def successor_path(query_id: str) -> str:
    return f"{checked_query_id(query_id)}/successor.json"


def shard_path(query_id: str, shard: int, file: str) -> str:
    return f"{checked_query_id(query_id)}/shard={shard:05d}/{file}"


def run_path(query_id: str, run_id: str, began_epoch: int, through_epoch: int | None = None) -> str:
    """Return the name of a run's object, or of the run's mark if ``through_epoch`` is given."""
    rest = ".json" if through_epoch is None else f".through-{through_epoch:012d}"
    return f"{checked_query_id(query_id)}/{RUNS_FOLDER}/{began_epoch:012d}-{run_id}{rest}"


def start_path(start_id: str) -> str:
    """Return the name of the mark by which executors check that they see the driver's root."""
    return f"{STARTS_FOLDER}/{start_id}"


def parse_name(name: str) -> ObjectName:
    """Return the kind and parts of a name under the root. The kind is ``foreign`` if unknown."""
    for kind, pattern in _NAMES.items():
        if match := pattern.fullmatch(name):
            parts: dict[str, Any] = match.groupdict()
            for number in ("shard", "epoch", "through_epoch"):
                if parts.get(number) is not None:
                    parts[number] = int(parts[number])
            return ObjectName(kind, **parts)
    return ObjectName("foreign")
