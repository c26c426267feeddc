"""Remove secrets from foreign texts, such as errors of libraries and servers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, unquote

#: Parts of the names of secret options.
_SECRET = re.compile(
    r"(?i)password|passwd|passphrase|secret|token|credential|jaas|assertion|\.pem|keystore\.key|"
    r"(?:private|access|account|shared|api).?key|sas(?!l)|signature|connection.string|"
    r"authorization|user\.info|(?:^|[.-])sig$"
)
#: Endings of the names of options that hold only the place or the kind of a secret.
_NO_SECRET = re.compile("(?i)(?:location|path|file|url|uri|endpoint|type|mechanism|name|callback)$")
_NO_VALUE = re.compile(r"(?i)true|false|none|\d{0,3}")
#: User and password of a URI. A key may contain a slash, and a path follows a port.
_IN_URI = re.compile(r":/+(?P<secret>[^\s'\"<>@/:]{0,999}:(?!\d+/)[^\s<>@]{0,9999})@")
#: User and password in an option whose whole value is a URI.
_IN_OPTION = re.compile(r"://[^/@:]*:(?!\d+/)(.*)@", re.DOTALL)
#: A name before a value, as in JAAS, a DSN or JSON.
_NAMED = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]{1,256})(?:\s*=|['\"]\s*=|['\"]\s*:\s*(?=['\"]))\s*"
)
#: A value, in quotes that may be escaped or unclosed. Advice of this package shows "..." instead.
_VALUE = re.compile(
    r"(?!(['\"]?)\.\.\.\1(?![\w.]))(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|'[^']*'|\"[^\"]*\"|"
    r"['\"]\S+|[^\s'\";,&]+)"
)
HIDDEN = "***"


def without_secrets(text: object, options: Mapping[str, str]) -> str:
    """Return a text without secrets: those of ``options``, in any encoding, and others.

    The text is usually an error of a library or a server. Options may be secrets, or URIs with
    secrets.
    """
    secrets = {form for secret in _secrets(options) for form in _forms(secret)}
    plain = str(text)
    for secret in sorted(secrets, key=len, reverse=True):
        plain = plain.replace(secret, HIDDEN)
    plain = _hidden(plain, (match.span("secret") for match in _IN_URI.finditer(plain)))
    return _hidden(plain, _named_values(plain))


def _hidden(text: str, spans: Iterable[tuple[int, int]]) -> str:
    at, parts = 0, []
    for begin, end in spans:
        parts += [text[at:begin], HIDDEN]
        at = end
    return "".join([*parts, text[at:]])


def _named_values(text: str) -> Iterator[tuple[int, int]]:
    end = 0
    for match in _NAMED.finditer(text):
        if match.start() >= end and _is_secret(match["name"]):
            value = _VALUE.match(text, match.end())
            if value is not None:
                end = value.end()
                yield value.span()


def _is_secret(name: str) -> bool:
    return bool(_SECRET.search(name)) and not _NO_SECRET.search(name)


def _secrets(options: Mapping[str, str]) -> Iterator[str]:
    for name, value in options.items():
        if _is_secret(name):
            yield value
            if ":" in value:  # client:secret
                yield value.partition(":")[2]
        yield from (value[begin:end].strip("'\"") for begin, end in _named_values(value))
        if in_uri := _IN_OPTION.search(value):
            # A library may mistake a part of the password for the host, and show it.
            yield from (in_uri[1], *re.split(r"[@:/?#&=]", in_uri[1]))


def _forms(secret: str) -> Iterator[str]:
    if _NO_VALUE.fullmatch(secret) is None:
        yield from (secret, unquote(secret), quote(secret, safe=""), repr(secret)[1:-1])
