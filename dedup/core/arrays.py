"""Types of the arrays that the engine passes round."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

I64: TypeAlias = npt.NDArray[np.int64]
U64: TypeAlias = npt.NDArray[np.uint64]
U8: TypeAlias = npt.NDArray[np.uint8]
BOOL: TypeAlias = npt.NDArray[np.bool_]
