"""Text that Spark reads in part, without a word: found before anything of a file is taken.

Spark's JSON reader takes the first value of a line and passes over what follows it, such as all
other records of a file without line ends. Its CSV reader ends a record with the line, and takes
what is left of a value in quotes for a record of its own.
"""

from __future__ import annotations

import codecs
import csv
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from dedup.cli.file_names import open_text
from dedup.errors import DataError

_BLOCK_BYTES = 8 << 20
_SHOWN_CHARS = 200
#: A text in quotes of either kind, a bracket, or what is neither; a comma at the end is harmless.
_JSON_PARTS = re.compile(
    r""" "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | [\[{] | [\]}] | [^\[\]{}"',\s]+ """,
    re.DOTALL | re.VERBOSE,
)
#: What JSON has behind a closing bracket, inside a value or at its end.
_BEHIND = b",]}\n"
_AFTER = "the last value of the file\n"


def refuse_misread(path: Path, file_format: str, settings: Mapping[str, str]) -> None:
    """Refuse a file of which Spark would pass over a part, or cut it in two; see `misread`.

    Raises
    ------
    DataError
        With what is wrong and where, and the ways out.
    """
    wrong = misread(path, file_format, settings)
    if wrong is None:
        return
    way = "Write the file again under its name, with one JSON value a line"
    if file_format == "csv":
        way = (
            "Mend the file under its name: a quote that is part of a value is doubled, in a value "
            "in quotes. Or give, with a new --output, --read-option multiLine=true where values "
            "have line ends, or --read-option quote= where quotes have no meaning"
        )
    raise DataError(f"{path} {wrong}. Nothing of it was taken. {way}.", remedy="bad-records")


def misread(path: Path, file_format: str, settings: Mapping[str, str]) -> str | None:
    """Say what of a file Spark would pass over or cut in two, None where that is nothing.

    Parameters
    ----------
    path : Path
    file_format : str
        ``csv`` or ``json``; others have no text.
    settings : mapping of str to str
        Options of Spark's reader, by name in lower case.

    Notes
    -----
    What cannot be read or decoded at all is left to Spark, which says so.
    """
    look = {"csv": _csv, "json": _json}.get(file_format)
    if look is None:
        return None
    try:
        return look(path, settings)
    except (OSError, pa.ArrowException, LookupError, UnicodeError, csv.Error):
        return None


def _json(path: Path, settings: Mapping[str, str]) -> str | None:
    if _is_true(settings, "multiline"):
        whole = b"".join(block for _, block in _blocks(path, settings)).replace(b"\n", b" ")
        if _may_go_on(whole, _BEHIND + b" \t") and _goes_on(_text(whole)):
            return "has more behind its first JSON value, which Spark would pass over"
        return None
    for first, block in _blocks(path, settings):
        if not _may_go_on(block, _BEHIND):
            continue
        for number, line in enumerate(block.split(b"\n"), start=first):
            if _goes_on(text := _text(line)):
                return (
                    f"has more behind the first JSON value of line {number}, which Spark would "
                    f"pass over: {text[:_SHOWN_CHARS]}"
                )
    return None


def _may_go_on(block: bytes, behind: bytes) -> bool:
    """Whether a line may have something behind its first value: cheap, and says so too often."""
    text = np.frombuffer(block, np.uint8)
    closes = (text == ord("}")) | (text == ord("]"))
    brackets = np.flatnonzero(closes | (text == ord("{")) | (text == ord("[")))
    if not brackets.size:
        return False
    closing = closes[brackets]
    next_to = text[np.minimum(brackets[closing] + 1, text.size - 1)]
    if not np.isin(next_to, np.frombuffer(behind, np.uint8)).all():
        return True
    # With brackets in texts, a line may seem not to end where it does.
    depth = np.cumsum(1 - 2 * closing.astype(np.int64))
    line_feeds = np.append(np.flatnonzero(text == ord("\n")), text.size)
    lasts = np.searchsorted(brackets, line_feeds) - 1
    lasts = np.unique(lasts[lasts >= 0])
    return int(np.count_nonzero(depth <= 0)) != lasts.size or bool(depth[lasts].any())


def _goes_on(text: str) -> bool:
    """Whether something follows the first value in brackets."""
    depth, ended = 0, False
    for found in _JSON_PARTS.finditer(text):
        part = found[0]
        if ended and part not in ("}", "]"):
            return True
        if part in ("{", "["):
            depth += 1
        elif part in ("}", "]"):
            depth -= 1
        ended = depth <= 0
    return False


def _csv(path: Path, settings: Mapping[str, str]) -> str | None:
    quotes = _Quotes.of(settings)
    if quotes is None:
        return None
    csv.field_size_limit(sys.maxsize)
    if _is_true(settings, "multiline"):
        lines = (
            _text(line) + "\n"
            for _, block in _blocks(path, settings)
            for line in block.removesuffix(b"\n").split(b"\n")
        )
        begun = quotes.unclosed(lines)
        return None if begun is None else f"has a value in quotes without an end, in line {begun}"
    comment = settings.get("comment")
    for first, block in _blocks(path, settings):
        if not quotes.may_be_unclosed(block):
            continue
        for number, line in enumerate(block.split(b"\n"), start=first):
            text = _text(line)
            if comment and text.startswith(comment):
                continue
            if quotes.mark in text and quotes.unclosed([text + "\n"]) is not None:
                return (
                    f"has a value in quotes without an end in line {number}, where Spark ends the "
                    f"record: {text[:_SHOWN_CHARS]}"
                )
    return None


class _Quotes:
    """How a CSV file puts values in quotes."""

    def __init__(self, mark: str, separator: str, escape: str, *, skip_blanks: bool) -> None:
        self.mark = mark
        self._separator = separator
        self._escape = escape
        self._skip_blanks = skip_blanks

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> _Quotes | None:
        """As Spark's options have it; None where values are in no quotes."""
        mark, escape = settings.get("quote", '"'), settings.get("escape", '"')
        separator = settings.get("sep", settings.get("delimiter", ",")).replace("\\t", "\t")
        if not len(mark) == len(separator) == len(escape) == 1:
            return None
        skip_blanks = _is_true(settings, "ignoreleadingwhitespace")
        return cls(mark, separator, escape, skip_blanks=skip_blanks)

    def may_be_unclosed(self, block: bytes) -> bool:
        """Whether a line of a block may have a value without an end; cheap where none has."""
        if not (self.mark + self._separator + self._escape).isascii():
            return True
        text = np.frombuffer(block, np.uint8)
        marks = np.flatnonzero(text == ord(self.mark))
        if not marks.size:
            return False
        if self._escape != self.mark and self._escape.encode() in block:
            return True
        ends = np.append(np.flatnonzero(text == ord("\n")), text.size)
        if (np.diff(np.searchsorted(marks, ends), prepend=0) & 1).any():
            return True
        # One inside a value without quotes makes an odd number even.
        beside = np.frombuffer(f"{self._separator}{self.mark}\n".encode(), np.uint8)
        padded = np.concatenate(([ord("\n")], text, [ord("\n")]))
        inside = ~np.isin(padded[marks], beside) & ~np.isin(padded[marks + 2], beside)
        return bool(inside.any())

    def unclosed(self, lines: Iterator[str] | list[str]) -> int | None:
        """Number of the line in which a value begins that has no end, None where all have one."""
        doubled = self._escape == self.mark
        reader = csv.reader(
            _and_then(lines, _AFTER),
            delimiter=self._separator,
            quotechar=self.mark,
            doublequote=doubled,
            escapechar=None if doubled else self._escape,
            skipinitialspace=self._skip_blanks,
        )
        before = last = 0
        for _ in reader:
            before, last = last, reader.line_num
        # What follows is a record of its own, unless it was taken for the rest of a value.
        return None if last - before == 1 else before + 1


def _and_then(lines: Iterator[str] | list[str], last: str) -> Iterator[str]:
    yield from lines
    yield last


def _is_true(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "").lower() == "true"


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace")


def _blocks(path: Path, settings: Mapping[str, str]) -> Iterator[tuple[int, bytes]]:
    """Whole lines in UTF-8 that end in a line feed, with the number of the first."""
    number, rest = 1, list[bytes]()
    separator = settings.get("linesep")
    for chunk in _chunks(path, settings):
        if separator is not None:
            # A chunk may end inside it.
            chunk = b"".join([*rest, chunk])
            rest = []
            *whole, last = chunk.split(separator.encode())
            block = b"".join(one.replace(b"\n", b" ") + b"\n" for one in whole)
        else:
            block, end, last = chunk.rpartition(b"\n")
            block += end
        if block:
            block = b"".join([*rest, block])
            yield number, block
            number += block.count(b"\n")
            rest = []
        rest.append(last)
    if block := b"".join(rest):
        yield number, block


def _chunks(path: Path, settings: Mapping[str, str]) -> Iterator[bytes]:
    """The text in UTF-8, with line feeds alone."""
    encoding = settings.get("encoding", settings.get("charset", "utf-8"))
    decoder = None
    if codecs.lookup(encoding).name != "utf-8":
        decoder = codecs.getincrementaldecoder(encoding)()
    with open_text(path) as stream:
        while chunk := stream.read(_BLOCK_BYTES):
            if decoder is not None:
                chunk = decoder.decode(chunk).encode()
            yield chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in chunk else chunk
