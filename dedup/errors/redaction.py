"""Remove secrets from texts of others, such as error messages of libraries and servers."""

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
#: Endings of the names of options that are not secret, because they hold only the place or the kind
#: of a secret.
_NO_SECRET = re.compile("(?i)(?:location|path|file|url|uri|endpoint|type|mechanism|name|callback)$")
_NO_VALUE = re.compile(r"(?i)true|false|none|\d{0,3}")
#: Pattern of the user and password in a URI. The password may contain a slash. A number and a slash
#: after the colon are a port and a path, not a password.
_IN_URI = re.compile(r":/+(?P<secret>[^\s'\"<>@/:]{0,999}:(?!\d+/)[^\s<>@]{0,9999})@")
#: Pattern of the user and password in an option whose whole value is a URI.
_IN_OPTION = re.compile(r"://[^/@:]*:(?!\d+/)(.*)@", re.DOTALL)
#: Pattern of a name before a value, as in JAAS, a DSN or JSON.
_NAMED = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]{1,256})(?:\s*=|['\"]\s*=|['\"]\s*:\s*(?=['\"]))\s*"
)
#: Pattern of a value, in quotes that may be escaped or unclosed. The value "..." is not matched,
#: because this package shows it in place of a secret.
_VALUE = re.compile(
    r"(?!(['\"]?)\.\.\.\1(?![\w.]))(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|'[^']*'|\"[^\"]*\"|"
    r"['\"]\S+|[^\s'\";,&]+)"
)
HIDDEN = "***"


def without_secrets(text: object, options: Mapping[str, str]) -> str:
    """Return a text, such as an error of a server, without secrets.

    Removes the secrets in ``options``, in any encoding, and what looks like a secret. An option may
    be a secret, or a URI with a secret.
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
