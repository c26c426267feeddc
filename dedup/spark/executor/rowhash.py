"""Hashes whole rows, to order copies of a record that are equal in ID, time and order columns.

Equal rows have equal hashes in any physical layout of Arrow. All NaNs are one value, -0.0 equals
0.0, and a null differs from every value. The hash of a list covers the hashes of its elements. The
hash of a struct covers the hashes of its fields, and the hash of a map those of its sorted entries.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dedup import kernel
from dedup.kernel.arrays import I64, U64, offsets_of
from dedup.spark.id_encoding import encode_ids, null_mask

#: Hash of a null. A value has the same hash with a probability of 2^-64.
_NULL = np.uint64(0)


def hash_rows(table: pa.Table, key: bytes) -> U64:
    """Return the SipHash-1-3 of each row, under a 16-byte key."""
    columns = [hash_values(_one_chunk(column), key) for column in table.columns]
    return _hash_together(columns, table.num_rows, key)


def hash_values(values: pa.Array, key: bytes) -> U64:
    """Return the hash of each value of an array of any type, as uint64 of shape (n,)."""
    kind = values.type
    if pa.types.is_null(kind):
        return np.full(len(values), _NULL)
    if pa.types.is_struct(kind):
        fields = [hash_values(field, key) for field in values.flatten()]
        hashes = _hash_together(fields, len(values), key)
    elif pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if pa.types.is_map(kind):
            values = _entries(values)
        lengths = np.diff(values.offsets.to_numpy()).astype(np.int64)
        lengths[null_mask(values)] = 0  # `flatten` skips nulls too
        elements = hash_values(values.flatten(), key)
        if pa.types.is_map(kind):
            owner = np.repeat(np.arange(len(lengths)), lengths)
            elements = elements[np.lexsort((elements, owner))]
        hashes = _hash_runs(elements, lengths, key)
    else:
        if pa.types.is_floating(kind):
            values = _canonical_floats(values)
        keys = encode_ids([values]).keys
        hashes = kernel.hash64(keys.data, keys.offsets, key)
    hashes[null_mask(values)] = _NULL
    return hashes


def _entries(maps: pa.MapArray) -> pa.ListArray:
    pairs = pa.StructArray.from_arrays([maps.keys, maps.items], ["key", "value"])
    buffers = maps.buffers()[:2]
    return pa.Array.from_buffers(
        pa.list_(pairs.type), len(maps), buffers, offset=maps.offset, children=[pairs]
    )


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _hash_together(columns: list[U64], rows: int, key: bytes) -> U64:
    if not columns:
        return np.zeros(rows, np.uint64)
    matrix = np.ascontiguousarray(np.stack(columns, axis=1))
    return _hash_runs(matrix.reshape(-1), np.full(rows, len(columns), np.int64), key)


def _hash_runs(hashes: U64, lengths: I64, key: bytes) -> U64:
    return kernel.hash64(hashes.astype("<u8").view(np.uint8), offsets_of(lengths * 8), key)


def _canonical_floats(column: pa.Array) -> pa.Array:
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False).copy()
    values[np.isnan(values)] = np.nan
    values += 0.0  # -0.0 + 0.0 is 0.0
    return pa.array(values.view(np.int64), pa.int64(), mask=null_mask(column))
