"""Source partitions of a batch's records: their names and hashes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup import kernel
from dedup.spark.executor.values import plain
from dedup.spark.id_encoding import encode_ids


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
    hashes: npt.NDArray[np.uint64]
    index: npt.NDArray[np.int64]


def name_sources(columns: Sequence[pa.Array], key: bytes) -> NamedSources:
    """The source partitions named by the given columns, hashed under a 16-byte key."""
    ids = encode_ids(columns)
    hashes = kernel.hash64(ids.keys.data, ids.keys.offsets, key)
    distinct, first, index = np.unique(hashes, return_index=True, return_inverse=True)
    rows = zip(*(map(plain, column.take(pa.array(first))) for column in columns), strict=True)
    names = [
        json.dumps(row[0] if len(row) == 1 else list(row), default=str, separators=(",", ":"))
        for row in rows
    ]
    return NamedSources(names, distinct, index.astype(np.int64))
