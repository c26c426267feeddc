"""How commands print: records, file names and foreign errors cannot send control codes.

It needs no extra, so that a command can print which extra is missing.
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
    """Formats log lines as `say` prints text; main() installs it for all logging."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without control codes."""
        return shown(super().format(record))


@contextmanager
def while_read() -> Iterator[None]:
    """Print until the reader closes the pipe, which is no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would flush the rest at exit, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
