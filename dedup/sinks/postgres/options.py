"""Options of the sink, as ``writeStream.option`` takes them, checked before anything is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dedup.errors import ConfigError
from dedup.sinks.options import batch_number, check_name, flag, folder, known_options

FORMAT = "dedup_postgres"
APPEND, UPSERT, ATOMIC = "append", "upsert", "atomic"
MODES = (APPEND, UPSERT, ATOMIC)

_OWN = (
    "accept.difference", "accept.lost.markers", "checkpointlocation", "dsn", "key", "markers",
    "mode", "name", "quarantine", "staging.schema", "table", "timeout.seconds", "version",
)  # fmt: skip

_PART = r'(?:"(?:[^"]|"")+"|[A-Za-z_][\w$]*)'
_IDENTIFIER = re.compile(rf"{_PART}(?:\.{_PART})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions:
    """What a sink was told.

    Parameters
    ----------
    dsn : str
        How to connect, as libpq takes it.
    table : str
        As in SQL: ``orders``, ``shop.orders``, ``"Orders"``.
    mode : str
        One of `MODES`.
    key : tuple of str
        Columns that tell rows apart; rows of a key that is there are updated. Empty: appended.
    version : str or None
        Column; of two rows with one key the greater one stays.
    name : str
        Of the sink within its query; part of markers.
    markers, staging_schema : str or None
        The table of the markers, and the schema in which slices wait, as in SQL; None: beside
        the table.
    quarantine : str or None
        Table for records that the table does not take, as in SQL; None: they stop the query.
    ledger : str
        Folder of what the checkpoint remembers of the sink.
    timeout_s : int
        How long to wait for a server that restarts, and for a lock.
    accept_difference : int or None
        A micro-batch that goes on although its published slices hold other rows.
    accept_lost_markers : bool
    """

    dsn: str = field(repr=False)  # it may hold a password
    table: str
    mode: str = APPEND
    key: tuple[str, ...] = ()
    version: str | None = None
    name: str = "postgres"
    markers: str | None = None
    staging_schema: str | None = None
    quarantine: str | None = None
    ledger: str = field(repr=False)
    timeout_s: int = 60
    accept_difference: int | None = None
    accept_lost_markers: bool = False


def postgres_options(given: Mapping[str, str]) -> PostgresOptions:
    """Return the options that a user gave.

    Parameters
    ----------
    given : mapping of str to str
        In any case, as Spark's options are.

    Raises
    ------
    ConfigError
        If one is unknown, missing or cannot be.
    """
    options = known_options(given, _OWN, format_name=FORMAT)
    for needed, what in (
        ("dsn", "how to connect, such as postgresql://user@host/database"),
        ("table", "the table, which has to exist"),
    ):
        if not options.get(needed):
            raise ConfigError(f"The sink needs the option {needed}: {what}.")
    for name in ("table", "markers", "quarantine", "staging.schema"):
        if options.get(name) and not _IDENTIFIER.fullmatch(options[name]):
            raise ConfigError(
                f"Option {name}={options[name]!r} must be a name as in SQL, such as orders, "
                'shop.orders or "Orders".'
            )
    mode = options.get("mode", APPEND).lower()
    if mode not in MODES:
        raise ConfigError(f"Option mode={mode!r} must be one of {', '.join(MODES)}.")
    key = tuple(each.strip() for each in options.get("key", "").split(",") if each.strip())
    version = options.get("version") or None
    if mode == UPSERT and not key:
        raise ConfigError("Mode upsert needs the option key: the columns that tell rows apart.")
    if mode == APPEND and key:
        raise ConfigError("Option key is for the modes upsert and atomic; append only adds rows.")
    if version is not None and not key:
        raise ConfigError("Option version decides between rows of one key: give the option key.")
    if version in key:
        raise ConfigError(f"Option version={version!r} cannot be a column of the key as well.")
    name = options.get("name", "postgres")
    check_name("name", name, "markers")
    return PostgresOptions(
        dsn=options["dsn"],
        table=options["table"],
        mode=mode,
        key=key,
        version=version,
        name=name,
        markers=options.get("markers") or None,
        staging_schema=options.get("staging.schema") or None,
        quarantine=options.get("quarantine") or None,
        ledger=folder(options, name),
        timeout_s=_seconds(options.get("timeout.seconds", "60")),
        accept_difference=batch_number("accept.difference", options),
        accept_lost_markers=flag("accept.lost.markers", options),
    )


def _seconds(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 3600:
        raise ConfigError(f"Option timeout.seconds={text!r} must be 1 to 3600.")
    return int(text)
