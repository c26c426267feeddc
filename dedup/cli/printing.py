"""Safe printing: records, file names and foreign errors cannot send control codes to a terminal.

This module imports no extra, so that a command can report which extra is missing.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

#: Control characters except tab and line feed, characters that change the writing direction, and
#: lone surrogates.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_DEPENDENCIES = ("pyspark", "pandas", "pyarrow", "rocksdict", "numpy")


def shown(text: str) -> str:
    r"""Return the text with control codes escaped as in a Python string.

    >>> print(shown("a\x1b[31mb"))
    a\x1b[31mb
    """
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def say(text: object, *, as_error: bool = False) -> None:
    print(shown(str(text)), file=sys.stderr if as_error else sys.stdout)


class ShownLog(logging.Formatter):
    """Formats log lines without control codes. `main` installs this formatter for all logging."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


@contextmanager
def while_read() -> Iterator[None]:
    """Suppress the error that the block gets if the reader of its output closes the pipe."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Discard later output, because Python would flush it at exit and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def version_lines() -> list[str]:
    from dedup import kernel

    lines = [f"dedup {_version('rolling-dedup')}", f"kernel {kernel.PATH}"]
    return lines + [f"{name} {_version(name)}" for name in _DEPENDENCIES]


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
