"""What the scan needs of a file, whatever its format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import pyarrow as pa

from dedup.files.exact_values import plain

#: Rows of a batch, and about as many bytes of it.
BATCH_ROWS = 65_536
BATCH_BYTES = 16 << 20
#: Whether a cast of the values of a column, which is not nested, gives those that Spark reads.
Likeness = Callable[[pa.Field, pa.DataType], bool]


class Part(NamedTuple):
    """What is read in one go: a row group, a stripe.

    Parameters
    ----------
    begin : int
        Its first byte in the file, by which it belongs to one split.
    rows : int
    """

    begin: int
    rows: int


class InputFile(Protocol):
    """A file that is open, ready to be compared and read.

    What cannot be read raises OSError or pyarrow.ArrowException.
    """

    @property
    def schema(self) -> pa.Schema:
        """All columns."""

    @property
    def parts(self) -> Sequence[Part]:
        """All rows, in the order of the file."""

    def misfit(self, columns: pa.Schema) -> str | None:
        """Say what only Spark reads as it means it; None for a file that pyarrow may read.

        Parameters
        ----------
        columns : pyarrow.Schema
            Columns to read, as `dedup.files.types.arrow_schema` makes them. The file may lack some.
        """

    def unread_by_spark(self, columns: pa.Schema) -> str | None:
        """Say what of these columns Spark itself would not read, or would change.

        Raises
        ------
        NotExact
            For a value that it would cut.
        """

    def batches(self, part: int, places: list[int]) -> Iterator[pa.RecordBatch]:
        """Yield the columns at these places of a part, a bounded number of bytes at a time."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def positions(schema: pa.Schema, name: str) -> list[int]:
    """Return where columns of that name are, in any case of letters, as Spark looks them up."""
    return [i for i, other in enumerate(schema.names) if other.lower() == name.lower()]


def repeated_name(schema: pa.Schema, columns: pa.Schema) -> str | None:
    """Say which of the columns a file has twice."""
    for name in columns.names:
        count = len(positions(schema, name))
        if count > 1:
            return f"it has {count} columns named {name!r}, in other case"
    return None


def alike(found: pa.Field, wanted: pa.DataType, likeness: Likeness) -> bool:
    """Whether a cast gives the values that Spark reads, in nested columns too."""
    is_, kind = pa.types, plain(found.type)
    if is_.is_list(wanted):
        return bool(is_.is_list(kind)) and alike(kind.value_field, wanted.value_type, likeness)
    if is_.is_map(wanted):
        return (
            bool(is_.is_map(kind))
            and alike(kind.key_field, wanted.key_type, likeness)
            and alike(kind.item_field, wanted.item_type, likeness)
        )
    if is_.is_struct(wanted):
        if not is_.is_struct(kind) or kind.num_fields != wanted.num_fields:
            return False
        return all(
            a.name == b.name and alike(a, b.type, likeness)
            for a, b in zip(kind, wanted, strict=True)
        )
    return likeness(found.with_type(kind), wanted)
