"""The frame of a state row: a header with checksums, a head, and a body.

The header has a magic number and the format. The head is compressed JSON.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dedup.errors import StateError, before_release
from dedup.values.parse import parse_json

#: Operator by magic, the first four bytes of its rows.
_OPERATORS = {b"DDID": "dedup_by_id", b"DDSQ": "dedup_by_sequence"}
#: Magic of the rows of `dedup_by_id` before the first release.
_BEFORE_RELEASE = b"DDST"
_HEADER = struct.Struct("<4sHHIII")
_CRC = struct.Struct("<I")
#: Size of the header, which comes before the head.
HEADER_BYTES = _HEADER.size + _CRC.size
#: Largest size of a decompressed head, a hundred times the head of a shard with 10,000 segments.
_MAX_HEAD_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class StateRow:
    """A row with correct checksums."""

    parts: int
    head: memoryview
    body: memoryview
    rest: memoryview

    def fields(self) -> Any:
        """Return the JSON value in the head.

        Raises ValueError or zlib.error if the head is damaged.
        """
        stream = zlib.decompressobj()
        text = stream.decompress(self.head, _MAX_HEAD_BYTES)
        if not stream.eof or stream.unused_data:
            raise ValueError("its head is cut short, too long, or followed by something else")
        return parse_json(text)


def compressed(head: dict[str, Any]) -> bytes:
    return zlib.compress(json.dumps(head, separators=(",", ":")).encode(), 1)


def columns_from(
    data: memoryview, at: int, layout: Sequence[tuple[str, int]]
) -> list[npt.NDArray[Any]]:
    """Return the arrays, given by type and length, that fill ``data`` from position ``at`` on.

    Raises ValueError if ``data`` has another length.
    """
    size = at + sum(np.dtype(kind).itemsize * length for kind, length in layout)
    if len(data) != size:
        raise ValueError(f"its length of {len(data)} bytes does not match its header")
    columns = []
    for kind, length in layout:
        columns.append(np.frombuffer(data, kind, length, at))
        at += columns[-1].nbytes
    return columns


def written(magic: bytes, version: int, parts: int, head: bytes, body: bytes) -> bytes:
    """Return the bytes of a row up to its body. The caller appends ``parts`` further parts."""
    crc = zlib.crc32(body, zlib.crc32(head))
    header = _HEADER.pack(magic, version, parts, len(head), len(body), crc)
    return b"".join((header, _CRC.pack(zlib.crc32(header)), head, body))


def operator_of(row: bytes) -> str | None:
    """Return the name of the operator that wrote a row, or None for other bytes."""
    refuse_before_release(row)
    return _OPERATORS.get(row[:4])


def refuse_before_release(row: bytes) -> None:
    """Raise StateError for a row from before the first release."""
    if row[:4] == _BEFORE_RELEASE:
        raise StateError(before_release("This checkpoint"), remedy="other-version")


def read(
    data: bytes,
    magic: bytes,
    *versions: int,
    content: str,
    damaged: Callable[[str], StateError] = StateError.damaged,
) -> StateRow:
    """Check a row, and return its parts.

    ``versions`` are the formats that this release reads, in order. Errors call head and body
    ``content``.
    """
    view = memoryview(data)
    refuse_before_release(data)
    if len(data) < HEADER_BYTES or data[:4] not in _OPERATORS:
        raise damaged(f"it does not begin like a state row of {_OPERATORS[magic]}")
    if _CRC.unpack_from(data, _HEADER.size)[0] != zlib.crc32(view[: _HEADER.size]):
        raise damaged("the checksum of its header is wrong")
    if data[:4] != magic:
        raise StateError(
            f"This checkpoint belongs to a query with {_OPERATORS[data[:4]]}. A query with "
            f"{_OPERATORS[magic]} cannot use its state. Give each query its own checkpoint. "
            "Nothing was emitted, changed or lost.",
            remedy="changed-settings",
        )
    _, stored, parts, head_bytes, body_bytes, crc = _HEADER.unpack_from(data)
    if stored not in versions:
        raise StateError(
            f"A state row in the checkpoint has format {stored}; this release of rolling-dedup "
            f"reads format {versions[-1]}. Install the release that wrote it, or a newer one.",
            remedy="other-version",
        )
    whole = view[HEADER_BYTES : HEADER_BYTES + head_bytes + body_bytes]
    if len(whole) != head_bytes + body_bytes or zlib.crc32(whole) != crc:
        raise damaged(f"the checksum of its {content} is wrong")
    rest = view[HEADER_BYTES + len(whole) :]
    return StateRow(parts, whole[:head_bytes], whole[head_bytes:], rest)
