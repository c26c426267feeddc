"""The options of the Delta Lake and Iceberg sinks, which users pass to ``writeStream.option``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from dedup.errors import ConfigError, SinkError
from dedup.errors.redaction import without_secrets
from dedup.sinks.options import ACCEPT, SinkOptions, named, sink_values
from dedup.storage.uri import local_path, scheme_of, without_credentials
from dedup.values.option import REQUIRED, Option, switch, text

DELTA, ICEBERG = "dedup_delta", "dedup_iceberg"
#: For each format, the prefix of the options that the sink passes to the library.
PREFIXES = {DELTA: "storage.", ICEBERG: "catalog."}
#: Pattern of a percent-encoded character.
_ENCODED = re.compile("%[0-9A-Fa-f]{2}")
#: Settings that users may give delta-rs. They say how to connect, not to which store or as whom.
_CONNECTION = frozenset({
    "allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only",
    "max_retries", "pool_idle_timeout", "pool_max_idle_per_host", "retry_timeout", "timeout",
    "user_agent",
})  # fmt: skip

_PATH = "the folder of the table, such as /data/orders or s3://bucket/orders"
_TABLE = "its name with the namespace, such as shop.orders"
_CREATE = Option(
    "create", switch(), False, help="create a missing table from the columns of the stream"
)
OPTIONS = {
    DELTA: (Option("path", text(), REQUIRED, _PATH), _CREATE, named("delta"), *ACCEPT),
    ICEBERG: (
        Option("table", text(r".+\..+", f"be {_TABLE}."), REQUIRED, _TABLE),
        Option("catalog", text(), "default", "name of the catalog in pyiceberg's configuration"),
        _CREATE,
        named("iceberg"),
        *ACCEPT,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOptions(SinkOptions):
    """The values of the options in `OPTIONS`, and the properties that go to the library.

    `table` is the location of a Delta table, or the name of an Iceberg table.
    """

    format_name: str
    table: str
    catalog: str = ""
    properties: Mapping[str, str] = field(repr=False)
    create: bool

    def without_secrets(self, text: object) -> str:
        return without_secrets(text, self.properties)

    def missing(self) -> ConfigError:
        where = f" in catalog {self.catalog}" if self.catalog else ""
        return ConfigError(
            f"Table {self.table} does not exist{where}. Create it, correct the option that names "
            "it, or let the option create=true make it from the columns of the stream."
        )

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Turn errors of the library into a SinkError."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            raise SinkError(
                f"Table {self.table} cannot be opened: {self.without_secrets(error)}. Start the "
                "query again once it can. It finds a commit that has become visible."
            ) from None


def lake_options(format_name: str, options: Mapping[str, str]) -> LakeOptions:
    """Return the options that a user gave.

    Names of options may be in any case, but the part after a prefix in `PREFIXES` is
    case-sensitive.
    """
    prefix = PREFIXES[format_name]
    values = sink_values(format_name, options, OPTIONS[format_name], prefix)
    # Depending on its version, Spark passes the names in lower case or as the user wrote them.
    properties = {
        key[len(prefix) :]: value.strip()
        for key, value in options.items()
        if key.lower().startswith(prefix)
    }
    if format_name == DELTA:
        values["table"] = _location(values.pop("path"))
        _check_storage(properties)
    return LakeOptions(format_name=format_name, properties=properties, **values)


def _location(path: str) -> str:
    scheme, plain = (scheme_of(path) or "").lower() or None, without_credentials(path)
    if scheme is not None and plain != path:
        raise ConfigError(
            f"Option path={plain!r} was given with credentials or a query ('?'), which would show "
            "in the table's log, in errors and in the checkpoint. Set them in the environment of "
            "driver and executors (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)."
        )
    if scheme in ("s3", "s3a", "s3n"):
        path = "s3" + path[len(scheme) :]
    elif scheme not in (None, "file"):
        raise ConfigError(
            f"Option path={plain!r} begins with {scheme}:, and this sink was tried with local "
            "folders (with a colon in the first name: ./a:b) and with s3:// only. On other stores "
            "use delta_once with Delta's own connector, or an Iceberg table."
        )
    is_local = scheme in (None, "file")
    place = os.path.abspath(local_path(path) if scheme else path) if is_local else path.rstrip("/")
    if _ENCODED.search(place) if is_local else "#" in place:
        what = "a percent sign and two digits" if is_local else "a '#'"
        raise ConfigError(
            f"Option path={place!r} has {what}, which delta-rs decodes or cuts off, so that log "
            "and data files would be in two folders. Rename the folder."
        )
    return place


def _check_storage(properties: Mapping[str, str]) -> None:
    """Reject settings that could make delta-rs commit to a store that lacks the data files."""
    for name in properties:
        if name.lower().removeprefix("aws_").removeprefix("s3_") not in _CONNECTION:
            raise ConfigError(
                f"Option storage.{name} is not supported: data files are written without it, so "
                "they could be in another store than the commits. Set endpoint, region and "
                "credentials in the environment of driver and executors (AWS_ENDPOINT_URL, "
                f"AWS_REGION, ...). storage.* takes {', '.join(sorted(_CONNECTION))}."
            )
