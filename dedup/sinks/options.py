"""The options that all sinks have, and the folders that these options name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dedup.errors import ConfigError
from dedup.storage.uri import scheme_of
from dedup.values.option import (
    REQUIRED,
    Kind,
    Option,
    choice,
    names,
    read_options,
    switch,
    text,
    whole,
)

#: Option `name` of a sink. Its value becomes part of markers, folders and transactional IDs.
NAME = text(
    r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}",
    "be 1 to 100 letters, digits, dots, hyphens or underscores: it becomes part of markers.",
)
ACCEPT = (
    Option(
        "accept.difference", whole(0),
        help="number of a micro-batch that may give other rows than before",
    ),
    Option(
        "accept.lost.markers", switch(), False,
        help="continue without markers, see `dedup remedies sink-markers`",
    ),
)  # fmt: skip
#: Declared by sinks that stage slices in files. `folder` reads it.
STAGING = Option(
    "staging", text(), help="shared folder for staged slices; default: in the checkpoint"
)
#: Modes of a sink into a table of a database.
APPEND, UPSERT, ATOMIC = "append", "upsert", "atomic"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The values of the options that every sink has.

    `ledger` is the folder of the sink's ledger, or None if the sink publishes without markers.
    """

    name: str
    ledger: str | None = field(repr=False)
    accept_difference: int | None
    accept_lost_markers: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseOptions(SinkOptions):
    """The values of the options that every sink into a table of a database has.

    Raises ConfigError if `mode`, `key` and `version` do not fit together.
    """

    table: str
    mode: str
    key: tuple[str, ...]
    version: str | None
    markers: str | None
    timeout_seconds: int

    def __post_init__(self) -> None:
        if self.mode == UPSERT and not self.key:
            raise ConfigError("Mode upsert needs the option key: the columns that identify a row.")
        if self.mode == APPEND and self.key:
            raise ConfigError(
                "Option key is for the modes upsert and atomic; append only adds rows."
            )
        if self.version is not None and not self.key:
            raise ConfigError(
                "Option version decides between rows of one key: give the option key."
            )
        if self.version in self.key:
            raise ConfigError(f"Option version={self.version!r} cannot be a column of the key.")


def database_texts(
    table: str, mode: str, key: str | Sequence[str], version: str | None
) -> dict[str, str]:
    """Return the options of a sink into a table of a database, as a user gives them to a format."""
    texts = {"table": table, "mode": mode}
    if key:
        texts["key"] = ",".join([key] if isinstance(key, str) else key)
    if version is not None:
        texts["version"] = version
    return texts


def named(name: str) -> Option:
    help_text = "name of the sink within its query; two sinks need two names"
    return Option("name", NAME, name, help_text)


def database_options(
    name: str, sql_name: Kind, *own: Option, unique: str, place: str
) -> tuple[Option, ...]:
    """Return the options of a sink into a table. `place` is what the server has for a schema."""
    return (
        Option("table", sql_name, REQUIRED, "the table, which must exist"),
        Option("mode", choice(APPEND, UPSERT, ATOMIC), APPEND, help="see above"),
        Option("key", names(), (), help=f"columns over which the table has {unique}"),
        Option("version", text(),
               help="column that decides between rows of one key: the greatest stays, of equal "
                    "ones the first"),
        Option("markers", sql_name, help=f"table of the markers; default: in the table's {place}"),
        *own,
        Option("timeout.seconds", whole(1, 3600), 60,
               help="longest wait for a server, and a lock"),
        STAGING,
        named(name),
        *ACCEPT,
    )  # fmt: skip


def sink_values(
    format_name: str, options: Mapping[str, str], declared: Iterable[Option], prefix: str = ""
) -> dict[str, Any]:
    values = read_options(options, declared, owner=f"format {format_name}", prefix=prefix)
    values.pop(STAGING.name, None)
    return values | {"ledger": folder(options, values["name"])}


def folder(options: Mapping[str, str], name: str) -> str:
    """Return the folder below the checkpoint for a sink's own files. `name` is the folder's name.

    Driver and executors share this folder.
    """
    texts = {option.lower(): value.strip() for option, value in options.items()}
    if texts.get("staging"):
        return f"{_absolute(texts['staging'])}/{name}"
    if checkpoint := texts.get("checkpointlocation"):
        return f"{located(checkpoint)}/dedup-sinks/{name}"
    raise ConfigError(
        "The sink needs a folder that driver and executors share, for staged slices. Give the "
        "option checkpointLocation, below which it makes one, or the option staging."
    )


def located(checkpoint: str) -> str:
    """Return a checkpoint's location in pyarrow's form, which is the same in every process."""
    same = re.sub(r"^s3[an]://", "s3://", checkpoint)
    return _absolute(re.sub(r"^file:(//localhost)?/+", "/", same))


def _absolute(where: str) -> str:
    return where.rstrip("/") if scheme_of(where) else os.path.abspath(where)
