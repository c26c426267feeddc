"""The state row of one shard of `dedup_by_sequence`: the one BINARY value that Spark keeps for it.

Its layout is in ``dedup/core/FORMATS.md``. Damage stops the query: there is no other copy.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

from dedup.core.clocks import Clocks
from dedup.core.parse import array, integer, mapping, parse_json, text
from dedup.core.producers import Producers
from dedup.core.state import clocks_of, decompressed
from dedup.errors import StateError

MAGIC = b"DDSQ"
VERSION = 1
_HEADER = struct.Struct("<4sHHIII")
_CRC = struct.Struct("<I")
_SIZE = _HEADER.size + _CRC.size
_FIELDS = frozenset(("epoch", "clocks", "shard", "made_of"))


@dataclass(frozen=True, slots=True, eq=False)
class SequenceState:
    """Everything that a shard remembers.

    Parameters
    ----------
    epoch : int
        Micro-batch that wrote it, -1 at birth.
    shard : tuple of two int
        Index of the shard, and how many there are; (0, 0) at birth.
    made_of : tuple of str
        What producer, partition, epoch, sequence and timestamp are made of.
    clocks : Clocks
    producers : Producers
    """

    epoch: int = -1
    shard: tuple[int, int] = (0, 0)
    made_of: tuple[str, ...] = ()
    clocks: Clocks = field(default_factory=Clocks)
    producers: Producers = field(default_factory=Producers.empty)

    @staticmethod
    def damaged(what: str) -> StateError:
        """Return the error for a row that cannot be trusted."""
        return StateError.damaged(what, with_catalog=False)

    def _head(self) -> bytes:
        head: dict[str, Any] = {
            "epoch": self.epoch,
            "clocks": self.clocks.to_json(),
            "shard": list(self.shard),
            "made_of": list(self.made_of),
        }
        return zlib.compress(json.dumps(head, separators=(",", ":")).encode(), 1)

    def to_bytes(self) -> bytes:
        """Return the state row."""
        head, table = self._head(), self.producers.to_bytes()
        crc = zlib.crc32(table, zlib.crc32(head))
        header = _HEADER.pack(MAGIC, VERSION, 0, len(head), len(table), crc)
        return b"".join((header, _CRC.pack(zlib.crc32(header)), head, table))

    @staticmethod
    def from_bytes(data: bytes) -> SequenceState:
        """Return the state.

        Raises
        ------
        StateError
            If the row is damaged, of an unknown version, or not ours.
        """
        view = memoryview(data)
        if len(data) < _SIZE or data[:4] != MAGIC:
            raise SequenceState.damaged("it does not begin as a state row of dedup_by_sequence")
        if _CRC.unpack_from(data, _HEADER.size)[0] != zlib.crc32(view[: _HEADER.size]):
            raise SequenceState.damaged("the checksum of its header is wrong")
        _, version, _, head_bytes, table_bytes, crc = _HEADER.unpack_from(data)
        if version != VERSION:
            raise StateError.unknown_version(version, VERSION)
        body = view[_SIZE:]
        if len(body) != head_bytes + table_bytes or zlib.crc32(body) != crc:
            raise SequenceState.damaged("the checksum of its producers is wrong")
        try:
            head = parse_json(decompressed(body[:head_bytes]))
            fields = mapping(head, needed=_FIELDS, allowed=_FIELDS)
            shard, shards = (integer(number, 0) for number in array(fields["shard"], 2))
            return SequenceState(
                epoch=integer(fields["epoch"], -1),
                shard=(shard, shards),
                made_of=tuple(map(text, array(fields["made_of"]))),
                clocks=clocks_of(fields["clocks"]),
                producers=Producers.from_bytes(body[head_bytes:]),
            )
        except (ValueError, zlib.error) as exc:
            raise SequenceState.damaged(f"it contradicts itself: {exc}") from exc
