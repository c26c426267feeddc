"""Converts values of files to Spark's types, and rejects values that would change."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.errors import DataError

#: Advice for a file that is healthy but has values that Spark's types cannot hold.
WRITE_AGAIN = (
    "Nothing of its micro-batch was taken. Write the file again under its name: times in "
    "microseconds if the digits after them do not matter, UUIDs as text, or with another "
    "compression. Then run again."
)
#: 2**64 nanoseconds in microseconds. Arrow reads negative nanoseconds of INT96 as unsigned, and so
#: adds this time.
_WRAPPED_US, _WRAPPED_REST = divmod(1 << 64, 1000)
_UNSIGNED = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}  # fmt: skip


class NotExact(Exception):
    """Raised with the reason why Spark's type cannot hold a value."""


def unreadable(path: object, why: str, *, file_format: str | None = None) -> DataError:
    """Return the error for a file that cannot be read.

    The file may be damaged or healthy, so the advice in the error never loses rows.
    """
    read, way = "read", ""
    if file_format is not None:
        read, way = f"read as {file_format}", "have Spark read it (dedup run --parquet spark), or "
    return DataError(
        f"{path} cannot be {read}: {why}. Nothing of its micro-batch was taken. If the file is "
        f"damaged, replace it by a good copy. If it is healthy, {way}write it again in a form "
        "that can be read. Keep its name, and run again. An empty file instead would lose its "
        "rows for good.",
        remedy="bad-records",
    )


def spark_type(kind: pa.DataType, stored: Collection[str]) -> pa.DataType:
    """Return the type that Spark gives to a column, given its Arrow type and Parquet types."""
    is_, inner = pa.types, partial(spark_type, stored=stored)
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if is_.is_list(kind) or (is_.is_large_list(kind) and "INT96" not in stored):
        return pa.list_(inner(kind.value_type))
    if is_.is_map(kind):
        return pa.map_(inner(kind.key_type), inner(kind.item_type))
    if is_.is_struct(kind):
        return pa.struct([(field.name, inner(field.type)) for field in kind])
    if is_.is_dictionary(kind):
        return inner(kind.value_type)
    if is_.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz or "INT96" in stored else None)
    if is_.is_float16(kind):
        return pa.float32()
    if "INTERVAL" in stored and kind == pa.binary(12):
        return pa.month_day_nano_interval()  # Spark refuses it, and pyarrow does not write it
    if (kind == pa.binary(16) and "UUID" in stored) or is_.is_large_string(kind):
        return pa.string()
    if is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind):
        return pa.binary()
    return _UNSIGNED.get(kind, kind)


def converted(column: pa.Array, target: pa.DataType, nanos: pa.Array | None = None) -> pa.Array:
    """Return a column in Spark's type, or raise NotExact for a value that the type cannot hold.

    Times without a zone are read as UTC. `nanos` is the same column, with INT96 read as nanoseconds
    instead of microseconds.
    """
    is_ = pa.types
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if is_.is_large_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    nanos = column if nanos is None else nanos
    if column.type == target == nanos.type:
        return column
    if is_.is_fixed_size_binary(column.type) and is_.is_string(target):
        return _uuid_texts(column)
    if is_.is_struct(target):
        fields = [
            converted(column.field(i), field.type, nanos.field(i)) for i, field in enumerate(target)
        ]
        return pa.StructArray.from_arrays(fields, fields=list(target), mask=column.is_null())
    if is_.is_list(target):
        inner = converted(column.values, target.value_type, nanos.values)
        return _of_children(column, target, inner)
    if is_.is_map(target):
        entries = [
            converted(column.keys, target.key_type, nanos.keys),
            converted(column.items, target.item_type, nanos.items),
        ]
        both = pa.StructArray.from_arrays(entries, fields=[target.key_field, target.item_field])
        return _of_children(column, target, both)
    if nanos.type != column.type:
        column = _instants_of_int96(column, nanos)
    try:
        return column.cast(target)
    except pa.ArrowInvalid as error:
        raise NotExact(has_nanoseconds(error)) from None


def _instants_of_int96(micros: pa.Array, nanos: pa.Array) -> pa.Array:
    """Return the times in a column of type INT96, read once as microseconds, once as nanoseconds.

    Some releases of Arrow wrote times before 1970 with a negative number of nanoseconds, which
    other readers take modulo 2**64.
    """
    us = micros.cast(pa.int64()).fill_null(0).to_numpy()
    ns = nanos.cast(pa.int64()).fill_null(0).to_numpy()
    rest = (ns.view(np.uint64) - us.view(np.uint64) * np.uint64(1000)).astype(np.int64)
    # Those releases could only write times that fit Arrow's nanoseconds.
    wrapped = (rest == _WRAPPED_REST) & (us >= _WRAPPED_US // 2) & (us < _WRAPPED_US)
    odd = np.flatnonzero((rest != 0) & ~wrapped)
    if len(odd):
        at = int(odd[0])
        text = nanos[at : at + 1].cast(pa.timestamp("ns")).cast(pa.string())[0]
        raise NotExact(has_nanoseconds(text))
    us = np.where(wrapped, us - _WRAPPED_US, us)
    return pa.array(us, pa.timestamp("us"), mask=micros.is_null().to_numpy(zero_copy_only=False))


def has_nanoseconds(text: object) -> str:
    """Return the text of the error for a time with digits below the microsecond."""
    return f"has nanoseconds ({text}), and a timestamp of Spark ends at microseconds"


def _of_children(column: pa.Array, target: pa.DataType, children: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(
        target, len(column), column.buffers()[:2], offset=column.offset, children=[children]
    )


def _uuid_texts(column: pa.Array) -> pa.Array:
    if not len(column):
        return pa.array([], pa.string())
    data = memoryview(column.buffers()[1])[column.offset * 16 :][: len(column) * 16]
    digits = data.hex().encode()
    offsets = np.arange(0, len(digits) + 1, 32, dtype=np.int32)
    texts = pa.StringArray.from_buffers(len(column), pa.py_buffer(offsets), pa.py_buffer(digits))
    texts = pc.replace_substring_regex(texts, r"(.{8})(.{4})(.{4})(.{4})", r"\1-\2-\3-\4-")
    return pc.if_else(column.is_valid(), texts, None)
