"""Texts that are none: Spark keeps any bytes that were cast to a text, most sinks take UTF-8."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa

from dedup.errors import DataError

_SHOWN_BYTES = 60


@contextmanager
def only_utf8(where: str) -> Iterator[None]:
    """Tell a record whose text is not UTF-8 by its bytes, in place of Python's own error.

    Parameters
    ----------
    where : str
        What does not take it, for the error.

    Raises
    ------
    DataError
    """
    try:
        yield
    except UnicodeDecodeError as error:
        text = bytes(error.object)
        shown = repr(text[:_SHOWN_BYTES]) + (" ..." if len(text) > _SHOWN_BYTES else "")
        raise DataError(
            f"A record has a text that is not UTF-8, which {where} does not take: {shown}. Spark "
            "keeps such bytes where binary was cast to string. Put make_valid_utf8(column) of "
            "pyspark.sql.functions before the sink, or leave the column binary. Nothing of the "
            "micro-batch was published by this task."
        ) from None


def check_utf8(rows: pa.RecordBatch) -> None:
    """Refuse rows of which a text, also within lists, maps or structures, is not UTF-8.

    Raises
    ------
    UnicodeDecodeError
        With the bytes of that text; within `only_utf8` it becomes a `DataError`.
    """
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid:
        for column in rows.columns:
            with suppress(OverflowError):  # a time or date that Python has not
                column.to_pylist()  # which tells the text
        raise
