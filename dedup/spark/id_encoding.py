"""Encodes record IDs as canonical bytes, the **keys**, from Arrow columns.

Each column of an ID becomes a component:

========================  ==================================================================
Spark type                bytes of a component
========================  ==================================================================
string                    0x01 + 16 bytes for canonical lower-case UUID text, else 0x00 + UTF-8
binary                    the bytes
integers, boolean, date,  little-endian two's complement in the type's own width
timestamps, day-time
interval, time
decimal                   16 bytes, little-endian two's complement of the unscaled value
========================  ==================================================================

The key of a single-column ID is its component. The key of a composite ID joins three parts for each
column: one byte (0 for a null, 1 for a value), the length of the component as little-endian u32,
and the component. A composite ID is null only if every column is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dedup import kernel
from dedup.core.keys import Keys

Bools = npt.NDArray[np.bool_]

#: Version of the encoding. The birth certificate of a query holds the version.
ENCODING = "dedup-id-1"


@dataclass(frozen=True, slots=True)
class EncodedIds:
    """The keys of n records, and which IDs are null. A null ID has an empty key."""

    keys: Keys
    null: Bools


def encode_ids(columns: Sequence[pa.Array]) -> EncodedIds:
    if len(columns) == 1:
        column = columns[0]
        return EncodedIds(_component(column), null_mask(column))
    nulls = [null_mask(column) for column in columns]
    parts: list[pa.Array] = []
    for column, null in zip(columns, nulls, strict=True):
        component = _component(column)
        prefix = np.empty((len(column), 5), np.uint8)
        prefix[:, 0] = ~null
        prefix[:, 1:] = component.lengths.astype("<u4").view(np.uint8).reshape(-1, 4)
        parts += [_fixed(prefix).to_arrow(), component.to_arrow()]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    every = np.logical_and.reduce(nulls)
    keys = Keys.from_arrow(joined)
    if every.any():
        keys = _blank(keys, every)
    return EncodedIds(keys, every)


def null_mask(column: pa.Array) -> Bools:
    """Return which values of an array are null."""
    if not column.null_count:
        return np.zeros(len(column), np.bool_)
    mask: Bools = column.is_null().to_numpy(zero_copy_only=False)
    return mask


def _fixed(rows: npt.NDArray[np.uint8]) -> Keys:
    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int64) * width
    return Keys(np.ascontiguousarray(rows).reshape(-1), offsets)


def _blank(keys: Keys, null: Bools) -> Keys:
    array = keys.to_arrow()
    return Keys.from_arrow(pc.if_else(pa.array(null), pa.scalar(b"", pa.large_binary()), array))


def _component(column: pa.Array) -> Keys:
    kind = column.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if is_text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        keys = Keys.from_arrow(column.cast(pa.large_binary()).fill_null(b""))
        if is_text:
            keys = Keys(*kernel.encode_uuid(keys.data, keys.offsets))
    else:
        if pa.types.is_boolean(kind):
            column = column.cast(pa.uint8())
        width = column.type.bit_width // 8
        raw = column.buffers()[1]
        values = np.frombuffer(raw, np.uint8) if raw is not None else np.zeros(0, np.uint8)
        values = values[column.offset * width : (column.offset + len(column)) * width]
        keys = _fixed(values.reshape(-1, width))
    return _blank(keys, null_mask(column)) if column.null_count else keys
