"""The record ID's column travels once: as the keys, from which its text is made again.

Where the ID is one string column of the user's, bodies go without it. Its key holds it losslessly
(`dedup.spark.id_encoding`), in 17 bytes instead of 36 where it is a UUID, and travels anyway.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dedup import kernel
from dedup.core.keys import Keys
from dedup.spark.plan import Plan


def key_column(plan: Plan, schema: pa.Schema) -> int | None:
    """Return the position of the user's column that the keys stand for, or None."""
    if len(plan.id_columns) != 1:
        return None
    name, _, kind = plan.id_columns[0]
    position: int = schema.get_field_index(name)
    return position if kind == "string" and 0 <= position < plan.user_columns else None


def without(schema: pa.Schema, position: int | None) -> pa.Schema:
    """Return the schema of bodies, given that of the rows."""
    return schema if position is None else schema.remove(position)


def restored(
    body: pa.RecordBatch, keys: Keys | None, schema: pa.Schema, position: int | None
) -> pa.RecordBatch:
    """Return the rows of a body with the column that the keys stand for, in its place."""
    if position is None:
        return body
    assert keys is not None
    columns = list(body.columns)
    columns.insert(position, text_of(keys).cast(schema.field(position).type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def text_of(keys: Keys) -> pa.Array:
    """Return the values of a string column, of its keys: null where a key is empty."""
    text, offsets = kernel.decode_uuid(keys.data, keys.offsets)
    null = keys.lengths == 0
    valid = pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.large_string(), len(keys), buffers)
