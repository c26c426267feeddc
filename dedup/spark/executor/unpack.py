"""Third pass: unpacks blobs into the user's rows, without the dropped rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa

from dedup.errors import faults
from dedup.spark.executor import wire
from dedup.spark.executor.bodies import BodyReader
from dedup.spark.executor.worker_memory import freeze_gc, release_memory
from dedup.spark.plan import Plan


def unpack(plan: Plan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the user's rows of one partition. The control row of a shard must precede its blobs."""
    freeze_gc()
    faults.point("unpack.begin")
    with closing(BodyReader()) as reader:
        yield from _rows(plan, batches, reader)
    faults.point("unpack.end")
    release_memory()


def _rows(
    plan: Plan, batches: Iterator[pa.RecordBatch], reader: BodyReader
) -> Iterator[pa.RecordBatch]:
    passes, verdict = plan.passes, plan.handling.verdict
    schema: pa.Schema | None = None
    names = pa.array(plan.verdicts, pa.string())
    for batch in batches:
        rows, keys, bodies, verdicts = (
            batch.column(name) for name in ("rows", "keys", "body", "verdicts")
        )
        for position, count in enumerate(rows.to_pylist()):
            body = bodies[position]
            if count == wire.CONTROL:
                if body.is_valid:
                    schema = wire.read_schema(body.as_py())
                    in_keys = wire.key_column(plan, schema)
                continue
            assert schema is not None, "a shard's control row comes first"
            user = reader.read(body.as_buffer(), wire.without(schema, in_keys))
            if in_keys is not None:
                own = wire.read_keys(keys[position].as_buffer(), count)
                user = wire.restored(user, own, schema, in_keys)
            user = user.select(range(plan.user_columns))
            judged = np.frombuffer(verdicts[position].as_buffer(), np.uint8)
            if verdict is not None:
                column = names.take(pa.array(judged))
                yield pa.RecordBatch.from_arrays(
                    [*user.columns, column],
                    schema=user.schema.append(pa.field(verdict, pa.string(), False)),
                )
                continue
            kept = passes[judged]
            yield user if kept.all() else user.filter(pa.array(kept))
