"""Packed rows between the operator's three passes: few, large, opaque to Spark.

A packed row is either a **blob**, some thousand user rows of one shard, or a **control row**, one
per map task and shard, which carries the clocks and the Arrow schema.

====== ======================= =====================================================
column blob                    control row
====== ======================= =====================================================
shard  slot key of the shard   the same
rows   number of user rows     -1
keys   keys of the record IDs  name of the hash key, u64
head   IPC batch of HEAD       JSON: what was observed of each source partition
body   IPC batch of user rows, IPC schema message of the user rows
       or its place (`bodies`)
====== ======================= =====================================================

A body goes without the column that the keys stand for, if there is one (`keycolumn`); the schema
message has it. Keys are i32 little-endian: the length of every key, or -1 and each key's length;
then their bytes. IPC batches are written without their schema message; bodies of wide rows are
LZ4-compressed. Always through `take`, never from slices, so that a recomputed task sends the same
bytes (invariant 6); places alone differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from dedup.core.clocks import Observed
from dedup.core.keys import Keys

PACKED_SCHEMA = "shard int, rows int, keys binary, head binary, body binary"
#: As pack sends it: with the time that the map task spent in it, in its first control row. The
#: column ends before the shuffle, whose bytes should not differ between attempts (invariant 6).
SENT_SCHEMA = f"{PACKED_SCHEMA}, pack_us bigint"
PACKED_ARROW = pa.schema(
    [
        ("shard", pa.int32()),
        ("rows", pa.int32()),
        ("keys", pa.binary()),
        ("head", pa.binary()),
        ("body", pa.binary()),
    ]
)
SENT_ARROW = PACKED_ARROW.append(pa.field("pack_us", pa.int64()))
CONTROL = -1
#: Narrow rows are mostly numbers: LZ4 saves a third of their bytes, and costs more CPU than
#: moving them does.
WIDE_ROW_BYTES = 64

#: Before keys that are not equally long.
_OWN_LENGTHS = -1
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


def head_schema(*, with_sources: bool, with_payload: bool, with_numbers: bool = False) -> pa.Schema:
    """Return the columns of a head: timestamp (ms), flags, and what else there is of a record.

    These are the hashes of its source partition and of its payload, its epoch and its sequence.
    """
    fields = [("time_ms", pa.int64()), ("flags", pa.uint8())]
    if with_sources:
        fields.append(("source", pa.uint64()))
    if with_payload:
        fields.append(("payload", pa.uint64()))
    if with_numbers:
        fields += [("epoch", pa.int64()), ("sequence", pa.int64())]
    return pa.schema(fields)


def write_keys(keys: Keys) -> pa.Buffer:
    """Return the bytes of the column, shorter where all keys are equally long."""
    lengths = keys.lengths.astype("<i4")
    same = len(lengths) > 0 and bool((lengths == lengths[0]).all())
    front = lengths[:1] if same else np.concatenate([np.array([_OWN_LENGTHS], "<i4"), lengths])
    return pa.py_buffer(np.concatenate([front.view(np.uint8), keys.data]))


def read_keys(data: bytes | memoryview | pa.Buffer, rows: int) -> Keys:
    """Return what `write_keys` wrote for so many rows, over the same memory."""
    offsets = np.zeros(rows + 1, np.int64)
    length = int(np.frombuffer(data, "<i4", 1)[0])
    if length == _OWN_LENGTHS:
        np.cumsum(np.frombuffer(data, "<i4", rows, offset=4), out=offsets[1:])
        return Keys(np.frombuffer(data, np.uint8, offset=4 + 4 * rows), offsets)
    offsets[:] = np.arange(rows + 1) * length
    return Keys(np.frombuffer(data, np.uint8, offset=4), offsets)


def write_key_id(key_id: int) -> bytes:
    """Return the name of the hash key by which a map task spread its rows."""
    return key_id.to_bytes(8, "little")


def write_head(head: pa.RecordBatch) -> pa.Buffer:
    """Return the IPC message of a head."""
    return head.serialize()


def write_body(body: pa.RecordBatch) -> pa.Buffer:
    """Return the IPC message of user rows without the schema; LZ4-compressed if they are wide."""
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
    """Return the record batch of an IPC message without its schema."""
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


def write_schema(schema: pa.Schema) -> bytes:
    """Return the IPC schema message."""
    message: bytes = schema.serialize().to_pybytes()
    return message


def read_schema(data: bytes) -> pa.Schema:
    """Return the schema of an IPC schema message."""
    return pa.ipc.read_schema(pa.py_buffer(data))


def write_observed(observed: Mapping[str, tuple[Observed, int]]) -> bytes:
    """Return the JSON of source partition -> [newest ms, records, hash], sorted."""
    return json.dumps(
        {name: [h.newest_ms, h.records, number] for name, (h, number) in sorted(observed.items())},
        separators=(",", ":"),
    ).encode()


def read_observed(data: bytes) -> dict[str, tuple[Observed, int]]:
    """Return what `write_observed` wrote."""
    return {
        name: (Observed(newest_ms, records), number)
        for name, (newest_ms, records, number) in json.loads(data).items()
    }
