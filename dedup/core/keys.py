"""A column of record IDs, encoded as bytes, in the memory layout of Arrow's large binary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dedup import kernel
from dedup.kernel.arrays import I64, U8, offsets_of


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """An immutable column of keys (canonical bytes of record IDs, 0 or more bytes each).

    The constructor trims and shifts its arguments, so that ``offsets[0] == 0`` and
    ``offsets[-1] == len(data)``. Both arrays are read-only views. The bytes of keys are not copied.

    Raises ValueError if offsets decrease, or are outside the data.

    Examples
    --------
    >>> keys = Keys.from_list([b"a", b"", b"bc"])
    >>> len(keys), keys[2], keys.nbytes
    (3, b'bc', 35)
    """

    #: The keys' bytes, one key after another.
    data: U8
    #: Key ``i`` is ``data[offsets[i]:offsets[i + 1]]``. Offsets never decrease.
    offsets: I64

    def __post_init__(self) -> None:
        data, offsets = self.data, self.offsets
        start, end = int(offsets[0]), int(offsets[-1])
        if start < 0 or end > len(data) or bool((offsets[1:] < offsets[:-1]).any()):
            raise ValueError(
                f"offsets must never fall and stay within the {len(data)} bytes of data; "
                f"got {start} to {end}"
            )
        if start:
            offsets = offsets - start
        data, offsets = data[start:end], offsets.view()
        data.flags.writeable = offsets.flags.writeable = False
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "offsets", offsets)

    @classmethod
    def empty(cls) -> Keys:
        return cls(np.empty(0, np.uint8), np.zeros(1, np.int64))

    @classmethod
    def from_list(cls, keys: Sequence[bytes]) -> Keys:
        lengths = np.fromiter((len(key) for key in keys), np.int64, count=len(keys))
        return cls(np.frombuffer(b"".join(keys), np.uint8), offsets_of(lengths))

    @classmethod
    def from_arrow(cls, array: pa.Array) -> Keys:
        """Return the keys of a binary or large_binary array without nulls. Does not copy bytes.

        Raises ValueError for any other array. The caller must first remove records without an ID.
        """
        width = {pa.binary(): "=i4", pa.large_binary(): "=i8"}.get(array.type)
        if array.null_count or width is None:
            raise ValueError(f"{array.type} with {array.null_count} nulls cannot be keys")
        _, offset_buffer, data_buffer = array.buffers()
        if len(array) == 0:  # its buffers may be absent
            return cls.empty()
        offsets = np.frombuffer(offset_buffer, width)[array.offset : array.offset + len(array) + 1]
        data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.empty(0, np.uint8)
        return cls(data, offsets.astype(np.int64, copy=False))

    @classmethod
    def concat(cls, parts: Sequence[Keys]) -> Keys:
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.empty()
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(np.concatenate([part.data for part in parts]), offsets_of(lengths))

    @property
    def lengths(self) -> I64:
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + self.offsets.nbytes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        if not -len(self) <= index < len(self):
            raise IndexError(f"key {index} of {len(self)}")
        index %= len(self)
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        data, ends = self.data.tobytes(), self.offsets.tolist()
        return (data[ends[i] : ends[i + 1]] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Keys({len(self)} keys, {len(self.data)} bytes)"

    def take(self, indices: I64) -> Keys:
        """Return the keys at these positions, or raise ValueError if one is out of range."""
        index = np.ascontiguousarray(indices, np.int64)
        return Keys(*kernel.take_keys(self.data, self.offsets, index))

    def to_arrow(self) -> pa.LargeBinaryArray:
        """Return the keys as an Arrow array over the same memory."""
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self), buffers)
