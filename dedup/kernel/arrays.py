"""Types of the arrays of the kernel and the engine, and the offsets of their columns."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

U8: TypeAlias = npt.NDArray[np.uint8]
U32: TypeAlias = npt.NDArray[np.uint32]
U64: TypeAlias = npt.NDArray[np.uint64]
I64: TypeAlias = npt.NDArray[np.int64]
BOOL: TypeAlias = npt.NDArray[np.bool_]


def offsets_of(lengths: npt.NDArray[np.integer[Any]]) -> I64:
    """Return the offsets of n items of these lengths, shape (n + 1,). The first is 0."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
