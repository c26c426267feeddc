"""The record ID's column travels once: as the keys, from which its text is made again.

Where the ID is one string column of the user's, bodies go without it. Its key holds it losslessly
(`dedup.spark.identity`), in 17 bytes instead of 36 where it is a UUID, and travels anyway.
"""

from __future__ import annotations

import binascii

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.core.keys import Keys
from dedup.spark.plan import Plan

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

_UUID_TAG = 1
_UUID_KEY = 17
_UUID_TEXT = 36
#: Groups of a UUID's digits: position in its text, in its key's digits (tag included), width.
_GROUPS = ((0, 2, 8), (9, 10, 4), (14, 14, 4), (19, 18, 4), (24, 22, 4), (28, 26, 8))


def key_column(plan: Plan, schema: pa.Schema) -> int | None:
    """Position of the user's column that the keys stand for; None where they stand for none."""
    if len(plan.id_columns) != 1:
        return None
    name, _, kind = plan.id_columns[0]
    position: int = schema.get_field_index(name)
    return position if kind == "string" and 0 <= position < plan.user_columns else None


def without(schema: pa.Schema, position: int | None) -> pa.Schema:
    """The schema of bodies, given that of the rows."""
    return schema if position is None else schema.remove(position)


def restored(
    body: pa.RecordBatch, keys: Keys | None, schema: pa.Schema, position: int | None
) -> pa.RecordBatch:
    """The rows of a body: with the column that the keys stand for, in its place."""
    if position is None:
        return body
    assert keys is not None
    columns = list(body.columns)
    columns.insert(position, text_of(keys).cast(schema.field(position).type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def text_of(keys: Keys) -> pa.Array:
    """The values of a string column, of its keys: large strings, null where a key is empty."""
    lengths = keys.lengths
    null = lengths == 0
    first = keys.offsets[:-1][~null]
    uuid = np.zeros(len(keys), np.bool_)
    uuid[~null] = keys.data[first] == _UUID_TAG
    widths = np.where(uuid, _UUID_TEXT, lengths - ~null)
    offsets = np.zeros(len(keys) + 1, np.int64)
    np.cumsum(widths, out=offsets[1:])
    if len(keys) and uuid.all():
        return _strings(_uuid_text(keys.data), offsets, null)
    told = np.ones(len(keys.data), np.bool_)
    told[first] = False  # tags
    if not uuid.any():
        return _strings(keys.data[told], offsets, null)
    from_uuid, to_uuid = np.repeat(uuid, lengths), np.repeat(uuid, widths)
    text = np.empty(offsets[-1], np.uint8)
    text[to_uuid] = _uuid_text(keys.data[from_uuid])
    text[~to_uuid] = keys.data[told & ~from_uuid]
    return _strings(text, offsets, null)


def _uuid_text(data: U8) -> U8:
    """Canonical text of UUIDs, one after another, given their keys likewise."""
    count = len(data) // _UUID_KEY
    digits = binascii.hexlify(data.data)
    text = np.full(count * _UUID_TEXT, ord("-"), np.uint8)
    for to, start, width in _GROUPS:
        # Items as wide as a group: one strided copy of 4 or 8 bytes a row.
        item = f"V{width}"
        group = np.ndarray((count,), item, digits, start, (2 * _UUID_KEY,))
        np.ndarray((count,), item, text.data, to, (_UUID_TEXT,))[:] = group
    return text


def _strings(text: U8, offsets: Int64s, null: Bools) -> pa.LargeStringArray:
    valid = pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)
