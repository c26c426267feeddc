"""Packed rows between the operator's three passes: few, large, opaque to Spark.

A packed row is either a **blob**, some thousand user rows of one shard, or a **control row**, one
per map task and shard, which carries the clocks and the Arrow schema.

====== ======================= =====================================================
column blob                    control row
====== ======================= =====================================================
shard  slot key of the shard   the same
rows   number of user rows     -1
head   IPC batch of HEAD       JSON: what was heard from each source partition
body   IPC batch of user rows  IPC schema message of the user rows
====== ======================= =====================================================

IPC batches are written without their schema message; bodies are LZ4-compressed. Always through
`take`, never from slices, so that a recomputed task sends the same bytes (invariant 6).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa

from dedup.core.clocks import Heard

PACKED_SCHEMA = "shard int, rows int, head binary, body binary"
PACKED_ARROW = pa.schema(
    [
        ("shard", pa.int32()),
        ("rows", pa.int32()),
        ("head", pa.binary()),
        ("body", pa.binary()),
    ]
)
CONTROL = -1

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


def head_schema(*, with_sources: bool) -> pa.Schema:
    """Columns of a blob's head: key, timestamp (ms), flags, and hash of the source partition."""
    fields = [("key", pa.large_binary()), ("time_ms", pa.int64()), ("flags", pa.uint8())]
    if with_sources:
        fields.append(("source", pa.uint64()))
    return pa.schema(fields)


def write_head(head: pa.RecordBatch) -> pa.Buffer:
    """IPC message of a head; keys are random, so compression would only cost."""
    return head.serialize()


def write_body(body: pa.RecordBatch) -> pa.Buffer:
    """IPC message of user rows, LZ4-compressed, without the schema message."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, body.schema, options=_COMPRESSED) as stream:
        stream.write_batch(body)
        end = sink.tell()
    start = body.schema.serialize().size  # the schema message comes first
    return sink.getvalue().slice(start, end - start)


def read_batch(data: bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """The record batch of an IPC message without its schema."""
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


def write_schema(schema: pa.Schema) -> bytes:
    """IPC schema message."""
    message: bytes = schema.serialize().to_pybytes()
    return message


def read_schema(data: bytes) -> pa.Schema:
    """The schema of an IPC schema message."""
    return pa.ipc.read_schema(pa.py_buffer(data))


def write_heard(heard: Mapping[str, tuple[Heard, int]]) -> bytes:
    """JSON of source partition -> [newest ms, records, hash], sorted."""
    return json.dumps(
        {name: [h.newest_ms, h.records, number] for name, (h, number) in sorted(heard.items())},
        separators=(",", ":"),
    ).encode()


def read_heard(data: bytes) -> dict[str, tuple[Heard, int]]:
    """What `write_heard` wrote."""
    return {
        name: (Heard(newest_ms, records), number)
        for name, (newest_ms, records, number) in json.loads(data).items()
    }
