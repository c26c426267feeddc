"""A small schema registry over HTTP, with the answers of Confluent's."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass
class SchemaRegistry:
    """Its schemas, what it demands, and what it was asked."""

    #: Answers to ``/schemas/ids/{id}``, and to ``/subjects/{subject}/versions/{version}``.
    by_id: dict[int, dict[str, Any]] = field(default_factory=dict)
    by_subject: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    #: The header that it demands.
    authorization: str | None = None
    #: Statuses of the next answers; 0 closes the connection without one.
    failures: list[int] = field(default_factory=list)
    #: Where it sends its clients instead of answering.
    redirect: str = ""
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    #: Status and body with which it refuses to register a schema.
    refusal: tuple[int, dict[str, Any]] | None = None
    #: The body of every response.
    raw: bytes = b""

    def add(self, schema_id: int, schema: str, subject: str = "", **more: Any) -> bytes:
        """Register a schema; return what stands before its records."""
        self.by_id[schema_id] = {"schema": schema, **more}
        if subject:
            for version in ("latest", "1"):
                self.by_subject[subject, version] = {"schema": schema, "id": schema_id, **more}
        return b"\0" + schema_id.to_bytes(4, "big")

    def require(self, user: str, password: str) -> None:
        """Demand basic authentication."""
        self.authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Register a schema, unless the subject has it; return status and body."""
        parts = path.strip("/").split("/")
        assert (parts[0], parts[2:], body["schemaType"]) == ("subjects", ["versions"], "AVRO")
        if self.refusal is not None:
            return self.refusal
        for known, found in self.by_id.items():
            if found["schema"] == body["schema"]:
                return 200, {"id": known}
        new = max(self.by_id, default=0) + 1
        self.add(new, body["schema"], parts[1])
        return 200, {"id": new}

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        """Return status and body."""
        parts = path.strip("/").split("/")
        if parts[:2] == ["schemas", "ids"]:
            if int(parts[2]) >= 1 << 31:  # no int of Java's
                return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
            found = self.by_id.get(int(parts[2]))
            missing = {"error_code": 40403, "message": f"Schema {parts[2]} not found"}
        elif parts[0] == "subjects":
            found = self.by_subject.get((parts[1], parts[3]))
            missing = {"error_code": 40401, "message": f"Subject '{parts[1]}' not found."}
        else:
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        return (404, missing) if found is None else (200, found)


@contextmanager
def running_registry() -> Iterator[SchemaRegistry]:
    """Serve a registry on this machine."""
    registry = SchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            self.respond(*registry.post(self.path, json.loads(sent)))

        def do_GET(self) -> None:
            self.respond(*registry.answer(self.path.removeprefix("/moved")))

        def respond(self, status: int, body: dict[str, Any]) -> None:
            registry.asked.append(self.path)
            registry.headers.append(dict(self.headers))
            if registry.authorization not in (None, self.headers.get("Authorization")):
                status, body = 401, {"error_code": 401, "message": "Unauthorized"}
            if registry.failures:
                status, body = registry.failures.pop(0), {"message": "made to fail"}
            if status == 0:
                self.close_connection = True
                return
            if registry.redirect and not self.path.startswith("/moved"):
                self.send_response(302)
                self.send_header("Location", registry.redirect + self.path)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            content = registry.raw or json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
