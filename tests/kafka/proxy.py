"""The proxy of the tests for single requests of Kafka's protocol.

Kafka frames every request as a length of 4 bytes, the API's key (2), its version (2), a
correlation ID (4) and the rest; every reply as a length and the correlation ID. Nothing is
rewritten: the broker has its own listener for the proxy, and names the proxy's port there.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter
from enum import IntEnum

from tests.support import proxy
from tests.support.proxy import Fault, Where
from tests.support.proxy import Harm as Harm


class Api(IntEnum):
    """Keys of the requests that the tests meet."""

    PRODUCE = 0
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26


class Proxy(proxy.Proxy):
    """The proxy before a `tests.kafka.broker.Broker.behind_proxy`, which counts requests by API."""

    def __init__(self, port: int, *, to_port: int) -> None:
        super().__init__(to_port, port)
        self.requests: Counter[int] = Counter()

    def arm(
        self, api: Api, harm: Harm, *, where: Where = lambda _: True, seconds: float = 0.0
    ) -> Fault:
        """Harm the next request of a kind; return the fault, which records whether it fired."""
        return self.strike(harm, lambda frame: _api(frame) == api and where(frame), seconds=seconds)

    def take(self, frame: bytes) -> Fault | None:
        with self._lock:
            self.requests[_api(frame)] += 1
        return super().take(frame)

    def frame(self, source: socket.socket) -> bytes:
        size = _exactly(source, 4)
        return size + _exactly(source, *struct.unpack(">i", size))

    def correlation(self, frame: bytes, *, is_reply: bool) -> int:
        (found,) = struct.unpack_from(">i", frame, 4 if is_reply else 8)
        return int(found)


def _api(frame: bytes) -> int:
    (key,) = struct.unpack_from(">h", frame, 4)
    return int(key)


def _exactly(source: socket.socket, size: int) -> bytes:
    whole = bytearray()
    while len(whole) < size:
        part = source.recv(min(size - len(whole), 1 << 20))
        if not part:
            raise ConnectionAbortedError
        whole += part
    return bytes(whole)


def commits(frame: bytes) -> bool:
    """Return whether an EndTxn, as librdkafka sends it, commits; else it aborts."""
    return frame[-1] == 1


def of(transactional_id: str) -> Where:
    """Return whether a request names this transactional ID."""
    name = transactional_id.encode()
    assert len(name) < 127, "two bytes of length in the newer encoding"
    older, newer = struct.pack(">h", len(name)) + name, bytes([len(name) + 1]) + name
    return lambda frame: older in frame or newer in frame


def error_of(reply: bytes) -> int:
    """Return the error in the reply to an EndTxn, behind correlation ID and throttle time."""
    (code,) = struct.unpack_from(">h", reply, 12)
    return int(code)
