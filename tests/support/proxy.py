"""A proxy before a server that loses, delays and cuts off single requests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Self

Where = Callable[[bytes], bool]


class Harm(Enum):
    """What happens to a request."""

    #: The server carries it out, the reply never comes, the connection stays.
    LOSE_REPLY = "lose the reply"
    #: The server carries it out, and the connection breaks instead of the reply.
    CUT_AFTER = "cut after"
    #: The server never sees it: the connection breaks.
    CUT_BEFORE = "cut before"
    #: It, and what follows on its connection, comes late.
    DELAY = "delay"
    #: The connection breaks, and the request is on its way until `Fault.release`.
    HOLD = "hold"


@dataclass(slots=True, eq=False)
class Fault:
    """What is to happen to a request, once."""

    harm: Harm
    #: Which requests are meant, by their whole frame.
    where: Where
    #: So many of them pass before.
    after: int = 0
    #: Of `Harm.DELAY`.
    seconds: float = 0.0
    fired: threading.Event = field(default_factory=threading.Event)
    #: The server's reply to what was lost, cut or held.
    reply: bytes = b""
    #: Set once there is a reply, or there will be none.
    answered: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def release(self, timeout_s: float = 10.0) -> bytes:
        """Let a request that is held arrive; return the reply, empty if the server has left."""
        self.released.set()
        assert self.answered.wait(timeout_s), "no reply to the request that was held"
        return self.reply

    def wait(self, timeout_s: float = 10.0) -> None:
        """Wait until it has happened; it is an error if it does not."""
        assert self.fired.wait(timeout_s), f"{self.harm.value} did not happen"


class Proxy:
    """The proxy; it passes on what no fault is armed for. Without a protocol, bytes as they come.

    It listens at a port of this machine, by default a free one, and passes on to another.
    """

    def __init__(self, to_port: int, port: int = 0) -> None:
        self._to = ("127.0.0.1", to_port)
        self._lock = threading.Lock()
        self._armed: list[Fault] = []
        self._links: set[_Link] = set()
        self._refusing = False
        self._listener = socket.create_server(("127.0.0.1", port), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        self.address = f"127.0.0.1:{self.port}"

    def frame(self, source: socket.socket) -> bytes:
        """Read a request or a reply."""
        data = source.recv(1 << 16)
        if not data:
            raise ConnectionAbortedError
        return data

    def correlation(self, frame: bytes, *, is_reply: bool) -> int:
        """Return what a request and its reply have in common."""
        return 0

    def strike(self, harm: Harm, where: Where, *, after: int = 0, seconds: float = 0.0) -> Fault:
        """Harm a request; return the fault, which records whether it fired."""
        fault = Fault(harm, where, after, seconds)
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
        """Return the fault that is armed for a request."""
        with self._lock:
            for fault in filter(lambda fault: fault.where(frame), self._armed):
                if not fault.after:
                    self._armed.remove(fault)
                    return fault
                fault.after -= 1
        return None

    def __enter__(self) -> Self:
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
    """One client's connection, and the one to the server that carries it on."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        # A few bytes each way: waiting to send more of them at once would cost 40 ms a request.
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lost: dict[int, Fault] = {}
        self._ended = count(1)

    def start(self) -> None:
        """Carry requests and replies until an end closes."""
        for work in (self._requests, self._replies):
            threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def cut(self) -> None:
        """End both connections."""
        for end in (self._client, self._server):
            _shut(end)

    def _run(self, work: Callable[[], None]) -> None:
        with suppress(OSError):
            work()
        ended = next(self._ended)
        held = any(fault.harm is Harm.HOLD for fault in self._lost.values())
        if not held or ended == 2:
            self.cut()
            self._proxy.forget(self)
            for fault in self._lost.values():
                fault.answered.set()

    def _requests(self) -> None:
        while True:
            frame = self._proxy.frame(self._client)
            fault = self._proxy.take(frame)
            if fault is not None:
                fault.fired.set()
                if fault.harm is Harm.CUT_BEFORE:
                    return
                self._delay(fault, self._proxy.correlation(frame, is_reply=False))
            self._server.sendall(frame)

    def _delay(self, fault: Fault, correlation: int) -> None:
        """Do what comes before the request."""
        if fault.harm is Harm.DELAY:
            fault.released.wait(fault.seconds)
            return
        self._lost[correlation] = fault
        if fault.harm is Harm.HOLD:
            _shut(self._client)
            fault.released.wait()

    def _replies(self) -> None:
        while True:
            frame = self._proxy.frame(self._server)
            fault = self._lost.pop(self._proxy.correlation(frame, is_reply=True), None)
            if fault is None:
                with suppress(OSError):  # held: the client has gone, one more reply is to come
                    self._client.sendall(frame)
                continue
            fault.reply = frame
            if fault.harm is not Harm.LOSE_REPLY:
                self.cut()
            fault.answered.set()


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
