"""A proxy before an object store that answers wrongly, late or not at all on request."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, TypeAlias

FORWARD_TIMEOUT_S = 60.0

Kind: TypeAlias = Literal[
    "slow down",  # 503, nothing is done
    "error",  # 500, nothing is done
    "reset",  # the connection goes, nothing is done
    "cut",  # it is done, but the connection goes before the answer
    "truncate",  # the connection goes in the middle of the answer's body
    "stump",  # the connection goes in the middle of the answer's head
    "short",  # a share of the answer's body, as if it were all of it
    "delay",  # it is done later, even when no one waits any more
    "hang",  # nothing comes, for as long as the client waits
]
_REFUSALS = {
    "slow down": (503, "Slow Down", "SlowDown", "Please reduce your request rate."),
    "error": (500, "Internal Server Error", "InternalError", "We encountered an internal error."),
}
_HOP_BY_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
_CUTS = ("truncate", "stump")


@dataclass(frozen=True)
class Fault:
    """What happens to which requests.

    `method` is a pattern for the whole method, `path` one that occurs in path and query. `visits`
    picks among the requests that match, which are numbered from 0 by each fault for itself.
    """

    kind: Kind
    method: str = ".*"
    path: str = ""
    visits: Callable[[int], bool] = lambda visit: True
    seconds: float = 0.0
    share: float = 0.5

    def matches(self, method: str, path: str) -> bool:
        return bool(re.fullmatch(self.method, method) and re.search(self.path, path))


class FlakyStore:
    """The proxy's address, the faults it is to make, and those it made."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        #: How often each kind of fault has fired, ever.
        self.fired: Counter[Kind] = Counter()
        #: Requests since the last plan, as ``"METHOD path?query"``.
        self.seen: list[str] = []
        self._faults: tuple[Fault, ...] = ()
        self._visits: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.store = self
        self.endpoint = f"127.0.0.1:{self._server.server_address[1]}"

    def plan(self, *faults: Fault) -> None:
        """From now on these faults and no others; of several that match the first one fires."""
        with self._lock:
            self._faults, self._visits, self.seen = faults, Counter(), []

    def heal(self) -> None:
        self.plan()

    def judge(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.seen.append(f"{method} {path}")
            due = []
            for nth, fault in enumerate(self._faults):
                if fault.matches(method, path):
                    if fault.visits(self._visits[nth]):
                        due.append(fault)
                    self._visits[nth] += 1
            if not due:
                return None
            self.fired[due[0].kind] += 1
            return due[0]

    @contextmanager
    def running(self) -> Iterator[FlakyStore]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    store: FlakyStore

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        # Without the polite end of the base class, which would come before a reset.
        self.close_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients leave in the middle of everything; that is what this is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_any(self) -> None:
        body = self._body()
        fault = self.server.store.judge(self.command, self.path)
        kind = fault.kind if fault else None
        if fault and kind == "hang":
            # The client sends no further request: it stays, or leaves.
            self.connection.settimeout(fault.seconds or FORWARD_TIMEOUT_S)
            with suppress(OSError):
                self.connection.recv(1)
        if kind in ("hang", "reset"):
            return self._reset()
        if kind in _REFUSALS:
            status, reason, code, message = _REFUSALS[kind]
            text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
            headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(text)))]
            return self._send(status, reason, headers, text)
        if fault and kind == "delay":
            time.sleep(fault.seconds)
        status, reason, headers, data = self._forward(body)
        if kind == "cut":
            return self._reset()
        if fault and kind == "short":
            data = data[: int(len(data) * fault.share)]
        if self.command != "HEAD" and status != 204:
            headers.append(("Content-Length", str(len(data))))
        return self._send(status, reason, headers, data, cut=fault if kind in _CUTS else None)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_any  # noqa: N815

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(chunks)

    def _forward(self, body: bytes) -> tuple[int, str, list[tuple[str, str]], bytes]:
        upstream = HTTPConnection(self.server.store.upstream, timeout=FORWARD_TIMEOUT_S)
        try:
            # With the client's own Host: it is part of what it signed.
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in {*_HOP_BY_HOP, "content-length", "expect"}:
                    upstream.putheader(name, value)
            if body or "Content-Length" in self.headers:
                upstream.putheader("Content-Length", str(len(body)))
            upstream.endheaders(body)
            answer = upstream.getresponse()
            data = answer.read()
            # Of an answer to HEAD it is the length of what GET would bring.
            dropped = _HOP_BY_HOP if self.command == "HEAD" else {*_HOP_BY_HOP, "content-length"}
            headers = [(n, v) for n, v in answer.getheaders() if n.lower() not in dropped]
            return answer.status, answer.reason, headers, data
        finally:
            upstream.close()

    def _send(
        self,
        status: int,
        reason: str,
        headers: list[tuple[str, str]],
        data: bytes,
        cut: Fault | None = None,
    ) -> None:
        lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers)]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        body = b"" if self.command == "HEAD" else data
        whole = head + body
        if cut is not None:
            end = len(head) * cut.share
            if cut.kind == "truncate":
                # A response without a body has nothing to cut.
                end = len(head) + len(body) * cut.share if body else 0
            # Without a reset: what was sent arrives, and then the end.
            whole, self.close_connection = whole[: int(end)], True
        self.wfile.write(whole)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
