"""Values of files as Spark's types hold them: equal ones, or an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
#: Where a UUID has digits.
_PLACES = [at for at in range(36) if at not in (8, 13, 18, 23)]
#: Arrow reads negative nanoseconds of INT96 as unsigned ones: 2**64 too many, in microseconds.
_WRAPPED_US, _WRAPPED_REST = divmod(1 << 64, 1000)


class NotExact(Exception):
    """Says which value Spark's type cannot hold."""


@contextmanager
def named(column: str) -> Iterator[None]:
    """Name the column of such a value."""
    try:
        yield
    except NotExact as error:
        raise NotExact(f"its column {column!r} {error}") from None


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Arrow stores one that is only named, such as its UUIDs."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def converted(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a column as the type that Spark gives it; times without a zone are instants.

    Raises
    ------
    NotExact
        For a value that this type cannot hold.
    """
    is_ = pa.types
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.type == wanted:
        return column
    if is_.is_fixed_size_binary(column.type) and is_.is_string(wanted):
        return _uuid_texts(column)
    if is_.is_struct(wanted):
        fields = [converted(column.field(i), wanted.field(i).type) for i in range(len(wanted))]
        return pa.StructArray.from_arrays(fields, fields=list(wanted), mask=column.is_null())
    if is_.is_list(wanted):
        return _of_children(column, wanted, converted(column.values, wanted.value_type))
    if is_.is_map(wanted):
        entries = [
            converted(column.keys, wanted.key_type),
            converted(column.items, wanted.item_type),
        ]
        both = pa.StructArray.from_arrays(entries, fields=[wanted.key_field, wanted.item_field])
        return _of_children(column, wanted, both)
    if is_.is_timestamp(column.type) and column.type.unit == "ns":
        _check_whole(column)
    return column.cast(wanted)


def _check_whole(column: pa.Array) -> None:
    """Refuse nanoseconds that are no whole microseconds, which Spark would cut.

    Raises
    ------
    NotExact
        Naming the first of them.
    """
    nanos = column.cast(pa.int64())
    at = pc.index(pc.equal(pc.multiply(pc.divide(nanos, 1000), 1000), nanos), value=False).as_py()
    if at >= 0:
        text = column[at : at + 1].cast(pa.timestamp("ns")).cast(pa.string())[0]
        raise NotExact(has_nanoseconds(text))


def instants_of_int96(micros: pa.Array, nanos: pa.Array) -> pa.Array:
    """Return the times of INT96, read as microseconds and, modulo 2**64, as nanoseconds.

    Releases of Arrow wrote times before 1970 with a negative number of nanoseconds.

    Raises
    ------
    NotExact
        For a time with nanoseconds.
    """
    us = micros.cast(pa.int64()).fill_null(0).to_numpy()
    ns = nanos.cast(pa.int64()).fill_null(0).to_numpy()
    rest = (ns.view(np.uint64) - us.view(np.uint64) * np.uint64(1000)).astype(np.int64)
    # Only what Arrow's own nanoseconds could hold was written so.
    wrapped = (rest == _WRAPPED_REST) & (us >= _WRAPPED_US // 2) & (us < _WRAPPED_US)
    odd = np.flatnonzero((rest != 0) & ~wrapped)
    if len(odd):
        at = int(odd[0])
        text = nanos[at : at + 1].cast(pa.timestamp("ns")).cast(pa.string())[0]
        raise NotExact(has_nanoseconds(text))
    us = np.where(wrapped, us - _WRAPPED_US, us)
    return pa.array(us, pa.timestamp("us"), mask=micros.is_null().to_numpy(zero_copy_only=False))


def leaves(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the values within a column that is nested, kind by kind."""
    if isinstance(column, pa.StructArray):
        for inner in column.flatten():
            yield from leaves(inner)
    elif isinstance(column, pa.MapArray):
        for inner in (column.keys, column.items):
            yield from leaves(inner)
    elif isinstance(column, pa.ListArray):
        yield from leaves(column.flatten())
    else:
        yield column


def has_nanoseconds(text: object) -> str:
    """Say that a time has nanoseconds."""
    return f"has nanoseconds ({text}), and a timestamp of Spark ends at microseconds"


def _of_children(column: pa.Array, wanted: pa.DataType, children: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(
        wanted, len(column), column.buffers()[:2], offset=column.offset, children=[children]
    )


def _uuid_texts(column: pa.Array) -> pa.Array:
    """Return UUIDs as text in lower case."""
    if not len(column):
        return pa.array([], pa.string())
    data = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * 16 :][: len(column) * 16]
    text = np.full((len(column), 36), ord("-"), np.uint8)
    text[:, _PLACES] = _DIGITS[np.stack([data >> 4, data & 15], axis=1)].reshape(-1, 32)
    offsets = np.arange(0, text.size + 1, 36, dtype=np.int32)
    texts = pa.StringArray.from_buffers(len(column), pa.py_buffer(offsets), pa.py_buffer(text))
    return pc.if_else(column.is_valid(), texts, None)
