"""The options of the MySQL sink, which users pass to ``writeStream.option``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dedup.core.option import REQUIRED, Option, names, text
from dedup.errors import ConfigError
from dedup.sinks.options import (
    ACCEPT,
    MODE,
    STAGING,
    TIMEOUT,
    VERSION,
    DatabaseOptions,
    named,
    sink_values,
)

FORMAT = "dedup_mysql"
#: Options with this prefix are arguments of PyMySQL's ``connect``.
PREFIX = "mysql."

_PART = r"(?:`(?:[^`]|``)+`|[A-Za-z_$][\w$]*)"
_SQL_NAME = text(
    rf"{_PART}(?:\.{_PART})?", "be a name as in SQL, such as orders, shop.orders or `Orders`."
)
OPTIONS = (
    Option("table", _SQL_NAME, REQUIRED, "the table, which must exist"),
    MODE,
    Option("key", names(), (), help="columns over which the table has its only unique index"),
    VERSION,
    Option("markers", _SQL_NAME, help="table of the markers; default: in the table's database"),
    TIMEOUT,
    STAGING,
    named("mysql"),
    *ACCEPT,
)
#: PyMySQL's arguments that are texts, numbers and switches.
_TEXTS = {
    "host", "user", "password", "database", "unix_socket", "read_default_file",
    "read_default_group", "bind_address", "ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password",
    "server_public_key",
}  # fmt: skip
_NUMBERS = {"port", "connect_timeout", "read_timeout", "write_timeout"}
_SWITCHES = {"ssl_disabled", "ssl_verify_cert", "ssl_verify_identity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlOptions(DatabaseOptions):
    """The values of the options in `OPTIONS`, and the arguments of ``connect`` from ``mysql.*``."""

    connect: tuple[tuple[str, str | int | bool], ...] = field(repr=False)  # may hold a password


def mysql_options(given: Mapping[str, str]) -> MysqlOptions:
    values = sink_values(FORMAT, given, OPTIONS, prefix=PREFIX)
    return MysqlOptions(connect=_connect_arguments(given), **values)


def _connect_arguments(given: Mapping[str, str]) -> tuple[tuple[str, str | int | bool], ...]:
    found: dict[str, str | int | bool] = {}
    for option, value in given.items():
        name = option.lower().removeprefix(PREFIX)
        if name == option.lower():
            continue
        if name in _TEXTS:
            found[name] = value
        elif name in _NUMBERS and value.strip().isdecimal():
            found[name] = int(value)
        elif name in _SWITCHES and value.strip().lower() in ("true", "false"):
            found[name] = value.strip().lower() == "true"
        elif name in _NUMBERS | _SWITCHES:
            kind = "a whole number" if name in _NUMBERS else "true or false"
            raise ConfigError(f"Option {PREFIX}{name}={value!r} must be {kind}.")
        else:
            every = ", ".join(sorted(_TEXTS | _NUMBERS | _SWITCHES))
            raise ConfigError(
                f"The option {PREFIX}{name} is unknown. Options mysql.* are arguments of "
                f"pymysql.connect: {every}."
            )
    return tuple(sorted(found.items()))
