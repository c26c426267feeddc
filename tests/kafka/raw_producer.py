"""Produce requests written by hand: a client library does not let its user choose sequences.

See https://kafka.apache.org/protocol: Produce 7, and record batches of magic 2
(https://kafka.apache.org/documentation/#recordbatch).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

_PRODUCE, _INIT_PRODUCER_ID = 0, 22
#: The broker has no producer IDs at hand yet; it has not heard of the topic yet, or of its part.
_LOADING, _UNKNOWN_TOPIC, _NOT_LEADER = 14, 3, 6
#: Names of the error codes that a batch may be answered with.
ANSWERS = {
    0: "none",
    45: "out of order",
    46: "duplicate sequence",
    47: "fenced",
    59: "unknown producer",
}


@dataclass
class RawProducer:
    """A connection to the broker that leads every partition, over which batches are sent."""

    address: str
    _socket: socket.socket = field(init=False)
    _correlation: int = 0

    def __enter__(self) -> RawProducer:
        host, _, port = self.address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def new_producer_id(self) -> int:
        """Return a producer ID that no one else has."""
        error = _LOADING
        while error == _LOADING:
            answer = self._ask(_INIT_PRODUCER_ID, 0, struct.pack(">hi", -1, 60_000))
            _, error, producer_id, _ = struct.unpack(">ihqh", answer)
        assert error == 0, f"InitProducerId was answered with error {error}"
        return int(producer_id)

    def send(
        self,
        topic: str,
        partition: int,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        values: Sequence[bytes],
    ) -> tuple[int, int]:
        """Send one batch; return error code and offset of its first record."""
        batch = _record_batch(producer_id, epoch, first_sequence, values)
        request = b"".join(
            (
                struct.pack(">hhi", -1, -1, 30_000),  # no transaction, all replicas, timeout
                struct.pack(">i", 1), _text(topic),
                struct.pack(">iii", 1, partition, len(batch)), batch,
            )
        )  # fmt: skip
        error = _NOT_LEADER
        while error in (_UNKNOWN_TOPIC, _NOT_LEADER):
            answer = self._ask(_PRODUCE, 7, request)
            _, error, offset = struct.unpack_from(">ihq", answer, 4 + len(_text(topic)) + 4)
        return int(error), int(offset)

    def _ask(self, key: int, version: int, body: bytes) -> bytes:
        self._correlation += 1
        header = struct.pack(">hhi", key, version, self._correlation) + _text("raw")
        self._socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        (size,) = struct.unpack(">i", self._read(4))
        answer = self._read(size)
        assert struct.unpack_from(">i", answer)[0] == self._correlation
        return answer[4:]

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the broker has closed the connection"
            data += more
        return data


def _record_batch(
    producer_id: int, epoch: int, first_sequence: int, values: Sequence[bytes]
) -> bytes:
    records = b"".join(_record(offset, value) for offset, value in enumerate(values))
    checked = struct.pack(
        ">hiqqqhii", 0, len(values) - 1, 0, 0, producer_id, epoch, first_sequence, len(values)
    )
    checked += records
    magic_and_checksum = struct.pack(">ibI", -1, 2, _crc32c(checked))
    length = len(magic_and_checksum) + len(checked)
    return struct.pack(">qi", 0, length) + magic_and_checksum + checked


def _record(offset: int, value: bytes) -> bytes:
    # Attributes, deltas of time and offset, no key, value, no headers.
    body = b"\0" + _varint(0) + _varint(offset) + _varint(-1)
    body += _varint(len(value)) + value + _varint(0)
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    left = (number << 1) ^ (number >> 63)
    data = bytearray()
    while left >= 0x80:
        data.append(left & 0x7F | 0x80)
        left >>= 7
    data.append(left)
    return bytes(data)


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
