"""Types of the arrays of the kernel and the engine."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

U8: TypeAlias = npt.NDArray[np.uint8]
U32: TypeAlias = npt.NDArray[np.uint32]
U64: TypeAlias = npt.NDArray[np.uint64]
I64: TypeAlias = npt.NDArray[np.int64]
BOOL: TypeAlias = npt.NDArray[np.bool_]
