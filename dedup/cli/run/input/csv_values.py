"""Typed columns of CSV: a value is exactly what its text says, or the row is bad.

Spark's CSV reader rounds decimals, cuts digits below the microsecond, and reads a text with a time
of day as a date. So this module lets Spark read every column as text. Then Spark's CSV parser
converts the columns with other types, and a value that the type cannot hold exactly becomes null.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrameReader
from pyspark.sql import functions as fn
from pyspark.sql import types as T  # noqa: N812

from dedup.sources.files.text_options import _separator as separator
from dedup.sources.strict_json import TOO_FINE, decimal
from dedup.spark.driver.columns import named_column
from dedup.spark.plan import HELPER_PREFIX

_TYPED = f"{HELPER_PREFIX}typed"
#: Options of Spark's reader that affect how the text of a value is read.
_MEANING = (
    "dateformat",
    "timestampformat",
    "timestampntzformat",
    "timezone",
    "locale",
    "enabledatetimeparsingfallback",
    "nanvalue",
    "positiveinf",
    "negativeinf",
)
BETWEEN = "\x1f"
#: Matches numbers that Java parses fast. Java needs minutes for very many digits or a large
#: exponent.
_NUMBER = r"^[+-]?(?:\d{0,500}|[1-9]\d{0,2}(?:,\d{3}){1,20})(?:\.\d{0,500})?(?:[eE][+-]?\d\d?)?$"
#: Matches numbers that only Java accepts, such as 1D or 0x1p3.
_OF_JAVA = r"^\s*[+-]?(0[xX]|[.\d]+([eE][+-]?\d+)?[dDfF]\s*$)"
#: Matches text that begins with a whole date. Spark would complete a year or a month to its first
#: day, and a time of day by today's date.
_TIME = r"^\s*[+-]?\d{4,7}(-\d{1,2}){2}"
_DATE = rf"{_TIME}\s*$"
#: Patterns of times. All values of an inferred column must match the same pattern.
_WRITTEN = tuple(
    f"yyyy-MM-dd{between}HH:mm:ss{fraction}{zone}"
    for between in (" ", "'T'")
    for fraction in ("", ".SSS", ".SSSSSS")
    for zone in ("", "XXX")
)


def as_text(schema: T.StructType, folders: Container[str]) -> T.StructType:
    """Return the columns with the type text, except for columns that folders name."""
    return T.StructType(
        [
            field
            if field.name.lower() in folders or isinstance(field.dataType, T.StringType)
            else T.StructField(field.name, T.StringType())
            for field in schema.fields
        ]
    )


def spelled_alike(
    reader: DataFrameReader,
    places: str | list[str],
    schema: T.StructType,
    folders: Container[str],
    settings: Mapping[str, str],
) -> T.StructType:
    """Return an inferred schema. Columns whose values are not all spelled alike become text.

    An example is a column with 1 and 01. `folders` are the columns that folders name. `settings`
    are options of Spark's reader, by name in lower case.
    """
    texts = as_text(schema, folders)
    typed = [f for f, text in zip(schema.fields, texts.fields, strict=True) if f != text]
    if not typed:
        return schema
    rows = reader.schema(texts).load(places)
    kept = []
    for field, value in zip(typed, _exact(typed, settings), strict=True):
        if isinstance(field.dataType, (T.TimestampType, T.TimestampNTZType)):
            given = settings.get("timestampformat"), settings.get("timestampntzformat")
            patterns = [p for p in given if p is not None] or _WRITTEN
            written = [fn.date_format(value, pattern) for pattern in patterns]
        elif isinstance(field.dataType, T.DateType) and "dateformat" in settings:
            written = [fn.date_format(value, settings["dateformat"])]
        else:
            written = [value.cast("string")]
        text = named_column(field.name)
        alike = [fn.bool_and(text.isNull() | text.eqNullSafe(spelling)) for spelling in written]
        kept.append(reduce(or_, alike))
    are_alike = rows.withColumn(_TYPED, _parsed(typed, settings)).select(*kept).first()
    assert are_alike is not None
    lost = {field.name for field, is_alike in zip(typed, are_alike, strict=True) if not is_alike}
    return T.StructType(
        [T.StructField(f.name, T.StringType()) if f.name in lost else f for f in schema.fields]
    )


def _parsed(typed: Sequence[T.StructField], settings: Mapping[str, str]) -> Column:
    """Return the values that Spark's CSV parser reads in typed columns, or null if it cannot."""
    # `_exact` converts these types itself.
    own = T.IntegralType, T.DecimalType, T.BinaryType
    parsed = {f"_{at}": f for at, f in enumerate(typed) if not isinstance(f.dataType, own)}
    # Replace control characters, which would end the line. Valid values have none.
    columns = [
        fn.regexp_replace(named_column(f.name), r"[\x00-\x1f]", "?") for f in parsed.values()
    ]
    texts = [fn.coalesce(text, fn.lit("")) for text in columns]
    ddl = "".join(f", {place} {f.dataType.simpleString()}" for place, f in parsed.items())
    # Put a value first, so that the line is never empty.
    line = fn.concat_ws(BETWEEN, fn.lit("_"), *texts)
    options = {name: settings[name] for name in _MEANING if name in settings}
    options |= {"sep": BETWEEN, "quote": "", "mode": "PERMISSIVE"}
    return fn.from_csv(line, f"_ STRING{ddl}", options)


def _exact(typed: Sequence[T.StructField], settings: Mapping[str, str]) -> list[Column]:
    """Return the values of typed columns. A value that differs from its text becomes null."""
    is_english = settings.get("locale", "en").lower().startswith("en")
    # A comma separates thousands only in English. Elsewhere it may be the decimal sign.
    may_group = is_english and separator(settings) != ";"
    values = []
    for at, field in enumerate(typed):
        text, value = named_column(field.name), fn.col(_TYPED)[f"_{at}"]
        kind, plain = field.dataType, fn.when(~text.contains(","), text)
        if isinstance(kind, T.BinaryType):
            value = text.cast("binary")
        elif isinstance(kind, T.DecimalType):
            value = _number(text if may_group else plain, kind)
        elif isinstance(kind, T.IntegralType):
            value = _number(plain, T.DecimalType(38, 0)).try_cast(kind)
        elif isinstance(kind, T.FractionalType):
            # Reject overflow to infinity, and Java's `1D`.
            is_wrong = (fn.abs(value) == float("inf")) | text.rlike(_OF_JAVA)
            value = fn.when(~(text.rlike("[0-9]") & is_wrong), value)
        elif isinstance(kind, T.DateType):
            value = fn.when(_is_day(text, settings.get("dateformat")), value)
        elif isinstance(kind, (T.TimestampType, T.TimestampNTZType, T.DayTimeIntervalType)):
            value = fn.when(_is_whole_time(text, value, field, settings), value)
        values.append(value)
    return values


def _number(text: Column, kind: T.DecimalType) -> Column:
    plain = fn.replace(text, fn.lit(","), fn.lit(""))
    return fn.when(text.rlike(_NUMBER), decimal(plain, kind))


def _is_day(text: Column, pattern: str | None) -> Column:
    if pattern is None:
        return text.rlike(_DATE)
    moment = fn.try_to_timestamp(text, fn.lit(pattern))
    return fn.coalesce(moment == fn.date_trunc("day", moment), text.rlike(_DATE))


def _is_whole_time(
    text: Column, value: Column, field: T.StructField, settings: Mapping[str, str]
) -> Column:
    is_whole = ~text.rlike(TOO_FINE)
    if isinstance(field.dataType, T.DayTimeIntervalType):
        return is_whole
    zoned = isinstance(field.dataType, T.TimestampType)
    pattern = settings.get("timestampformat" if zoned else "timestampntzformat")
    if pattern is None:
        return is_whole & text.rlike(_TIME)
    fine = max(map(len, re.findall("S+", pattern)), default=0)
    if fine <= 6:
        return is_whole
    return is_whole & fn.contains(text, fn.date_format(value, "S" * fine))
