"""What the readers of CSV and JSON have in common: blocks of records in, rows out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

NOT_UTF8 = "It is not valid UTF-8."


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that cannot be read."""

    #: Offset of the record in the data.
    offset: int
    #: The record as it was written, without its line end.
    text: bytes
    #: Why it cannot be read, as sentences.
    reason: str


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of some data, in its order, and the records of the data that are not rows.

    `nbytes` is the number of bytes that were read, which end with a record. `spans` returns where
    the record of each row begins and ends.
    """

    good: pa.RecordBatch
    bad: Sequence[BadRecord]
    nbytes: int
    spans: Callable[[], Sequence[tuple[int, int]]]


def no_rows(columns: pa.Schema, nbytes: int) -> Rows:
    return Rows(pa.RecordBatch.from_pylist([], columns), [], nbytes, list)


class Unreadable(Exception):
    """A whole file cannot be read. The arguments are an offset in the data and the reason."""


class TextReader(Protocol):
    """Reads data of one format into rows with the same columns."""

    columns: pa.Schema
    #: The quote within which a line end ends no record, or b"" if every line end ends one.
    quote: bytes
    #: The end of a line, or b"" for CR LF, LF and CR.
    line_end: bytes

    def read(self, data: bytes, is_last: bool = True) -> Rows:
        """Return the rows of all records that end in the data, which is UTF-8.

        The data begins with a record. `is_last` says that the file ends with the data. Raises
        Unreadable.
        """

    def skip(self, data: bytes, is_last: bool = True) -> Rows:
        """Return what `read` returns, but without rows and bad records."""

    def first_end(self, data: bytes, *, is_last: bool) -> int | None:
        """Return where the first record of the data ends, or None if it does not end there.

        A line without a record counts as a record.
        """


def type_name(kind: pa.DataType) -> str:
    """Return the name that Spark gives to a type, for reasons of bad records."""
    return str(from_arrow_type(kind, prefer_timestamp_ntz=True).simpleString())


def line_ends(data: bytes, stop: int) -> int:
    """Return the number of line ends (CR LF, LF or CR) in the data before an offset."""
    returns = data.count(b"\r", 0, stop) - data.count(b"\r\n", 0, stop)
    return data.count(b"\n", 0, stop) + returns
