"""The options of the MySQL sink, which users pass to ``writeStream.option``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dedup.errors import ConfigError
from dedup.sinks.options import DatabaseOptions, database_options, sink_values
from dedup.values.option import Kind, Option, switch, text, whole

FORMAT = "dedup_mysql"
#: Options with this prefix are arguments of PyMySQL's ``connect``.
PREFIX = "mysql."

_PART = r"(?:`(?:[^`]|``)+`|[A-Za-z_$][\w$]*)"
_SQL_NAME = text(
    rf"{_PART}(?:\.{_PART})?", "be a name as in SQL, such as orders, shop.orders or `Orders`."
)
OPTIONS = database_options("mysql", _SQL_NAME, unique="its only unique index", place="database")
_EXACT = Kind(lambda value, name: value, str)  # a password may begin or end with a blank
#: PyMySQL's arguments.
CONNECT = {
    **dict.fromkeys(
        ("host", "user", "password", "database", "unix_socket", "read_default_file",
         "read_default_group", "bind_address", "ssl_ca", "ssl_cert", "ssl_key",
         "ssl_key_password", "server_public_key"), _EXACT,
    ),
    **dict.fromkeys(("port", "connect_timeout", "read_timeout", "write_timeout"), whole(0)),
    **dict.fromkeys(("ssl_disabled", "ssl_verify_cert", "ssl_verify_identity"), switch()),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlOptions(DatabaseOptions):
    """The values of the options in `OPTIONS`, and the arguments of ``connect`` from ``mysql.*``."""

    connect: tuple[tuple[str, str | int | bool], ...] = field(repr=False)  # may hold a password


def mysql_options(options: Mapping[str, str]) -> MysqlOptions:
    values = sink_values(FORMAT, options, OPTIONS, prefix=PREFIX)
    connect: dict[str, str | int | bool] = {}
    for option, value in options.items():
        name = option.lower().removeprefix(PREFIX)
        if name == option.lower():
            continue
        if name not in CONNECT:
            raise ConfigError(
                f"The option {PREFIX}{name} is unknown. Options mysql.* are arguments of "
                f"pymysql.connect: {', '.join(sorted(CONNECT))}."
            )
        connect[name] = Option(PREFIX + name, CONNECT[name]).read(value, f"Option {PREFIX}{name}")
    return MysqlOptions(connect=tuple(sorted(connect.items())), **values)
