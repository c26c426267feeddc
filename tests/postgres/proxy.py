"""A network that fails at a commit: connections to the server that lose, cut or hold it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from enum import Enum, auto

_COMMIT = b"COMMIT\0"


class Harm(Enum):
    """What becomes of the next commit."""

    CUT_BEFORE = auto()  #: it never reaches the server, and the connection ends
    LOSE_REPLY = auto()  #: the server commits, and the connection ends before the answer
    HOLD = auto()  #: it reaches the server when the test lets go; the client is cut off at once


class CommitProxy:
    """Passes everything on until a fault is armed; a context manager.

    Parameters
    ----------
    port : int
        Of the server, on this machine.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._armed: Harm | None = None
        self._before = 0
        self._lock = threading.Lock()
        #: Set once the fault has struck.
        self.struck = threading.Event()
        self._release = threading.Event()
        self._delivered = threading.Event()

    def __enter__(self) -> CommitProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._release.set()
        self._listener.close()

    def arm(self, harm: Harm, after: int = 0) -> None:
        """Let the next commit fail, or one later by as many as are to be passed on before it."""
        self._armed, self._before = harm, after
        self.struck.clear()

    def disarm(self) -> None:
        """Let all commits pass."""
        self._armed = None

    def release(self) -> None:
        """Let a commit that is held reach the server, or what is left of its connection."""
        self._release.set()
        assert self._delivered.wait(10)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._to))
                except OSError:  # it is away
                    client.close()
                    continue
                for ends in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_client: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                harm = self._taken() if is_client and _COMMIT in data else None
                if harm is not None:
                    self._strike(harm, data, source, target)
                    return
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _taken(self) -> Harm | None:
        with self._lock:
            if self._armed is not None and self._before:
                self._before -= 1
                return None
            harm, self._armed = self._armed, None
            return harm

    def _strike(
        self, harm: Harm, data: bytes, client: socket.socket, server: socket.socket
    ) -> None:
        # First: the client may be done with its error before this thread runs again.
        self.struck.set()
        client.shutdown(socket.SHUT_RDWR)
        if harm is Harm.HOLD:
            self._release.wait(60)
        with suppress(OSError):
            if harm is not Harm.CUT_BEFORE:
                server.sendall(data)
        self._delivered.set()
        if harm is Harm.CUT_BEFORE:
            server.shutdown(socket.SHUT_RDWR)
