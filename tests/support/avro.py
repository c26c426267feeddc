"""Avro in tests: schemas of records, their bytes, and what a decoder makes of bytes."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa

from dedup.sources.kafka.decoder import CAUSE, FIELDS, BytesDecoder


def record(*fields: Any, **more: Any) -> str:
    """The schema of a record; each field is a name with a type and maybe a default."""
    made = [
        {"name": f[0], "type": f[1], **({"default": f[2]} if len(f) > 2 else {})} for f in fields
    ]
    return json.dumps({"type": "record", "name": "R", "fields": made, **more})


def encoded(schema: str, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, json.loads(schema), value)
    return out.getvalue()


def decoded(decoder: BytesDecoder, *values: bytes | None) -> tuple[list[Any], list[str | None]]:
    """The rows and the causes for values, of which the poison ones keep their bytes."""
    batch = pa.record_batch({"value": pa.array(values, pa.binary()), "offset": range(len(values))})
    found = pa.Table.from_batches(decoder.batches([batch]))
    rows, causes = found.column(FIELDS).to_pylist(), found.column(CAUSE).to_pylist()
    kept = found.column("value").to_pylist()
    assert kept == [v if c else None for v, c in zip(values, causes, strict=True)]
    assert found.column(FIELDS).type == decoder.type
    for row, value, cause in zip(rows, values, causes, strict=True):
        assert (row is None) == (value is None or cause is not None)
    return rows, causes
