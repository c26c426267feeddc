"""Names of all objects under a catalog root."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dedup.core.parse import NAME
from dedup.errors import ConfigError

SEGMENT_SUFFIX = ".sst"
SIDECAR_SUFFIX = ".filter"
ACCEPTED_LOSS_SUFFIX = ".forgotten"
PENDING_LIST_SUFFIX = ".expired"
#: A shard's manifest backup.
MANIFEST_FILE = "manifest.json"
#: The memory that a shard of a new checkpoint starts with.
ADOPTED_FILE = "adopted.json"
#: Folder of a query's runs, and of the root's starts.
RUNS_FOLDER = "runs"
STARTS_FOLDER = "starts"
#: Suffix of a file that is still being written; a killed writer leaves it behind.
TEMP_SUFFIX = ".tmp"

Kind: TypeAlias = Literal[
    "certificate", "segment", "sidecar", "accepted_loss", "pending_list", "manifest", "adopted",
    "run", "start", "temp", "foreign",
]  # fmt: skip

_SEGMENT = re.compile(
    r"(?P<epoch>\d{12})-(?P<run_id>[A-Za-z0-9_][A-Za-z0-9._-]*)-(?P<attempt>\d+)-(?P<seq>\d{4,})"
)
_RUN = re.compile(
    r"(?P<began>\d{12})-(?P<run_id>[A-Za-z0-9_][A-Za-z0-9._-]*?)"
    r"\.(?:json|through-(?P<through>\d{12}))"
)
_IN_SHARD = re.compile(r"(?P<query_id>[^/]+)/shard=(?P<shard>\d{5,})/(?P<file>[^/]+)")
_KINDS: dict[str, Kind] = {
    SEGMENT_SUFFIX: "segment",
    SIDECAR_SUFFIX: "sidecar",
    ACCEPTED_LOSS_SUFFIX: "accepted_loss",
    PENDING_LIST_SUFFIX: "pending_list",
}


@dataclass(frozen=True, slots=True)
class ObjectName:
    """Parts of the name of a file under a catalog root; None if the name does not contain one.

    ``epoch`` is the micro-batch that wrote a segment, or in which a run began.
    """

    kind: Kind
    query_id: str | None = None
    shard: int | None = None
    segment: str | None = None
    run_id: str | None = None
    epoch: int | None = None
    through_epoch: int | None = None


def segment_name(epoch: int, run_id: str, task_attempt_id: int, seq: int) -> str:
    """Return the name of the ``seq``-th segment that a task attempt writes for a shard.

    It is unique within the shard for all time: Spark numbers attempts within a run, and run IDs are
    unique. ConfigError if `parse` cannot read the name back.
    """
    name = f"{epoch:012d}-{run_id}-{task_attempt_id}-{seq:04d}"
    if not _SEGMENT.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a segment name: epoch, task attempt and number must be integers "
            ">= 0, and the run ID must consist of letters, digits, '.', '_' and '-'"
        )
    return name


def checked_query_id(query_id: str) -> str:
    """Return the query ID; ConfigError if it cannot be the name of a folder."""
    if not NAME.fullmatch(query_id):
        raise ConfigError(
            f"query ID {query_id!r} cannot name a folder: use letters, digits, '.', '_' and '-'"
        )
    return query_id


def certificate_path(query_id: str) -> str:
    return f"{checked_query_id(query_id)}/catalog.json"


def shard_path(query_id: str, shard: int, file: str) -> str:
    return f"{checked_query_id(query_id)}/shard={shard:05d}/{file}"


def run_path(query_id: str, run_id: str, began_epoch: int, through_epoch: int | None = None) -> str:
    """Return the name of a run's object, or of its mark that it committed a micro-batch."""
    rest = ".json" if through_epoch is None else f".through-{through_epoch:012d}"
    return f"{checked_query_id(query_id)}/{RUNS_FOLDER}/{began_epoch:012d}-{run_id}{rest}"


def start_path(start_id: str) -> str:
    """Return the name of the mark that shows executors that they see the driver's root."""
    return f"{STARTS_FOLDER}/{start_id}"


def parse(name: str) -> ObjectName:
    """Return the kind and parts of a name under the root; unknown names are foreign."""
    query_id, _, rest = name.partition("/")
    file = name.rpartition("/")[2]
    if not rest or not NAME.fullmatch(query_id):
        return ObjectName("foreign")
    if file.startswith(".") and file.endswith(TEMP_SUFFIX):
        return ObjectName("temp", query_id)
    if rest == "catalog.json":
        return ObjectName("certificate", query_id)
    if query_id == STARTS_FOLDER and NAME.fullmatch(rest):
        return ObjectName("start")
    run = _RUN.fullmatch(rest.removeprefix(f"{RUNS_FOLDER}/"))
    if run and rest == f"{RUNS_FOLDER}/{file}":
        through = int(run["through"]) if run["through"] else None
        return ObjectName(
            "run", query_id, run_id=run["run_id"], epoch=int(run["began"]), through_epoch=through
        )
    in_shard = _IN_SHARD.fullmatch(name)
    if in_shard and file == MANIFEST_FILE:
        return ObjectName("manifest", query_id, int(in_shard["shard"]))
    if in_shard and file == ADOPTED_FILE:
        return ObjectName("adopted", query_id, int(in_shard["shard"]))
    for suffix, kind in _KINDS.items():
        stem = file.removesuffix(suffix)
        named = _SEGMENT.fullmatch(stem)
        if in_shard and stem != file and named:
            shard = int(in_shard["shard"])
            return ObjectName(
                kind, query_id, shard, stem, named["run_id"], epoch=int(named["epoch"])
            )
    return ObjectName("foreign", query_id)
