"""How commands print: text of records, file names and foreign errors cannot steer a terminal.

It needs no extra, so that the command can print what is missing.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: C0 but for tab and line end, DEL, C1, marks and overrides of writing direction, lone surrogates.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def shown(text: str) -> str:
    r"""Return the text as a terminal may have it: what steers it is written as in Python.

    >>> print(shown("a\x1b[31mb"))
    a\x1b[31mb
    """
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def say(text: object, *, as_error: bool = False) -> None:
    """Print a line, by default on stdout."""
    print(shown(str(text)), file=sys.stderr if as_error else sys.stdout)


class ShownLog(logging.Formatter):
    """Writes a line of a log as `say` writes one; main() gives it to what logging prints."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without what steers a terminal."""
        return shown(super().format(record))


@contextmanager
def while_read() -> Iterator[None]:
    """Print for as long as someone reads: a pipe that is closed early is no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left would be flushed at the end, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
