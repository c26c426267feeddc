"""CSV that Spark cuts in two, without a word: found before anything of a file is taken.

Its reader ends a record with the line, and takes what is left of a value in quotes for a record of
its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.cli.run.input.text_blocks import as_text, blocks, is_true
from dedup.cli.stop import StopRequest
from dedup.errors import DataError

_SHOWN_CHARS = 200
_SPARK_ESCAPES = {"\\t": "\t", "\\\\": "\\"}

Positions = npt.NDArray[np.int64]


def refuse_misread(
    path: Path, settings: Mapping[str, str], stop: StopRequest | None = None
) -> None:
    """Refuse a file that Spark would cut in two; see `misread`.

    Raises
    ------
    DataError
        With what is wrong and where, and the ways out.
    """
    wrong = misread(path, settings, stop)
    if wrong is None:
        return
    way = "Mend the file under its name: within a value in quotes, a quote is doubled"
    if not is_true(settings, "multiline"):
        way += (
            ". Or give, with a new --output, --read-option multiLine=true where values have line "
            "ends"
        )
    way += ". Where quotes have no meaning, give --read-option quote= with a new --output"
    raise DataError(f"{path} {wrong}. Nothing of it was taken. {way}.", remedy="bad-records")


def misread(path: Path, settings: Mapping[str, str], stop: StopRequest | None = None) -> str | None:
    """Say what of a CSV file Spark would cut in two, None where that is nothing.

    Parameters
    ----------
    path : Path
    settings : mapping of str to str
        Options of Spark's reader, by name in lower case.
    stop : StopRequest, optional
        Ends the look with a KeyboardInterrupt.

    Notes
    -----
    What cannot be read or decoded at all is left to Spark, which says so.
    """
    try:
        return _csv(path, settings, stop)
    except (OSError, pa.ArrowException, LookupError, UnicodeError):
        return None


def _odd_lines(marks: Positions, ends: Positions) -> bool:
    """Whether a line has an odd number of quotes."""
    return bool((np.diff(np.searchsorted(marks, ends), prepend=0) & 1).any())


def _csv(path: Path, settings: Mapping[str, str], stop: StopRequest | None) -> str | None:
    quotes = _Quotes.of(settings)
    if quotes is None:
        return None
    if is_true(settings, "multiline"):
        content = as_text(b"".join(block for _, block in blocks(path, settings, stop)))
        begun = quotes.unclosed(content)
        return None if begun is None else f"has a value in quotes without an end in line {begun}"
    for first, block in blocks(path, settings, stop):
        if not quotes.may_be_unclosed(block):
            continue
        for number, line in enumerate(block.split(b"\n"), start=first):
            text = as_text(line)
            if quotes.mark in text and quotes.unclosed(text) is not None:
                return (
                    f"has a value in quotes without an end in line {number}, where Spark ends the "
                    f"record: {_shown(text)}"
                )
    return None


class _Quotes:
    """How a CSV file puts values in quotes.

    Parameters
    ----------
    mark, separator : str
    escape : str
        In front of a mark inside a value in quotes; empty for none.
    comment : str
        What a line that is none begins with; empty for none.
    skip_blanks : bool
        Blanks in front of a value do not count.
    """

    def __init__(
        self, mark: str, separator: str, escape: str, comment: str, *, skip_blanks: bool
    ) -> None:
        self.mark = mark
        self._separator = separator
        self._escape = escape
        self._comment = comment
        quote, between = re.escape(mark), re.escape(separator)
        inside = f"[^{quote}{re.escape(escape)}]++" if escape else f"[^{quote}]++"
        if escape == mark:
            inside += f"|{quote}{quote}"
        elif escape:
            inside += f"|{re.escape(escape)}."
        # Groups are atomic, not possessive: before Python 3.11.5 possessive ones go wrong
        # (https://github.com/python/cpython/issues/106052).
        first = re.escape(separator[0])
        plain = f"(?>(?:[^{first}\n]++|(?!{between}){first})*)"
        blanks = "[ \t]*+" if skip_blanks else ""
        value = f"{blanks}(?:{quote}(?>(?:{inside})*){quote}{plain}|(?!{quote}){plain})"
        self._record = re.compile(f"(?>{value}(?:{between}{value})*)(?:\n|\\Z)", re.DOTALL)

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> _Quotes | None:
        """As Spark's options have it; None where values are in no quotes."""
        mark = settings.get("quote", '"')
        separator = settings.get("sep", settings.get("delimiter", ","))
        if len(mark) != 1 or not separator:
            return None
        return cls(
            mark,
            _SPARK_ESCAPES.get(separator, separator),
            settings.get("escape", '"'),
            settings.get("comment", ""),
            skip_blanks=is_true(settings, "ignoreleadingwhitespace"),
        )

    def may_be_unclosed(self, block: bytes) -> bool:
        """Whether a line may have a value without an end; never False where one has."""
        if self.mark.encode() not in block:
            return False
        bytes_alone = (self.mark + self._separator).isascii() and len(self._separator) == 1
        if not bytes_alone or self._escape != self.mark:
            return True
        text = np.frombuffer(block, np.uint8)
        marks = np.flatnonzero(text == ord(self.mark))
        ends = np.append(np.flatnonzero(text == ord("\n")), text.size)
        if _odd_lines(marks, ends):
            return True
        # As no line has an odd number, each second one ends a value, or is doubled.
        beside = np.frombuffer(f"{self._separator}{self.mark}\n".encode(), np.uint8)
        padded = np.concatenate(([ord("\n")], text, [ord("\n")]))
        opening, closing = marks[0::2], marks[1::2]
        return not (
            np.isin(padded[opening], beside).all() and np.isin(padded[closing + 2], beside).all()
        )

    def unclosed(self, text: str) -> int | None:
        """Number of the line with a record of which a value has no end, None where all have one."""
        at = 0
        while at < len(text):
            if self._comment and text.startswith(self._comment, at):
                at = text.find("\n", at) + 1 or len(text)
                continue
            record = self._record.match(text, at)
            if record is None:
                return text.count("\n", 0, at) + 1
            at = record.end()
        return None


def _shown(text: str) -> str:
    """The beginning of a line, without what a terminal would take for more than text."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text[:_SHOWN_CHARS])
