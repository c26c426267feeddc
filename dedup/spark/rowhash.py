"""Keyed hash of whole rows over a canonical encoding: the last resort of arrival order.

Equal rows hash equal whatever their physical layout: every NaN is one value, -0.0 equals 0.0, map
entries are sorted, nulls are tagged. Flat columns are hashed as arrays; nested ones value by
value, which only rows that tie in ID, timestamp and order columns ever pay for.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup import kernel
from dedup.core.keys import Keys
from dedup.spark.identity import encode_ids

UInt64s = npt.NDArray[np.uint64]


def hash_rows(table: pa.Table, key: bytes) -> UInt64s:
    """SipHash-1-3 of each row's canonical encoding, uint64, shape (rows,).

    Parameters
    ----------
    table : pyarrow.Table
    key : bytes
        16 bytes.
    """
    columns = [_hash_column(_one_chunk(column), key) for column in table.columns]
    if not columns:
        return np.zeros(table.num_rows, np.uint64)
    matrix = np.stack(columns, axis=1).astype("<u8")
    rows = np.ascontiguousarray(matrix).view(np.uint8).reshape(-1)
    offsets = np.arange(table.num_rows + 1, dtype=np.int64) * (8 * len(columns))
    return kernel.hash64(rows, offsets, key)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _hash_column(column: pa.Array, key: bytes) -> UInt64s:
    if pa.types.is_nested(column.type) or pa.types.is_null(column.type):
        column = column.cast(_numbered(column.type))
        keys = Keys.from_list([canonical_bytes(value) for value in column.to_pylist()])
        return kernel.hash64(keys.data, keys.offsets, key)
    if pa.types.is_floating(column.type):
        column = _canonical_floats(column)
    ids = encode_ids([column, pa.nulls(len(column), pa.int8())])
    hashes = kernel.hash64(ids.keys.data, ids.keys.offsets, key)
    hashes[ids.null] = 0
    return hashes


def _numbered(kind: pa.DataType) -> pa.DataType:
    """The type with numbers for times: Python's end at the years 1 and 9999 of each zone."""
    if pa.types.is_map(kind):
        return pa.map_(_numbered(kind.key_type), _numbered(kind.item_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_numbered(kind.value_type))
    if pa.types.is_list(kind):
        return pa.list_(_numbered(kind.value_type))
    if pa.types.is_struct(kind):
        # All nullable: fields of a null struct are null whatever their own type says.
        return pa.struct([(field.name, _numbered(field.type)) for field in kind])
    if pa.types.is_temporal(kind):
        return pa.int64() if kind.bit_width == 64 else pa.int32()
    return kind


def _canonical_floats(column: pa.Array) -> pa.Array:
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False).copy()
    values[np.isnan(values)] = np.nan
    values += 0.0  # -0.0 + 0.0 is 0.0
    null = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array(values.view(np.int64), pa.int64(), mask=null)


def canonical_bytes(value: Any) -> bytes:
    """Canonical bytes of one nested value as `pyarrow` gives it to Python."""
    if value is None:
        return b"N"
    if isinstance(value, float):
        value = 0.0 if value == 0 else value
        return b"F" + (b"nan" if value != value else struct.pack("<d", value))
    if isinstance(value, dict):
        fields = [canonical_bytes(k) + canonical_bytes(v) for k, v in value.items()]
        return _framed(b"S", fields)
    if isinstance(value, list):
        items = [canonical_bytes(item) for item in value]
        is_map = bool(value) and all(isinstance(item, tuple) for item in value)
        return _framed(b"L", sorted(items) if is_map else items)
    if isinstance(value, tuple):
        return _framed(b"T", [canonical_bytes(item) for item in value])
    if isinstance(value, bytes):
        return _framed(b"B", [value])
    return _framed(type(value).__name__.encode(), [repr(value).encode()])


def _framed(tag: bytes, parts: list[bytes]) -> bytes:
    body = b"".join(struct.pack("<I", len(part)) + part for part in parts)
    return struct.pack("<B", len(tag)) + tag + struct.pack("<I", len(parts)) + body
