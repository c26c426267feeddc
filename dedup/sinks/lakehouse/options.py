"""Options of the two sinks, as ``writeStream.option`` takes them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dedup.catalog.uri import local_path, scheme_of, without_credentials
from dedup.errors import ConfigError
from dedup.errors.redaction import without_secrets
from dedup.sinks.options import batch_number, check_name, flag, folder, known_options

DELTA, ICEBERG = "dedup_delta", "dedup_iceberg"
#: How the options begin that go to the library, by the format.
PREFIXES = {DELTA: "storage.", ICEBERG: "catalog."}

#: What delta-rs may be told of how it speaks with a store, but not of which, nor as whom.
_OF_CONNECTION = frozenset({
    "allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only",
    "max_retries", "pool_idle_timeout", "pool_max_idle_per_host", "retry_timeout", "timeout",
    "user_agent",
})  # fmt: skip
#: A character as URIs write it.
_ENCODED = re.compile("%[0-9A-Fa-f]{2}")

_OWN = ("accept.difference", "accept.lost.markers", "checkpointlocation", "create", "name")
_OF_FORMAT = {DELTA: ("path",), ICEBERG: ("catalog", "table")}


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOptions:
    """What a sink was told.

    Parameters
    ----------
    format_name : str
        `DELTA` or `ICEBERG`.
    table : str
        Of Delta Lake its place, a path or a URI; of Iceberg its name, with the namespace.
    catalog : str
        Of Iceberg; its name in pyiceberg's configuration.
    properties : mapping of str to str
        For the library: how to reach the storage, or the catalog.
    create : bool
        Make the table from the columns of the stream where there is none.
    name : str
        Of the sink within its query; part of markers.
    ledger : str
        Folder of what the checkpoint remembers of the sink.
    accept_difference : int or None
        A micro-batch that counts as published although other rows of it are there.
    accept_lost_markers : bool
    """

    format_name: str
    table: str
    catalog: str = "default"
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    create: bool = False
    name: str
    ledger: str = field(repr=False)
    accept_difference: int | None = None
    accept_lost_markers: bool = False

    def without_secrets(self, text: object) -> str:
        """Return a text of a library without the secrets of these options."""
        return without_secrets(text, self.properties)


def lake_options(format_name: str, given: Mapping[str, str]) -> LakeOptions:
    """Return the options that a user gave.

    Parameters
    ----------
    format_name : str
        `DELTA` or `ICEBERG`.
    given : mapping of str to str
        In any case, as Spark's options are; what follows a prefix of `PREFIXES` keeps its case.

    Raises
    ------
    ConfigError
        If one is unknown, missing or cannot be.
    """
    prefix = PREFIXES[format_name]
    own = sorted((*_OWN, *_OF_FORMAT[format_name]))
    options = known_options(given, own, format_name=format_name, prefix=prefix)
    needed, what = (
        ("path", "the folder of the table, such as /data/orders or s3://bucket/orders")
        if format_name == DELTA
        else ("table", "its name with the namespace, such as shop.orders")
    )
    table = options.get(needed)
    if not table:
        raise ConfigError(f"The sink needs the option {needed}: {what}.")
    if format_name == ICEBERG and "." not in table:
        raise ConfigError(f"Option table={table!r} must be {what}.")
    if format_name == DELTA:
        _check_without_credentials(table)
        table = _place(table)
        is_uri = scheme_of(table) is not None
        if not is_uri and _ENCODED.search(table):
            raise ConfigError(
                f"Option path={table!r} has a percent sign and two digits, which delta-rs takes "
                "for one character: log and data files would be in two folders. Rename it."
            )
        if is_uri and "#" in table:
            raise ConfigError(
                f"Option path={table!r} has a '#', behind which a URI does not name a folder any "
                "more. Give the folder another name."
            )
    # Spark gives them in lower case or as they were written, by its version.
    properties = {
        key[len(prefix) :]: value.strip()
        for key, value in given.items()
        if key.lower().startswith(prefix)
    }
    if format_name == DELTA:
        _check_storage(properties)
    name = options.get("name", format_name.removeprefix("dedup_"))
    check_name("name", name, "markers")
    return LakeOptions(
        format_name=format_name,
        table=table,
        catalog=options.get("catalog", "default"),
        properties=properties,
        create=flag("create", options),
        name=name,
        ledger=folder(options, name),
        accept_difference=batch_number("accept.difference", options),
        accept_lost_markers=flag("accept.lost.markers", options),
    )


def _check_without_credentials(table: str) -> None:
    plain = without_credentials(table)
    if scheme_of(table) is not None and plain != table:
        raise ConfigError(
            f"Option path={plain!r} was given with credentials or a query ('?'), which would show "
            "in the table's log, in errors and the checkpoint. Leave them out. Give them by the "
            "environment of driver and executors (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)."
        )


def _check_storage(properties: Mapping[str, str]) -> None:
    """Refuse what would let delta-rs commit to another store than data files are written to."""
    for name in properties:
        plain = name.lower().removeprefix("aws_").removeprefix("s3_")
        if plain not in _OF_CONNECTION:
            raise ConfigError(
                f"Option storage.{name} is not taken: data files are written without it, so that "
                "they could be in another store than the commits. Give endpoint, region and "
                "credentials by the environment of driver and executors (AWS_ENDPOINT_URL, "
                f"AWS_REGION, ...); storage.* takes {', '.join(sorted(_OF_CONNECTION))}."
            )


def _place(table: str) -> str:
    scheme = scheme_of(table)
    if scheme in ("s3a", "s3n"):
        return "s3" + table[len(scheme) :].rstrip("/")
    if scheme not in (None, "file"):
        return table.rstrip("/")
    return os.path.abspath(local_path(table) if scheme else table)
