"""JSON in the values of Kafka's records, as columns."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from dedup.spark.driver.strict_json import with_fields, with_tagged

_WHOLE = "a value is one JSON object in UTF-8, and on_error= decides about others"
#: Options of `from_json` that would change what counts as a poison record.
FIXED = dict.fromkeys(("mode", "multiline", "encoding", "charset", "linesep"), _WHOLE)


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
    return with_fields(with_tagged(records, F.col("value").cast("string")), schema, options)
