"""What a group function hands on: a control row with its counters, then blobs with verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dedup.core.arrays import U8
from dedup.spark.executor import wire
from dedup.spark.executor.bodies import BodyFile
from dedup.spark.executor.shard_input import ShardInput
from dedup.spark.plan import Plan

#: Of all group functions; counters follow.
SCHEMA = "rows int, keys binary, body binary, verdicts binary"


def judged_rows(
    plan: Plan, shard_input: ShardInput, verdicts: U8, body_file: BodyFile | None
) -> tuple[dict[str, Any], int]:
    """Return the columns of `SCHEMA`, and how many records go on by the user's options.

    Blobs of which no row goes on are left out. Bodies are put into a file, if one is given.
    """
    passes = plan.passes
    keys: list[bytes | None] = [None]
    bodies: list[bytes | None] = [shard_input.schema_bytes]
    rows = [wire.CONTROL]
    judged_blobs: list[bytes | None] = [None]
    needs_keys = shard_input.unpack_needs_keys
    first = emitted = 0
    for head, key_blob, body in zip(
        shard_input.heads, shard_input.key_blobs, shard_input.blobs, strict=True
    ):
        judged = verdicts[first : first + head.num_rows]
        first += head.num_rows
        kept = int(passes[judged].sum())
        emitted += kept
        if kept:
            rows.append(head.num_rows)
            keys.append(key_blob if needs_keys else None)
            if body_file is not None:
                body = body_file.append(np.frombuffer(body, np.uint8))
            bodies.append(body)
            judged_blobs.append(judged.tobytes())
    if body_file is not None:
        body_file.close()
    columns: dict[str, Any] = {
        "rows": pd.array(rows, dtype="int32"),
        "keys": pd.Series(keys, dtype=object),
        "body": pd.Series(bodies, dtype=object),
        "verdicts": pd.Series(judged_blobs, dtype=object),
    }
    return columns, emitted


def with_counters(
    columns: dict[str, Any],
    shard: int,
    numbers: Mapping[str, int | None],
    others: Mapping[str, str | list[int] | None],
) -> pd.DataFrame:
    """Return these columns with the shard's counters, which stand in the control row."""
    blank = [None] * (len(columns["rows"]) - 1)
    for name, number in numbers.items():
        columns[name] = pd.array([number, *blank], dtype="Int64")
    columns["shard_index"] = pd.array([shard, *blank], dtype="Int32")
    for name, value in others.items():
        columns[name] = pd.Series([value, *blank], dtype=object)
    return pd.DataFrame(columns)
