"""Remove the secrets of our options from foreign texts, such as errors of libraries and servers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, unquote

#: Parts of names of options whose values no text may show.
_SECRET = (
    r"password|passwd|passphrase|secret|token|credential|jaas|assertion|\.pem|keystore\.key|"
    r"(?:private|access|account|shared|api).?key|sas(?!l)|signature|connection.string|"
    r"authorization|user\.info"
)
#: How names of options end that only say where a secret is, or of what kind.
_NO_SECRET = "(?:location|path|file|url|uri|endpoint|type|mechanism|name|callback)"
#: Name of an option that holds a secret.
_NAME = rf"(?<![\w.-])(?![\w.-]*{_NO_SECRET}(?![\w.-]))(?:[\w.-]*(?:{_SECRET})[\w.-]*|sig)"
_NO_VALUE = re.compile(r"(?i)true|false|none|\d{0,3}")
#: User and password of a URI; a key may have a slash in it, and behind a port there is a path.
_IN_URI = re.compile(r"(?P<begin>:/+)(?P<secret>[^\s'\"<>@/:]*:(?!\d+/)[^\s<>@]*)@")
#: The same of an option, which is a URI as a whole.
_IN_OPTION = re.compile(r"://[^/@:]*:(?!\d+/)(.*)@", re.DOTALL)
#: Quoted or plain values behind such a name, as in JAAS, a DSN or JSON; our advice has "...".
_IN_TEXT = re.compile(
    rf"(?i)(?P<begin>{_NAME}(?:\s*=|['\"]\s*[=:])\s*)(?!['\"]?\.\.\.)"
    r"(?P<secret>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s'\";,&]+)"
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
    for pattern, end in ((_IN_URI, "@"), (_IN_TEXT, "")):
        plain = pattern.sub(rf"\g<begin>{HIDDEN}{end}", plain)
    return plain


def _secrets(options: Mapping[str, str]) -> Iterator[str]:
    for name, value in options.items():
        if re.search(_NAME, name, re.IGNORECASE):
            yield value
            if ":" in value:  # a client and its secret
                yield value.partition(":")[2]
        yield from (found["secret"].strip("'\"") for found in _IN_TEXT.finditer(value))
        if in_uri := _IN_OPTION.search(value):
            # A library that takes a piece of the password for the host cites that piece.
            yield from (in_uri[1], *re.split(r"[@:/?#&=]", in_uri[1]))


def _forms(secret: str) -> Iterator[str]:
    if _NO_VALUE.fullmatch(secret) is None:
        yield from (secret, unquote(secret), quote(secret, safe=""), repr(secret)[1:-1])
