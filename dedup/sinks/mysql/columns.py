"""Fit Spark columns to columns of MySQL, so that no value is lost or changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from dedup.errors import ConfigError
from dedup.sinks.columns import Unsuitable, check_length, decimal_size, fitting_decimal, plain_type
from dedup.sinks.kit.database import create_table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TEXTS = ("longtext", "mediumtext", "text", "tinytext", "varchar")
#: For each Spark type, the types of columns that keep every value. `mysql_ddl` takes the first.
_FITTING: dict[str, tuple[str, ...]] = {
    "boolean": ("tinyint",),
    "tinyint": ("tinyint", "smallint", "mediumint", "int", "bigint"),
    "smallint": ("smallint", "mediumint", "int", "bigint"),
    "int": ("int", "bigint"),
    "bigint": ("bigint",),
    "float": ("double",),
    "double": ("double",),
    "string": (*_TEXTS, "varbinary"),
    "binary": ("longblob", "mediumblob", "blob", "tinyblob", "varbinary"),
    "date": ("date",),
    "timestamp": ("datetime", "timestamp"),
    "timestamp_ntz": ("datetime",),
}
#: MySQL's manual, "The DATE, DATETIME, and TIMESTAMP Types": the supported years.
_FIRST_YEAR, _LAST_YEAR = 1000, 9999
#: MySQL's largest scale of decimals. MariaDB's is Spark's.
_MYSQL_SCALE = 30
#: Length of text columns of a key that `mysql_ddl` creates. InnoDB's index takes 3072 bytes.
_KEY_CHARACTERS = 255
#: Collations that compare bytes and keep blanks at the end (PAD ATTRIBUTE: NO PAD).
COLLATIONS = {"mysql": "utf8mb4_0900_bin", "mariadb": "utf8mb4_nopad_bin"}


@dataclass(frozen=True, slots=True)
class MysqlColumn:
    """A column of a table, as ``information_schema.columns`` describes it."""

    name: str
    kind: str
    is_unsigned: bool
    is_nullable: bool
    is_required: bool
    computed_by: str
    collation: str | None
    charset: str | None
    characters: int | None
    octets: int | None
    precision: int | None
    scale: int | None
    second_digits: int | None

    def check(self, spark: str) -> None:
        """Raise Unsuitable if values of a Spark type could be lost or changed in this column."""
        if self.computed_by:
            raise Unsuitable("the table computes this column")
        if self.is_unsigned:
            raise Unsuitable("the column is unsigned, and Spark's numbers are not")
        if self.kind == "decimal":
            fitting_decimal(spark, self.kind, (self.precision or 0, self.scale or 0))
            return
        fitting = _FITTING.get(plain_type(spark), ())
        if self.kind not in fitting:
            wanted = ", ".join(_wanted(spark)) or f"no type; {_ADVICE}"
            raise Unsuitable(f"it is {spark}, and there {self.kind}; without loss it fits {wanted}")
        if self.kind in _TEXTS and self.charset != "utf8mb4":
            raise Unsuitable(f"the column has the character set {self.charset}; use utf8mb4")
        if self.second_digits not in (None, 6) and self.kind != "date":
            raise Unsuitable(f"the column keeps {self.second_digits} digits of a second, Spark 6")

    def with_collation(self, collation: str | None) -> str:
        """Return the definition of a text column with another collation, or as bytes."""
        kind = f"{self.kind}({self.characters})" if self.kind == "varchar" else self.kind
        kind += f" CHARACTER SET utf8mb4 COLLATE {collation}"
        if collation is None:  # the server is older than any collation that keeps texts apart
            kind = f"varbinary({self.octets})"
        return f"{quoted(self.name)} {kind}{'' if self.is_nullable else ' NOT NULL'}"

    def values(self, array: pa.Array) -> list[Any]:
        """Return values as PyMySQL takes them, or raise Unsuitable if one does not fit."""
        kind = array.type
        # The server would generate a value for null in some columns (AUTO_INCREMENT, timestamp).
        if array.null_count and not self.is_nullable:
            raise Unsuitable("a record has no value, and the column is NOT NULL or of the key")
        if pa.types.is_timestamp(kind):
            if kind.tz is not None:
                array = array.cast(pa.timestamp("us", "UTC"))
            array = array.cast(pa.timestamp("us"))
        if pa.types.is_temporal(kind):
            years = pc.year(array)
            least, most = pc.min(years).as_py(), pc.max(years).as_py()
            if least is not None and (least < _FIRST_YEAR or most > _LAST_YEAR):
                raise Unsuitable(f"its year is not from {_FIRST_YEAR} to {_LAST_YEAR}")
        if pa.types.is_floating(kind) and pc.all(pc.is_finite(array)).as_py() is False:
            raise Unsuitable("NaN and infinity have no value in MySQL")
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            if self.kind == "varchar":
                check_length(array, self.characters)
            else:
                check_length(array, self.octets, "bytes")
            array = array if self.kind in _TEXTS else array.cast(pa.binary())
        return list(array.to_pylist())


_ADVICE = "make it a text with to_json(...)"


def mysql_ddl(
    schema: StructType,
    table: str,
    *,
    server: Literal["mysql", "mariadb"],
    key: str | Sequence[str] = (),
) -> str:
    """Return the statement that creates a table for the rows of a stream.

    Parameters
    ----------
    schema : StructType
        The stream's ``df.schema``. A column that is not nullable becomes ``NOT NULL``.
    table : str
        Name of the table as in SQL.
    server : str
        ``mysql`` (8.0.17 or newer) or ``mariadb``. Text columns get a collation under which equal
        means the same code points, and the two servers have different names for it.
    key : str or sequence of str, optional
        Columns of the primary key, for the modes ``upsert`` and ``atomic``. Its texts have at most
        255 characters.

    Raises
    ------
    ConfigError
        If a column has no type in MySQL, or a column of the key does not exist.
    """
    if server not in COLLATIONS:
        raise ConfigError(f"server={server!r} must be one of {', '.join(COLLATIONS)}.")

    def column_type(spark: str, in_key: bool) -> str:
        if not (wanted := _wanted(spark)):
            raise Unsuitable(f"it is {spark.partition('<')[0]}; {_ADVICE}")
        if server == "mysql" and (decimal_size(spark) or (0, 0))[1] > _MYSQL_SCALE:
            raise Unsuitable(f"MySQL keeps {_MYSQL_SCALE} digits after the point; cast it")
        kind = wanted[0]
        if in_key:
            check_key_type(kind)
            kind = kind.replace("longtext", f"varchar({_KEY_CHARACTERS})")
            kind = kind.replace("longblob", f"varbinary({_KEY_CHARACTERS})")
        if plain_type(spark) == "string":
            kind += f" CHARACTER SET utf8mb4 COLLATE {COLLATIONS[server]}"
        return kind

    return create_table(schema, table, key, quoted, column_type) + " ENGINE = InnoDB"


def check_key_type(kind: str) -> None:
    """Raise Unsuitable if the server takes different values of a type for equal."""
    if kind == "double":
        raise Unsuitable("it is part of the key, and 0.0 equals -0.0; make it a text with cast()")


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _wanted(spark: str) -> list[str]:
    if size := decimal_size(spark):
        return [f"decimal({size[0]},{size[1]})"]
    digits = {"datetime": "datetime(6)", "timestamp": "timestamp(6)"}
    return [digits.get(kind, kind) for kind in _FITTING.get(plain_type(spark), ())]
