"""The format of packed rows, which travel between the operator's three passes.

Packed rows are few, large and opaque to Spark. A packed row is a **blob** or a **control row**. A
blob holds some thousand rows of the user, all of one shard. Each map task sends one control row to
each shard, with the clocks and the Arrow schema. The **slot key** is the number by which Spark
groups the rows of a shard.

====== ======================= =====================================================
column blob                    control row
====== ======================= =====================================================
shard  slot key of the shard   slot key of the shard
rows   number of user rows     -1
keys   keys of the record IDs  ID of the hash key for shards, u64
head   IPC batch of times etc. JSON: number of heartbeats, and what was observed of
                               each source partition
body   IPC batch of user rows, IPC schema message of the user rows
       or its place (`bodies`)
====== ======================= =====================================================

The column `keys` begins with the length of every key as a little-endian i32. If the lengths differ,
it begins with -1 and the length of each key. The bytes of the keys follow.

If the ID is one string column of the user, the body leaves that column out. The keys hold the text
without loss, a UUID in 17 bytes instead of 36 (`dedup.spark.id_encoding`). The schema message has
the column. IPC batches are written without their schema message, and bodies of wide rows are
LZ4-compressed. Rows always go through `take`, never through slices, so that a recomputed task sends
the same bytes (invariant 6). Only the places of bodies differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dedup import kernel
from dedup.core.clocks import Observed
from dedup.core.keys import Keys
from dedup.kernel.arrays import offsets_of
from dedup.spark.plan import Plan

PACKED_ARROW = pa.schema(
    [
        ("shard", pa.int32()),
        ("rows", pa.int32()),
        ("keys", pa.binary()),
        ("head", pa.binary()),
        ("body", pa.binary()),
    ]
)
#: What pack measures: the time that the task took, the bytes of the rows that it received, and the
#: records of files that are not rows.
PACK_FIGURES = ("pack_us", "bytes_in", "bad_records")
#: Columns that pack sends. The task's figures are in its first control row. The driver drops these
#: columns before the shuffle, because shuffled bytes must not differ between attempts (invariant
#: 6).
SENT_SCHEMA = "shard int, rows int, keys binary, head binary, body binary, " + ", ".join(
    f"{name} bigint" for name in PACK_FIGURES
)
SENT_ARROW = pa.schema([*PACKED_ARROW, *((name, pa.int64()) for name in PACK_FIGURES)])
CONTROL = -1
#: Rows of at least this many bytes are compressed. Narrower rows are mostly numbers. LZ4 would save
#: a third of their bytes, but cost more CPU than it takes to move them.
WIDE_ROW_BYTES = 64

#: By the name of each source partition: what was observed of it, and the hash of the name.
ObservedSources: TypeAlias = dict[str, tuple[Observed, int]]
#: Marks keys of different lengths.
_OWN_LENGTHS = -1
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


def head_schema(plan: Plan) -> pa.Schema:
    """Return the columns of a head: timestamps in ms, flags, hashes, epochs and sequences."""
    fields = [("time_ms", pa.int64()), ("flags", pa.uint8())]
    if plan.source_columns:
        fields.append(("source", pa.uint64()))
    if plan.policy.payload is not None:
        fields.append(("payload", pa.uint64()))
    if plan.numbering is not None:
        fields += [("epoch", pa.int64()), ("sequence", pa.int64())]
    return pa.schema(fields)


def write_keys(keys: Keys) -> pa.Buffer:
    """Return keys as bytes. The bytes are fewer if all keys have one length."""
    lengths = keys.lengths.astype("<i4")
    same = len(lengths) > 0 and bool((lengths == lengths[0]).all())
    front = lengths[:1] if same else np.concatenate([np.array([_OWN_LENGTHS], "<i4"), lengths])
    return pa.py_buffer(np.concatenate([front.view(np.uint8), keys.data]))


def read_keys(data: bytes | memoryview | pa.Buffer, rows: int) -> Keys:
    """Return the keys that `write_keys` wrote for `rows` rows. They share the memory of `data`."""
    length = int(np.frombuffer(data, "<i4", 1)[0])
    if length == _OWN_LENGTHS:
        offsets = offsets_of(np.frombuffer(data, "<i4", rows, offset=4))
        return Keys(np.frombuffer(data, np.uint8, offset=4 + 4 * rows), offsets)
    return Keys(np.frombuffer(data, np.uint8, offset=4), np.arange(rows + 1) * length)


def write_key_id(key_id: int) -> bytes:
    """Return the bytes of the ID of a hash key, by which a map task spread its rows over shards."""
    return key_id.to_bytes(8, "little")


def write_body(body: pa.RecordBatch) -> pa.Buffer:
    """Return the user's rows as an IPC message without its schema message."""
    plain = body.serialize()
    if plain.size < WIDE_ROW_BYTES * body.num_rows:
        return plain
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, body.schema, options=_COMPRESSED) as stream:
        stream.write_batch(body)
        end = sink.tell()
    start = body.schema.serialize().size  # the schema message comes first
    return sink.getvalue().slice(start, end - start)


def read_batch(data: bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """Return the record batch in an IPC message that lacks its schema message."""
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


def read_schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def write_observed(observed: ObservedSources, heartbeats: int = 0) -> bytes:
    """Return JSON: the number of heartbeats, and times, records and hash by source partition."""
    sources = {
        name: [h.newest_ms, h.records, h.heartbeat_ms, number]
        for name, (h, number) in sorted(observed.items())
    }
    return json.dumps([heartbeats, sources], separators=(",", ":")).encode()


def read_observed(data: bytes) -> tuple[ObservedSources, int]:
    heartbeats, sources = json.loads(data)
    observed = {name: (Observed(*seen), number) for name, (*seen, number) in sources.items()}
    return observed, heartbeats


def add_observed(total: ObservedSources, observed: Mapping[str, tuple[Observed, int]]) -> None:
    """Add what one batch observed of source partitions to `total`."""
    for name, (seen, number) in observed.items():
        before = total.get(name)
        total[name] = (before[0].merge(seen) if before else seen, number)


def key_column(plan: Plan, schema: pa.Schema) -> int | None:
    """Return the position of the user's column that the keys replace, or None."""
    if len(plan.id_columns) != 1:
        return None
    name, _, kind = plan.id_columns[0]
    position: int = schema.get_field_index(name)
    return position if kind == "string" and 0 <= position < plan.user_columns else None


def without(schema: pa.Schema, position: int | None) -> pa.Schema:
    """Return a schema without the column at `position`, which the keys replace in a body."""
    return schema if position is None else schema.remove(position)


def restored(
    body: pa.RecordBatch, keys: Keys | None, schema: pa.Schema, position: int | None
) -> pa.RecordBatch:
    """Return the rows of a body, and restore the ID's column at `position` from the keys."""
    if position is None:
        return body
    assert keys is not None
    columns = list(body.columns)
    columns.insert(position, text_of(keys).cast(schema.field(position).type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def text_of(keys: Keys) -> pa.Array:
    """Decode keys into a column of strings. An empty key becomes null."""
    text, offsets = kernel.decode_uuid(keys.data, keys.offsets)
    null = keys.lengths == 0
    valid = pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.large_string(), len(keys), buffers)
