"""Parses JSON strictly: a text is exactly one JSON value (RFC 8259), and no key occurs twice."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, NoReturn

import numpy as np

from dedup.sources.files.text_records import NOT_UTF8
from dedup.sources.files.text_values import Number, Unfit, json_text

NOT_STRICT = (
    "It is not exactly one JSON value, or a key occurs twice in an object, or a surrogate has no "
    "partner."
)
BLANKS = " \t\r\n"
#: Largest number of levels of a value, as in Spark's parser.
_MAX_LEVELS = 1000
#: Number of levels for which Python's usual limit of recursion is enough.
_FEW_LEVELS = 200
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_NO_BRACKETS = re.compile(r"[^][}{]+")
_LIMIT_CHANGES = Lock()


def parsed(data: bytes) -> Any:
    """Return the value of a text: None, str, bool, `Number`, list or dict.

    Raises Unfit with the reason if the text is not strict JSON.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Unfit(NOT_UTF8) from None
    if text.count("{") + text.count("[") <= _FEW_LEVELS or (levels := _levels(text)) <= _FEW_LEVELS:
        return _parsed(text)
    if levels > _MAX_LEVELS:
        raise Unfit(f"It has more than {_MAX_LEVELS:,} levels.")
    with deep_recursion():
        return _parsed(text)


def _parsed(text: str) -> Any:
    text = text.strip(BLANKS)
    try:
        value, end = _DECODER.raw_decode(text)
        if end == len(text):
            if "\\ud" in text or "\\uD" in text:
                json_text(value).encode()
            return value
    except ValueError:
        pass
    raise Unfit(NOT_STRICT)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError
    return record


def _refuse(word: str) -> NoReturn:
    raise ValueError


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=Number, parse_float=Number, parse_constant=_refuse
)


def _levels(text: str) -> int:
    brackets = _NO_BRACKETS.sub("", _STRING.sub("", text)).encode()
    # The codes of opening brackets end in 1011, those of closing ones in 1101.
    is_open = np.frombuffer(brackets, np.uint8) & 2 != 0
    return int(np.where(is_open, 1, -1).cumsum().max(initial=0))


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Let Python recurse as deep as a value of JSON may be. One thread may do so at a time."""
    with _LIMIT_CHANGES:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(before + 5 * _MAX_LEVELS)
        try:
            yield
        finally:
            sys.setrecursionlimit(before)
