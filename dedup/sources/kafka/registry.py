"""Fetches and registers schemas at a schema registry over HTTP.

The requests are ``GET /schemas/ids/{id}``, ``GET /subjects/{subject}/versions/{version}`` and
``POST /subjects/{subject}/versions``. Confluent's registry, Karapace, Redpanda and Apicurio
all answer these requests.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from dedup.errors import ConfigError, SourceError
from dedup.errors.redaction import without_secrets
from dedup.storage.uri import without_credentials

#: Error codes by which a registry reports an unknown schema, subject or version.
_NOT_FOUND = frozenset((40401, 40402, 40403))
#: Statuses by which a registry refuses a schema: incompatible, or not valid.
_REFUSED = frozenset((409, 422))
#: Seconds to wait before we ask a server again that did not answer.
_PAUSES_S = (0.2, 1.0, 3.0)
#: Largest answer in bytes. We cut a longer answer, which is then not valid JSON.
_ANSWER_BYTES = 16 << 20
_TYPE = "application/vnd.schemaregistry.v1+json"
_JSON = f"{_TYPE}, application/json"


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """A schema as the registry holds it."""

    text: str
    #: The schema's language: ``AVRO``, ``JSON`` or ``PROTOBUF``.
    kind: str = "AVRO"
    #: Schemas that this schema uses without defining them. A schema follows the schemas it uses.
    references: tuple[str, ...] = ()
    #: The registry's ID of the schema, or None if the answer lacks it.
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Registry:
    """A schema registry.

    Parameters
    ----------
    url : str or sequence of str
        The registry's address, such as ``"https://registry:8081"``. Of several addresses, the
        first that answers is used.
    user, password : str, optional
        Credentials for basic authentication.
    token : str, optional
        A bearer token, instead of user and password.
    headers : mapping of str to str, optional
        HTTP headers to send with each request.
    ca_file : str, optional
        PEM file of the certificates to trust, on every machine of the cluster. Default: the
        certificates of the system.
    timeout_s : float
        Longest wait for one answer, in seconds.

    Raises
    ------
    ConfigError
        If a URL is invalid, or if credentials are incomplete or given in two ways.
    """

    url: str | Sequence[str]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: str | None = None
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        for url in self.urls:
            parts = urllib.parse.urlsplit(url)
            is_bare = not (parts.query or parts.username or parts.password)
            if parts.scheme not in ("http", "https") or not parts.hostname or not is_bare:
                raise ConfigError(
                    f"The registry's URL {without_credentials(url)!r} is invalid, or has a query "
                    "or credentials, which would show in logs. Give one such as "
                    '"https://registry:8081", and credentials as user= and password=.'
                )
        if (self.user is None) != (self.password is None) or (self.user and self.token):
            raise ConfigError("The registry takes user and password together, or a token instead.")

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of the registry, without a slash at the end."""
        urls = [self.url] if isinstance(self.url, str) else self.url
        return tuple(url.rstrip("/") for url in urls)

    def by_id(self, schema_id: int) -> WriterSchema | None:
        """Return the schema with this ID, or None if the registry does not know the ID.

        Raises SourceError if no server answers as a registry would.
        """
        answer = self._get(f"/schemas/ids/{schema_id}")
        return None if answer is None else self._schema(answer)

    def latest(self, subject: str) -> WriterSchema:
        """Return a subject's newest schema, or raise ConfigError if it has none of Avro."""
        answer = self._get(f"/subjects/{_quoted(subject)}/versions/latest")
        if answer is None:
            raise ConfigError(
                f"The registry at {self.urls[0]} has no subject {subject!r}. Name it with "
                "subject=, or give the reader's schema with schema=."
            )
        newest = self._schema(answer)
        if newest.kind != "AVRO":
            raise ConfigError(f"The newest schema of {subject} is not Avro but {newest.kind}.")
        return newest

    def register(self, subject: str, schema: str) -> int:
        """Register an Avro schema as a version of a subject, unless it is one. Returns its ID.

        Raises ConfigError if the registry refuses the schema, and SourceError if it does not
        answer.
        """
        body = json.dumps({"schema": schema, "schemaType": "AVRO"}).encode()
        answer = self._get(f"/subjects/{_quoted(subject)}/versions", body)
        if answer is None:
            raise ConfigError(f"The registry at {self.urls[0]} has no subject {subject!r}.")
        return int(answer["id"])

    def _schema(self, answer: Mapping[str, Any]) -> WriterSchema:
        kind, known = str(answer.get("schemaType") or "AVRO"), answer.get("id")
        references = tuple(self._references(answer, set()))
        return WriterSchema(answer["schema"], kind, references, known)

    def _references(self, answer: Mapping[str, Any], known: set[str]) -> Iterator[str]:
        """Yield the schemas to which an answer refers. A schema follows the schemas it uses."""
        for reference in answer.get("references") or ():
            name, subject, version = (str(reference[k]) for k in ("name", "subject", "version"))
            if name in known:  # two schemas may refer to a third one, or to each other
                continue
            known.add(name)
            other = self._get(f"/subjects/{_quoted(subject)}/versions/{_quoted(version)}")
            if other is None:
                raise SourceError(
                    f"A schema of the registry at {self.urls[0]} refers to version {version} of "
                    f"{subject}, which the registry does not have. Register that version, then "
                    "start the query again.",
                    remedy="poison-records",
                )
            yield from self._references(other, known)
            yield other["schema"]

    def _get(self, path: str, body: bytes | None = None) -> dict[str, Any] | None:
        """Return the answer to a request, or None if the object does not exist. Posts a `body`."""
        problem = ""
        for pause_s in (*_PAUSES_S, None):
            for url in self.urls:
                try:
                    return self._ask(url + path, body)
                except ConfigError:
                    raise
                except (OSError, HTTPException, ValueError, RecursionError) as error:
                    secrets = {"password": self.password or "", "token": self.token or ""}
                    secrets |= {f"secret of {name}": v for name, v in self.headers.items()}
                    problem = f"{url} {without_secrets(_description(error), secrets)}"
            if pause_s is not None:
                time.sleep(pause_s)
        raise SourceError(
            f"The schema registry does not answer {path}: {problem}. No record was skipped. Check "
            "its address and credentials, that it runs, and that every machine of the cluster "
            "reaches it, then start the query again.",
            remedy="poison-records",
        )

    def _ask(self, url: str, body: bytes | None) -> dict[str, Any] | None:
        headers = {"Accept": _JSON, **({} if body is None else {"Content-Type": _TYPE})}
        request = urllib.request.Request(url, body, headers | dict(self.headers))
        if self.token is not None:
            request.add_header("Authorization", f"Bearer {self.token}")
        elif self.user is not None:
            plain = f"{self.user}:{self.password}".encode()
            request.add_header("Authorization", f"Basic {base64.b64encode(plain).decode()}")
        handlers: list[urllib.request.BaseHandler] = [_SameServer()]
        if url.startswith("https:"):
            context = ssl.create_default_context(cafile=self.ca_file)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        try:
            opener = urllib.request.build_opener(*handlers)
            with opener.open(request, timeout=self.timeout_s) as reply:
                answer = json.loads(reply.read(_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            # Only the registry's own code distinguishes an unknown schema from a wrong address.
            with error:
                code, message = _refusal(error)
            if code in _NOT_FOUND:
                return None
            if error.code in _REFUSED and code is not None:
                raise ConfigError(
                    f"The registry at {self.urls[0]} refuses the schema: {message}. Correct the "
                    "schema, or the compatibility of its subject."
                ) from None
            raise
        wanted: tuple[str, type] = ("schema", str) if body is None else ("id", int)
        if not isinstance(answer, dict) or not isinstance(answer.get(wanted[0]), wanted[1]):
            raise ValueError(f"answers without {'a schema' if body is None else 'an ID'}")
        return answer


class _SameServer(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to the same server, because the headers may hold secrets."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the next request. Returns None for another server, so that urllib raises."""
        if _server(newurl) != _server(req.full_url):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _server(url: str) -> tuple[str, str | None, int | None]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _refusal(error: urllib.error.HTTPError) -> tuple[int | None, str]:
    """Return the registry's own error code, or None for another server, and its message."""
    try:
        answer = json.loads(error.read(_ANSWER_BYTES))
        return int(answer["error_code"]), " ".join(str(answer.get("message")).split())[:500]
    except Exception:  # another server's answer may be anything
        return None, ""


def _description(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        place = error.headers.get("Location")
        to = f" and redirects to {without_credentials(place)}" if place else ""
        return f"answers with status {error.code}{to}"
    if isinstance(error, urllib.error.URLError):
        return f"cannot be reached ({error.reason})"
    if isinstance(error, TimeoutError):
        return "does not answer in time"
    return str(error) or type(error).__name__


def _quoted(part: str) -> str:
    return urllib.parse.quote(part, safe="")
