"""Argument checks of the numpy path; the C extension makes the same checks itself."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: Positions are kept in 32 bits inside the hash tables of the C extension.
MAX_KEYS = 2**32 - 2
#: Block numbers are the top half of a 64-bit product.
MAX_BLOCKS = 2**32 - 1
#: The checksum has multipliers for this many bytes.
MAX_PAGE_BYTES = 65536


def array(value: npt.NDArray[np.generic], dtype: type[np.generic], name: str) -> None:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be a numpy array, not {type(value).__name__}")
    if value.dtype != dtype:
        raise TypeError(f"{name} must hold {np.dtype(dtype)}, not {value.dtype}")
    if value.ndim != 1 or not value.flags.c_contiguous:
        raise ValueError(f"{name} must be one-dimensional and C-contiguous")


def sized(value: npt.NDArray[np.generic], dtype: type[np.generic], n: int, name: str) -> None:
    array(value, dtype, name)
    if len(value) != n:
        raise ValueError(f"{name} must have {n} items, not {len(value)}")


def keys(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], prefix: str = "") -> int:
    """Return the number of keys; raise unless the offsets never fall and stay within the data."""
    array(data, np.uint8, f"{prefix}data")
    array(offsets, np.int64, f"{prefix}offsets")
    if len(offsets) == 0:
        raise ValueError(f"{prefix}offsets must have n + 1 items, so at least one")
    if offsets[0] < 0 or offsets[-1] > len(data) or bool((offsets[1:] < offsets[:-1]).any()):
        raise ValueError(f"{prefix}offsets must never fall and stay within {prefix}data")
    if len(offsets) - 1 > MAX_KEYS:
        raise ValueError(f"at most {MAX_KEYS} keys at a time")
    return len(offsets) - 1


def integer(value: int, low: int, high: int, name: str) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low} to {high}, not {value}")


def key16(key: bytes) -> None:
    if not isinstance(key, bytes):
        raise TypeError(f"key must be bytes, not {type(key).__name__}")
    if len(key) != 16:
        raise ValueError(f"key must be 16 bytes, not {len(key)}")


def filter_bits(bits: npt.NDArray[np.uint32], name: str) -> int:
    """Return the number of blocks; raise unless it is at least one whole block."""
    array(bits, np.uint32, name)
    if len(bits) == 0 or len(bits) % 8 or len(bits) // 8 > MAX_BLOCKS:
        raise ValueError(f"{name} must be 8 words per block and at least one block")
    return len(bits) // 8
