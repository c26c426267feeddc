"""Converts JSON text into typed columns, with one strict check for files and for Kafka.

A text is accepted only if it is exactly one JSON value. A value is accepted only if its column's
type holds it exactly, except that FLOAT and DOUBLE round.

`from_json` alone would accept text after the first value, repeated keys and unpaired surrogates. It
would read numbers through a double, and round or shorten values that do not fit. So Spark's strict
VARIANT parser checks the text. Then each string and number in the text is tagged: ``"abc"`` becomes
``"|abc"`` and ``1.50`` becomes ``"1.50|"``. `from_json` reads all tagged values as strings, level
by level. So each value keeps its kind and its spelling, and this module converts it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import ConfigError
from dedup.errors.cause import LINK
from dedup.spark.plan import HELPER_PREFIX

#: Names of added columns. `FIELDS` holds the fields of a good record, and is null for a bad record.
#: `CAUSE` is the reason why a record is bad, and is null for a good record.
FIELDS, CAUSE = f"{HELPER_PREFIX}fields", f"{HELPER_PREFIX}cause"
#: Name of the column with the tagged text, which is null if the text is not strict JSON.
TAGGED = f"{HELPER_PREFIX}tagged"
_RAW, _TYPED = f"{HELPER_PREFIX}raw", f"{HELPER_PREFIX}typed"
NOT_STRICT = (
    "It is not exactly one JSON value, or a key occurs twice in an object, or a surrogate has no "
    "partner."
)
_LAX = (
    f"\ndedup.errors.{ConfigError.__name__}: Spark would not notice a key that occurs twice. Set "
    "spark.sql.variant.allowDuplicateKeys to false."
)

_TEXT = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_NUMBER = "(-?[0-9][-+.0-9eE]*+)"
#: A tagged number, and the begin of a tagged string. A quote inside a string follows a backslash,
#: other quotes do not.
_TAGGED_NUMBER, _TAGGED_TEXT = rf'(?<!\\)"{_NUMBER}\|"', r'(?<!\\)"\|'
_BLANKS = " \t\r\n"
#: An escaped surrogate without its other half, which PySpark 4.1 reads as a question mark.
_HALF_PAIR = (
    r"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
#: A fraction of a second with more digits than Spark keeps.
TOO_FINE = r"[.,][0-9]{6}[0-9]*[1-9]"
#: Dates and times must match this pattern. Otherwise Spark would read a year or month as its first
#: day, and add today's date to a bare time.
_WITH_DAY = r"^\s*[-+]?\d{4,7}-\d{1,2}-\d{1,2}"
_DAY = rf"{_WITH_DAY}([T ]00:00(:00([.]0*)?)?Z?)?\s*$"
_WITHOUT_FORMAT = {T.DateType: _DAY, T.TimestampType: _WITH_DAY, T.TimestampNTZType: _WITH_DAY}
#: Seconds since 1970. Larger numbers overflow when Spark's parser counts microseconds.
_MAX_SECONDS = 9e12
#: Largest exponent of a number. No DECIMAL has as many digits, and Spark takes minutes to build a
#: number with a larger exponent.
_MAX_EXPONENT = 99
_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)


def is_good(topic: str, text: Column) -> Column:
    """Return true for a record without `CAUSE`. Stop the query at the first record with a `CAUSE`.

    The error looks like the DataError that a Python task would raise with this text.
    """
    # The text begins on a line of its own, like the error of a Python task.
    error = F.concat(F.lit("\ndedup.errors.DataError: "), text, F.lit(f"\n{LINK}{topic}"))
    return F.when(F.col(CAUSE).isNull(), True).otherwise(F.raise_error(error).cast("boolean"))


def check_options(options: Mapping[str, str], others: Mapping[str, str], shown: str) -> None:
    """Raise ConfigError for an option of Spark's JSON reader that does not fit strict reading.

    `others` has more options that the caller rejects: names in lower case, with the reasons.
    `shown` is how users write an option, such as ``--read-option {}``.
    """
    for name, value in options.items():
        why = others.get(name.lower()) or _refusal(name.lower(), value)
        if why is not None:
            raise ConfigError(
                f"{shown.format(name)}={value} has no meaning for JSON: {why}. Leave it out.",
                remedy="bad-records",
            )


def _refusal(folded: str, value: str) -> str | None:
    if folded.startswith("allow") and str(value).lower() == "true":
        return "the text must be strict JSON"
    if folded in ("columnnameofcorruptrecord", "singlevariantcolumn"):
        return "dedup finds such records in another way"
    if folded in ("dateformat", "timestampformat", "timestampntzformat"):
        letters = re.sub("'[^']*'", "", value)
        if folded == "dateformat" and set(letters) & set("aHhKkmsS"):
            return (
                "a DATE has no time of day: declare the column as TIMESTAMP, with timestampFormat"
            )
        if "S" * 7 in letters:
            return "a time has no more than six digits below the second"
    return None


def with_tagged(records: DataFrame, text: Column) -> DataFrame:
    """Add the columns `TAGGED` and `CAUSE`. `CAUSE` is set if the text is not strict JSON.

    A text is strict if it is exactly one JSON value in UTF-8, without a repeated key at any depth.
    """
    # The text of the end is random, so no record can contain the end and close the array early.
    end = secrets.token_hex(16)
    whole = F.try_parse_json(F.concat(F.lit("["), text, F.lit(f',"{end}"]')))
    is_one = F.try_variant_get(whole, "$[1]", "string") == end
    escapes = F.replace(text, F.lit(r"\\"), F.lit("__"))
    has_half = (text.contains(r"\ud") | text.contains(r"\uD")) & escapes.rlike(_HALF_PAIR)
    is_strict = F.coalesce(is_one & ~has_half & F.is_valid_utf8(text), F.lit(False))
    wrong = (
        F.when(~F.is_valid_utf8(text), F.lit("It is not valid UTF-8."))
        .when(text.rlike(r"^\s*$"), F.lit("It is empty."))
        .otherwise(F.lit(NOT_STRICT))
    )
    repeated = F.try_parse_json(F.lit('{"a":0,"a":0}')).isNotNull()
    cause = F.when(repeated, F.raise_error(F.lit(_LAX)).cast("string")).when(
        text.isNotNull() & ~is_strict, wrong
    )
    tagged = F.regexp_replace(F.ltrim(text, F.lit(_BLANKS)), f"{_TEXT}|{_NUMBER}", '"$2|$1"')
    return records.withColumn(CAUSE, cause).withColumn(
        TAGGED, F.when(F.col(CAUSE).isNull(), tagged)
    )


def elements(tagged: Column) -> Column:
    """Return the elements of a tagged array. Any other tagged value is the only element."""
    array = F.from_json(tagged, T.ArrayType(T.StringType()))
    nulls_as_text = F.transform(array, lambda one: F.coalesce(one, F.lit("null")))
    return F.when(tagged.startswith("["), nulls_as_text).otherwise(F.array(tagged))


def with_fields(records: DataFrame, schema: T.StructType, options: Mapping[str, str]) -> DataFrame:
    """Replace `TAGGED` by `FIELDS`, and set `CAUSE` if the fields cannot be read.

    `records` are from `with_tagged`. A field that is not nullable must be present. `options` are
    those of `from_json`: formats of dates and times, the time zone.
    """
    tagged, raw = F.col(TAGGED), F.col(_RAW)
    values, wrong = [], []
    for field in schema.fields:
        value = raw[f"|{field.name}"]
        values.append(_typed(value, field.dataType, options).alias(field.name))
        misses = value.isNotNull() & F.col(_TYPED)[field.name].isNull()
        text = f"Field {field.name} does not fit {field.dataType.simpleString()}."
        wrong.append(F.when(misses, F.lit(text)))
    no_object = F.when(tagged.isNotNull() & raw.isNull(), F.lit("It is JSON, but not an object."))
    rows = records.withColumn(
        _RAW, F.when(tagged.startswith("{"), _fields_of(tagged, schema.names))
    )
    rows = rows.withColumn(_TYPED, F.struct(*values))
    rows = rows.withColumn(CAUSE, F.coalesce(F.col(CAUSE), no_object, *wrong, *_lacking(schema)))
    fields = F.when(tagged.isNotNull() & F.col(CAUSE).isNull(), F.col(_TYPED))
    return rows.withColumn(FIELDS, fields).drop(TAGGED, _RAW, _TYPED)


def _lacking(schema: T.StructType, above: tuple[str, ...] = ()) -> list[Column]:
    """Return the causes of an error for fields that are missing but not nullable."""
    whole = F.col(_TYPED)
    for name in above:
        whole = whole[name]
    causes = []
    for field in schema.fields:
        if not field.nullable:
            # If an object may be missing, its fields are needed only if the object is there.
            absent = F.col(_RAW).isNotNull() & whole.isNotNull() & whole[field.name].isNull()
            path = ".".join([*above, field.name])
            text = f"Field {path} is missing or null, and the schema needs it."
            causes.append(F.when(absent, F.lit(text)))
        if isinstance(field.dataType, T.StructType):
            causes += _lacking(field.dataType, (*above, field.name))
    return causes


def _fields_of(text: Column, names: list[str]) -> Column:
    fields = [T.StructField(f"|{name}", T.StringType()) for name in names]
    # Without this option Spark treats a column of the default name as its own.
    return F.from_json(text, T.StructType(fields), {"columnNameOfCorruptRecord": "none"})


def _typed(raw: Column, kind: T.DataType, options: Mapping[str, str]) -> Column:
    """Convert a tagged value to the type `kind`, or to null if the value does not fit exactly."""
    if isinstance(kind, T.StructType):
        return _struct(raw, kind, options)
    if isinstance(kind, T.ArrayType):
        array = F.from_json(raw, T.ArrayType(T.StringType()))
        return _array(F.when(raw.startswith("["), array), kind.elementType, options)
    if isinstance(kind, T.MapType):
        entries = F.from_json(raw, T.MapType(T.StringType(), T.StringType()))
        return _bound(
            F.when(raw.startswith("{"), entries),
            lambda found: F.map_from_arrays(
                F.transform(F.map_keys(found), lambda key: F.substr(key, F.lit(2))),
                _array(F.map_values(found), kind.valueType, options),
            ),
        )
    number = F.rtrim(raw, F.lit("|"))
    is_text = raw.startswith("|")
    text = F.substr(raw, F.lit(2))
    if type(kind) is T.StringType:
        return F.when(is_text, text).when(raw.endswith("|"), number).otherwise(_json_text(raw))
    if isinstance(kind, _INTEGERS):
        whole = decimal(number, T.DecimalType(38, 0)).try_cast(kind)
        return F.when(raw.endswith("|"), F.coalesce(number.try_cast(kind), whole))
    if isinstance(kind, T.DecimalType):
        return decimal(F.when(is_text, text).otherwise(number), kind)
    found = _by_spark(raw, kind, options)
    if isinstance(kind, (T.FloatType, T.DoubleType)):
        rounded = number.try_cast(kind)
        return F.when(is_text, found).when(F.abs(rounded) < float("inf"), rounded)
    if isinstance(kind, _TIMES):
        fits = F.when(is_text, ~text.rlike(rf":[0-9]{{2}}{TOO_FINE}")).otherwise(
            F.abs(number.try_cast("double")) < _MAX_SECONDS
        )
        if f"{kind.typeName().replace('_', '')}format" not in {name.lower() for name in options}:
            fits = fits & (~is_text | text.rlike(_WITHOUT_FORMAT[type(kind)]))
        if not options and not isinstance(kind, T.TimestampNTZType):
            # A cast gives the same result faster. A cast to TIMESTAMP_NTZ would drop the zone.
            found = F.when(is_text, text.try_cast(kind)).otherwise(found)
        return F.when(fits, found)
    if isinstance(kind, T.BinaryType):
        # Reject Base64 with surplus bits: the bits would be lost, and two texts have one value.
        same = F.regexp_replace(F.base64(found), r"\s", "") == F.regexp_replace(text, r"\s", "")
        return F.when(same, found)
    if isinstance(kind, (T.DayTimeIntervalType, T.CalendarIntervalType)):
        return F.when(~text.rlike(TOO_FINE), found)
    return found


def _struct(raw: Column, kind: T.StructType, options: Mapping[str, str]) -> Column:
    def convert(found: Column) -> Column:
        values = [
            _typed(found[f"|{field.name}"], field.dataType, options).alias(field.name)
            for field in kind.fields
        ]
        return _bound(F.struct(*values), lambda typed: complete(found, typed))

    def complete(found: Column, typed: Column) -> Column:
        misses = [found[f"|{name}"].isNotNull() & typed[name].isNull() for name in kind.names]
        return F.when(~reduce(or_, misses, F.lit(False)), typed)

    return F.when(raw.startswith("{"), _bound(_fields_of(raw, kind.names), convert))


def _array(found: Column, kind: T.DataType, options: Mapping[str, str]) -> Column:
    def convert(raw: Column) -> Column:
        values = F.transform(raw, lambda one: _typed(one, kind, options))
        return _bound(values, lambda typed: F.when(count(typed) == count(raw), typed))

    def count(some: Column) -> Column:
        return F.size(F.array_compact(some))

    return _bound(found, convert)


def _bound(value: Column, use: Callable[[Column], Column]) -> Column:
    """Return ``use(value)``. Spark computes the value only once, even if `use` repeats it."""
    return F.transform(F.array(value), use)[0]


def decimal(number: Column, kind: T.DecimalType) -> Column:
    """Return a number's text as a DECIMAL, or null if the number has more digits than the type."""
    with_exponent = F.concat(number, F.lit("e0"))
    exponent = F.regexp_extract(with_exponent, "[eE]([^eE]*)", 1).try_cast("int")
    fraction = F.length(F.regexp_extract(number, "[.]([0-9]*[1-9])", 1))
    zeros = F.length(F.regexp_extract(number, "(0*)(?:[.]0*)?(?:[eE].*)?$", 1))
    decimals = F.when(fraction > 0, fraction).otherwise(-zeros) - exponent
    fits = (decimals <= kind.scale) | ~number.rlike("^[^eE]*[1-9]")
    return F.when(fits & (F.abs(exponent) <= _MAX_EXPONENT), number.try_cast(kind))


def _json_text(raw: Column) -> Column:
    return F.regexp_replace(F.regexp_replace(raw, _TAGGED_NUMBER, "$1"), _TAGGED_TEXT, '"')


def _by_spark(raw: Column, kind: T.DataType, options: Mapping[str, str]) -> Column:
    text = F.to_json(F.struct(F.substr(raw, F.lit(2)).alias("v")))
    other = F.concat(F.lit('{"v":'), _json_text(F.rtrim(raw, F.lit("|"))), F.lit("}"))
    one = F.when(raw.startswith("|"), text).otherwise(other)
    schema = T.StructType([T.StructField("v", kind)])
    return F.from_json(one, schema, {**options, "mode": "PERMISSIVE"})["v"]
