"""Reject texts that are not UTF-8. Spark keeps any bytes cast to a text, but most sinks do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from dedup.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_SHOWN_BYTES = 60
#: The class (name) of the error that Spark raises for a text that is not UTF-8.
_INVALID = "INVALID_UTF8_STRING"


@contextmanager
def only_utf8(where: str) -> Iterator[None]:
    """Replace a UnicodeDecodeError of the ``with`` block by a DataError.

    The error says that `where`, the name of an output, does not accept the text.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        text = bytes(error.object)
        shown = repr(text[:_SHOWN_BYTES]) + (" ..." if len(text) > _SHOWN_BYTES else "")
        raise DataError(
            f"A record has a text that is not UTF-8, which {where} does not take: {shown}. Spark "
            "keeps such bytes if binary was cast to string. Put make_valid_utf8(column) of "
            "pyspark.sql.functions before the sink, or leave the column binary. This task has "
            "published nothing of the micro-batch."
        ) from None


def check_utf8(rows: pa.RecordBatch) -> None:
    """Raise UnicodeDecodeError if a text in `rows`, even a nested text, is not UTF-8.

    Call this within `only_utf8`, which replaces the error.
    """
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid:
        # Arrow's error does not show the text. Python's error does.
        for column in rows.columns:
            with suppress(OverflowError):  # a time or date that Python cannot hold
                column.to_pylist()
        raise


def exact_texts(
    rows: DataFrame, file_format: str, split_by: str | None, options: Mapping[str, str]
) -> DataFrame:
    """Return rows that Spark's writer of text files can write without loss or change.

    Spark's writer would replace bytes that are not UTF-8 by U+FFFD, so this validates each text.
    The writer would leave out empty lines, so null becomes ``""`` in a CSV file of one column. The
    column `split_by` does not count, because it is not in the files.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    from dedup.spark.driver.columns import named_column

    kinds = [field.dataType for field in rows.schema.fields]
    columns = list(map(_valid, map(named_column, rows.columns), kinds))
    in_files = [place for place, name in enumerate(rows.columns) if name != split_by]
    if file_format == "csv" and len(in_files) == 1:
        (only,) = in_files
        is_text = kinds[only] == T.StringType()
        formats = {name: value for name, value in options.items() if name.endswith("Format")}
        text = columns[only] if is_text else F.to_csv(F.struct(columns[only]), formats)
        columns[only] = F.coalesce(text, F.lit(""))
    return rows.select(*(c.alias(name) for c, name in zip(columns, rows.columns, strict=True)))


@contextmanager
def naming_texts(file_format: str) -> Iterator[None]:
    """Replace Spark's error for a text that is not UTF-8 by a DataError that says what to do."""
    try:
        yield
    except Exception as error:
        if _INVALID not in str(error):
            raise
        shown = str(error).partition(_INVALID)[2].partition("found in string: ")[2][:60]
        raise DataError(
            f"A record has a text that is not UTF-8, which {file_format.upper()} files cannot "
            f"hold: {shown.partition(' SQLSTATE')[0].strip()} Nothing of its micro-batch was "
            "published. Correct the record, or write Parquet (--output-format parquet), which "
            "keeps all bytes.",
            remedy="bad-records",
        ) from None


def _valid(column: Column, kind: DataType) -> Column:
    """Return the column with a check that fails if a text, even a nested text, is not UTF-8."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    if isinstance(kind, T.StringType):
        return F.validate_utf8(column)
    if "string" not in kind.simpleString():
        return column
    if isinstance(kind, T.ArrayType):
        return F.transform(column, lambda item: _valid(item, kind.elementType))
    if isinstance(kind, T.MapType):
        if "string" in kind.keyType.simpleString():
            column = F.transform_keys(column, lambda key, _: _valid(key, kind.keyType))
        return F.transform_values(column, lambda _, value: _valid(value, kind.valueType))
    if isinstance(kind, T.StructType):
        inner = (_valid(column[field.name], field.dataType).alias(field.name) for field in kind)
        return F.when(column.isNotNull(), F.struct(*inner))
    return column
