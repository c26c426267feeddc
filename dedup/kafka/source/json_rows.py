"""JSON in the values of Kafka's records, as columns: parsed by Spark, on the JVM.

`from_json` reads the first JSON value of a text and passes over what follows it. So the value is
parsed inside an object that our text around it opens and closes: where anything follows, either the
whole is no JSON, or the mark behind the value is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import ConfigError
from dedup.kafka.source.parsed import CAUSE, FIELDS

_VALUE, _END, _CORRUPT = "_value", "_end", "_corrupt"
_OURS = ("mode", "columnnameofcorruptrecord", "multiline", "encoding", "linesep")
_PARSED, _LOOSE = "__parsed", "__loose"


def check_options(options: Mapping[str, str]) -> None:
    """Refuse options of `from_json` that would change what counts as a poison record.

    Raises
    ------
    ConfigError
        Naming the option.
    """
    for name in options:
        if name.lower() in _OURS:
            raise ConfigError(
                f"Option {name} cannot be given to Json: a value is one JSON object in UTF-8, and "
                "on_error= says what becomes of others. Leave it out."
            )


def parse_json(records: DataFrame, schema: T.StructType, options: Mapping[str, str]) -> DataFrame:
    """Return the records with `FIELDS` and `CAUSE` behind their columns.

    Parameters
    ----------
    records : DataFrame
        With a binary column ``value``; a null in it has neither fields nor a cause.
    schema : StructType
        Of the fields. One that is not nullable must be there.
    options : mapping of str to str
        As `from_json` takes them.
    """
    text = F.col("value").cast("string")
    parsed = records.withColumn(_PARSED, _parsed(text, _nullable(schema), options))
    value = F.col(_PARSED)[_VALUE]
    # `broken` is null where there is no value.
    broken = F.col(_PARSED)[_CORRUPT].isNotNull() | F.col(_PARSED)[_END].isNull() | value.isNull()
    for _, missing in _lacking(schema):
        broken = broken | missing
    bad = F.col("value").isNotNull() & (broken | ~F.is_valid_utf8(text))
    cause = F.when(bad, _cause(text, schema, options))
    named = parsed.withColumn(CAUSE, cause)
    fields = F.when(F.col(CAUSE).isNull(), value)
    return named.withColumn(FIELDS, fields).drop(_PARSED)


def _parsed(text: Column, kind: T.DataType, options: Mapping[str, str]) -> Column:
    whole = F.concat(F.lit(f'{{"{_VALUE}":'), text, F.lit(f',"{_END}":1}}'))
    schema = T.StructType(
        [
            T.StructField(_VALUE, kind),
            T.StructField(_END, T.IntegerType()),
            T.StructField(_CORRUPT, T.StringType()),
        ]
    )
    given = {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    return F.from_json(whole, schema, given)


def _cause(text: Column, schema: T.StructType, options: Mapping[str, str]) -> Column:
    """Return why a value is refused; worked out for such values alone."""
    loose = T.StructType([T.StructField(f.name, T.StringType()) for f in schema.fields])
    raw = _parsed(text, T.StringType(), options)
    strings = _parsed(text, loose, options)
    value = F.col(_PARSED)[_VALUE]
    misfits = [
        F.when(
            strings[_VALUE][f.name].isNotNull() & value[f.name].isNull(),
            F.lit(f"Field {f.name} is no {f.dataType.simpleString()}."),
        )
        for f in schema.fields
    ]
    missing = [
        F.when(absent, F.lit(f"Field {name} is missing or null, and the schema needs it."))
        for name, absent in _lacking(schema)
    ]
    return F.coalesce(
        F.when(~F.is_valid_utf8(text), F.lit("It is not valid UTF-8.")),
        F.when(text.rlike(r"^\s*$"), F.lit("It is empty.")),
        F.when(
            raw[_CORRUPT].isNotNull() | raw[_END].isNull(),
            F.lit("It is not one JSON value and nothing else."),
        ),
        F.when(
            strings[_CORRUPT].isNotNull() | strings[_VALUE].isNull(),
            F.lit("It is JSON, but no object."),
        ),
        *misfits,
        *missing,
        F.lit("A value in it does not fit the schema."),
    )


def _lacking(schema: T.StructType, above: tuple[str, ...] = ()) -> Iterator[tuple[str, Column]]:
    """Yield each field that must be there, and whether it is not: nulls in arrays are let be."""
    whole = F.col(_PARSED)[_VALUE]
    for name in above:
        whole = whole[name]
    for field in schema.fields:
        if not field.nullable:
            absent = whole[field.name].isNull()
            # What lies in an object that may be missing is needed where that is there.
            yield ".".join([*above, field.name]), (whole.isNotNull() & absent) if above else absent
        if isinstance(field.dataType, T.StructType):
            yield from _lacking(field.dataType, (*above, field.name))


def _nullable(kind: T.DataType) -> T.DataType:
    """Return the type with nothing required, as `from_json` reads it in any case."""
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(f.name, _nullable(f.dataType)) for f in kind.fields])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_nullable(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, _nullable(kind.valueType))
    return kind
