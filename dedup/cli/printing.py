"""Safe printing: records, file names and foreign errors cannot send control codes to a terminal.

This module needs no extra, so that a command can report which extra is missing.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

#: C0 without tab and line feed, DEL, C1, marks and overrides of writing direction, lone surrogates.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_DEPENDENCIES = ("pyspark", "pandas", "pyarrow", "rocksdict", "numpy")


def shown(text: str) -> str:
    r"""Return the text with its control codes escaped as in Python.

    >>> print(shown("a\x1b[31mb"))
    a\x1b[31mb
    """
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def say(text: object, *, as_error: bool = False) -> None:
    print(shown(str(text)), file=sys.stderr if as_error else sys.stdout)


class ShownLog(logging.Formatter):
    """Formats log lines without control codes. `main` installs it for all logging."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


@contextmanager
def while_read() -> Iterator[None]:
    """Print until the reader closes the pipe, which is not an error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would flush the rest at exit, and fail again.
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
