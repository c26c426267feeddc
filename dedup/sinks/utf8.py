"""Reject texts that are not UTF-8. Spark keeps any bytes cast to a text, but most sinks do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa

from dedup.errors import DataError

_SHOWN_BYTES = 60
#: What to do about such a text in a program.
_ADVICE = (
    "Spark keeps such bytes if binary was cast to string. Put make_valid_utf8(column) of "
    "pyspark.sql.functions before the sink, or leave the column binary."
)


@contextmanager
def only_utf8(where: str, advice: str = _ADVICE) -> Iterator[None]:
    """Replace a UnicodeDecodeError of the ``with`` block by a DataError.

    The error says that `where`, the name of an output, does not accept the text, and gives advice.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        text = bytes(error.object)
        shown = repr(text[:_SHOWN_BYTES]) + (" ..." if len(text) > _SHOWN_BYTES else "")
        raise DataError(
            f"A record has a text that is not UTF-8, which {where} does not take: {shown}. "
            f"{advice} This task has published nothing of the micro-batch."
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
