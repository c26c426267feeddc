"""Remove the secrets of our options from foreign texts, such as errors of libraries and servers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, unquote

#: Parts of names of options whose values no text may show.
_SECRET = re.compile(
    r"(?i)password|passwd|passphrase|secret|token|credential|jaas|assertion|\.pem|keystore\.key|"
    r"(?:private|access|account|shared|api).?key|sas(?!l)|signature|connection.string|"
    r"authorization|user\.info|(?:^|[.-])sig$"
)
#: How names of options end that only say where a secret is, or of what kind.
_NO_SECRET = re.compile("(?i)(?:location|path|file|url|uri|endpoint|type|mechanism|name|callback)$")
_NO_VALUE = re.compile(r"(?i)true|false|none|\d{0,3}")
#: User and password of a URI; a key may have a slash in it, and behind a port there is a path.
_IN_URI = re.compile(r":/+(?P<secret>[^\s'\"<>@/:]{0,999}:(?!\d+/)[^\s<>@]{0,9999})@")
#: The same of an option, which is a URI as a whole.
_IN_OPTION = re.compile(r"://[^/@:]*:(?!\d+/)(.*)@", re.DOTALL)
#: A name in front of a value, as in JAAS, a DSN or JSON.
_NAMED = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]{1,256})(?:\s*=|['\"]\s*=|['\"]\s*:\s*(?=['\"]))\s*"
)
#: The value, be its quotes escaped, plain or never closed; our advice has "...".
_VALUE = re.compile(
    r"(?!(['\"]?)\.\.\.\1(?![\w.]))(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|'[^']*'|\"[^\"]*\"|"
    r"['\"]\S+|[^\s'\";,&]+)"
)
HIDDEN = "***"


def without_secrets(text: object, options: Mapping[str, str]) -> str:
    """Return a text without any secret of the options, however it is encoded in the text.

    Parameters
    ----------
    text : object
        Mostly an error of a library or a server.
    options : mapping of str to str
        By name; the values of some are secrets, others are URIs that hold secrets.
    """
    found = {form for secret in _secrets(options) for form in _forms(secret)}
    plain = str(text)
    for secret in sorted(found, key=len, reverse=True):
        plain = plain.replace(secret, HIDDEN)
    plain = _hidden(plain, (found.span("secret") for found in _IN_URI.finditer(plain)))
    return _hidden(plain, _named_values(plain))


def _hidden(text: str, spans: Iterable[tuple[int, int]]) -> str:
    at, parts = 0, []
    for begin, end in spans:
        parts += [text[at:begin], HIDDEN]
        at = end
    return "".join([*parts, text[at:]])


def _named_values(text: str) -> Iterator[tuple[int, int]]:
    end = 0
    for found in _NAMED.finditer(text):
        if found.start() >= end and _is_secret(found["name"]):
            value = _VALUE.match(text, found.end())
            if value is not None:
                end = value.end()
                yield value.span()


def _is_secret(name: str) -> bool:
    return bool(_SECRET.search(name)) and not _NO_SECRET.search(name)


def _secrets(options: Mapping[str, str]) -> Iterator[str]:
    for name, value in options.items():
        if _is_secret(name):
            yield value
            if ":" in value:  # a client and its secret
                yield value.partition(":")[2]
        yield from (value[begin:end].strip("'\"") for begin, end in _named_values(value))
        if in_uri := _IN_OPTION.search(value):
            # A library that takes a piece of the password for the host cites that piece.
            yield from (in_uri[1], *re.split(r"[@:/?#&=]", in_uri[1]))


def _forms(secret: str) -> Iterator[str]:
    if _NO_VALUE.fullmatch(secret) is None:
        yield from (secret, unquote(secret), quote(secret, safe=""), repr(secret)[1:-1])
