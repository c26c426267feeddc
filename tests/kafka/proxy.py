"""A proxy before a broker that loses, delays and cuts off single requests of Kafka's protocol.

Kafka frames every request as a length of 4 bytes, the API's key (2), its version (2), a
correlation ID (4) and the rest; every reply as a length and the correlation ID. Nothing is
rewritten: the broker has its own listener for the proxy, and names the proxy's port there.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, IntEnum

Where = Callable[[bytes], bool]


class Api(IntEnum):
    """Keys of the requests that the tests meet."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26


class Harm(Enum):
    """What happens to a request."""

    #: The broker carries it out, the reply never comes, the connection stays.
    LOSE_REPLY = "lose the reply"
    #: The broker carries it out, and the connection breaks instead of the reply.
    CUT_AFTER = "cut after"
    #: The broker never sees it: the connection breaks.
    CUT_BEFORE = "cut before"
    #: It, and what follows on its connection, comes late.
    DELAY = "delay"
    #: The connection breaks, and the request is on its way until `Fault.release`.
    HOLD = "hold"


@dataclass(slots=True, eq=False)
class Fault:
    """What is to happen to the next request of a kind, once.

    Parameters
    ----------
    api : Api
    harm : Harm
    where : function of bytes to bool
        Which requests are meant, by their whole frame.
    seconds : float
        Of `Harm.DELAY`.
    """

    api: Api
    harm: Harm
    where: Where
    seconds: float = 0.0
    fired: threading.Event = field(default_factory=threading.Event)
    #: The broker's reply to what was lost, cut or held.
    reply: bytes | None = None
    answered: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    def release(self, timeout_s: float = 10.0) -> bytes:
        """Let a request that is held arrive, and return the broker's reply to it."""
        self._released.set()
        assert self.answered.wait(timeout_s), f"no reply to the {self.api.name} that was held"
        assert self.reply is not None
        return self.reply

    def wait(self, timeout_s: float = 10.0) -> None:
        """Wait until it has happened; it is an error if it does not."""
        assert self.fired.wait(timeout_s), f"{self.harm.value} of {self.api.name} did not happen"


def commits(frame: bytes) -> bool:
    """Return whether an EndTxn, as librdkafka sends it, commits; else it aborts."""
    return frame[-1] == 1


def of(transactional_id: str) -> Where:
    """Return whether a request names this transactional ID."""
    name = transactional_id.encode()
    assert len(name) < 127, "two bytes of length in the newer encoding"
    older, newer = struct.pack(">h", len(name)) + name, bytes([len(name) + 1]) + name
    return lambda frame: older in frame or newer in frame


class Proxy:
    """The proxy; it passes on what no fault is armed for.

    Parameters
    ----------
    port : int
        Where it listens, on 127.0.0.1.
    to_port : int
        The broker's, as given by `tests.kafka.broker.Broker.behind_proxy`.
    """

    def __init__(self, port: int, *, to_port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self._to = ("127.0.0.1", to_port)
        self._lock = threading.Lock()
        self._armed: list[Fault] = []
        self._links: set[_Link] = set()
        self._refusing = False
        self._listener = socket.create_server(("127.0.0.1", port), backlog=64)
        self.requests: dict[int, int] = {}

    def arm(
        self, api: Api, harm: Harm, *, where: Where = lambda _: True, seconds: float = 0.0
    ) -> Fault:
        """Harm the next request of a kind; return the fault, which records whether it fired."""
        fault = Fault(api, harm, where, seconds)
        with self._lock:
            self._armed.append(fault)
        return fault

    def disarm(self) -> None:
        """Take back what has not fired, and take connections again."""
        self._refusing = False
        with self._lock:
            self._armed.clear()

    def refuse(self) -> int:
        """Cut all connections and refuse new ones until `disarm`; returns how many were cut."""
        self._refusing = True
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()
        return len(links)

    def take(self, frame: bytes) -> Fault | None:
        """Count a request, and return the fault that is armed for it."""
        (api,) = struct.unpack_from(">h", frame)
        with self._lock:
            self.requests[api] = self.requests.get(api, 0) + 1
            for fault in self._armed:
                if fault.api == api and fault.where(frame):
                    self._armed.remove(fault)
                    return fault
        return None

    def __enter__(self) -> Proxy:
        """Take connections."""
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Refuse new connections and end those that there are."""
        self.refuse()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    if self._refusing:
                        raise ConnectionRefusedError
                    link = _Link(self, client, socket.create_connection(self._to))
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._links.add(link)
                link.start()

    def forget(self, link: _Link) -> None:
        """Drop a connection that has ended."""
        with self._lock:
            self._links.discard(link)


class _Link:
    """One client's connection, and the one to the broker that carries it on."""

    def __init__(self, proxy: Proxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy, self._client, self._broker = proxy, client, broker
        # A few bytes each way: waiting to send more of them at once would cost 40 ms a request.
        for end in (client, broker):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lost: dict[int, Fault] = {}

    def start(self) -> None:
        """Carry requests and replies until an end closes."""
        for work in (self._requests, self._replies):
            threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def cut(self) -> None:
        """End both connections."""
        for end in (self._client, self._broker):
            _shut(end)

    def _run(self, work: Callable[[], None]) -> None:
        with suppress(OSError):
            work()
        if not any(fault.harm is Harm.HOLD for fault in self._lost.values()):
            self.cut()
            self._proxy.forget(self)

    def _requests(self) -> None:
        while True:
            frame = _frame(self._client)
            fault = self._proxy.take(frame)
            if fault is not None and not self._harmed(fault, frame):
                return
            _send(self._broker, frame)
            if fault is not None and fault.harm is not Harm.DELAY:
                fault.fired.set()

    def _harmed(self, fault: Fault, frame: bytes) -> bool:
        """Do what comes before the request; returns whether it is passed on."""
        (correlation,) = struct.unpack_from(">i", frame, 4)
        if fault.harm is Harm.CUT_BEFORE:
            self.cut()
            fault.fired.set()
            return False
        if fault.harm is Harm.DELAY:
            fault.fired.set()
            fault._released.wait(fault.seconds)
            return True
        self._lost[correlation] = fault
        if fault.harm is Harm.HOLD:
            _shut(self._client)
            fault.fired.set()
            fault._released.wait()
        return True

    def _replies(self) -> None:
        while True:
            frame = _frame(self._broker)
            (correlation,) = struct.unpack_from(">i", frame)
            fault = self._lost.pop(correlation, None)
            if fault is None:
                with suppress(OSError):  # held: the client has gone, one more reply is to come
                    _send(self._client, frame)
                continue
            fault.reply = frame
            if fault.harm is not Harm.LOSE_REPLY:
                self.cut()
            fault.answered.set()


def _frame(source: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _exactly(source, 4))
    return _exactly(source, size)


def _exactly(source: socket.socket, size: int) -> bytes:
    whole = bytearray()
    while len(whole) < size:
        part = source.recv(min(size - len(whole), 1 << 20))
        if not part:
            raise ConnectionAbortedError
        whole += part
    return bytes(whole)


def _send(target: socket.socket, frame: bytes) -> None:
    target.sendall(struct.pack(">i", len(frame)) + frame)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
