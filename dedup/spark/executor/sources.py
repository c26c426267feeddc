"""Source partitions of a batch's records: their names and hashes, and what was observed of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dedup import kernel
from dedup.core.arrays import I64, U64
from dedup.core.clocks import Observed
from dedup.spark.executor.values import plain
from dedup.spark.id_encoding import encode_ids

#: By name of a source partition: what was observed of it, and the hash of the name.
ObservedSources: TypeAlias = dict[str, tuple[Observed, int]]


@dataclass(frozen=True, slots=True)
class NamedSources:
    """Distinct source partitions of a batch.

    Parameters
    ----------
    names : list of str, length p
        JSON of the column values, such as ``["clicks",3]``; one value stands alone.
    hashes : uint64 array, shape (p,)
    index : int64 array, shape (n,)
        Source partition of each record.
    """

    names: list[str]
    hashes: U64
    index: I64


def name_sources(columns: Sequence[pa.Array], key: bytes) -> NamedSources:
    """Return the source partitions named by the given columns, hashed under a 16-byte key."""
    ids = encode_ids(columns)
    hashes = kernel.hash64(ids.keys.data, ids.keys.offsets, key)
    distinct, first, index = np.unique(hashes, return_index=True, return_inverse=True)
    rows = zip(*(map(plain, column.take(pa.array(first))) for column in columns), strict=True)
    names = [
        json.dumps(row[0] if len(row) == 1 else list(row), default=str, separators=(",", ":"))
        for row in rows
    ]
    return NamedSources(names, distinct, index.astype(np.int64))


def add_observed(total: ObservedSources, observed: Mapping[str, tuple[Observed, int]]) -> None:
    """Add what one batch observed to what others did."""
    for name, (seen, number) in observed.items():
        before = total.get(name)
        total[name] = (before[0].merge(seen) if before else seen, number)
