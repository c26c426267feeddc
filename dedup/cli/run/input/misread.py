"""Text that Spark reads in part, without a word: found before anything of a file is taken.

Spark's JSON reader takes the first value of a line and passes over what follows it, such as all
other records of a file without line ends. Its CSV reader ends a record with the line, and takes
what is left of a value in quotes for a record of its own.
"""

from __future__ import annotations

import json
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
_DECODER = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)
#: A text in quotes of either kind, to its end or that of the line; a bracket; what is neither.
_JSON_PARTS = re.compile(
    r""" "(?>(?:[^"\\]++|\\.)*)(?:"|\\?\Z) | '(?>(?:[^'\\]++|\\.)*)(?:'|\\?\Z) | [\[{] | [\]}]
    | [^\[\]{}"'\s]++ """,
    re.DOTALL | re.VERBOSE,
)
#: What no more record can begin without.
_OPENING = re.compile(r"""[\[{"']""")
_COMMENT = re.compile(r"//|/\*|#")
_SPARK_ESCAPES = {"\\t": "\t", "\\\\": "\\"}

Positions = npt.NDArray[np.int64]


def refuse_misread(
    path: Path, file_format: str, settings: Mapping[str, str], stop: StopRequest | None = None
) -> None:
    """Refuse a file of which Spark would pass over a part, or cut it in two; see `misread`.

    Raises
    ------
    DataError
        With what is wrong and where, and the ways out.
    """
    wrong = misread(path, file_format, settings, stop)
    if wrong is None:
        return
    multiline = is_true(settings, "multiline")
    if file_format == "json":
        many = (
            "with one value, such as an array of all" if multiline else "with one JSON value a line"
        )
        way = f"Write the file again under its name, {many}"
    else:
        way = "Mend the file under its name: within a value in quotes, a quote is doubled"
        if not multiline:
            way += (
                ". Or give, with a new --output, --read-option multiLine=true where values have "
                "line ends"
            )
        way += ". Where quotes have no meaning, give --read-option quote= with a new --output"
    raise DataError(f"{path} {wrong}. Nothing of it was taken. {way}.", remedy="bad-records")


def misread(
    path: Path, file_format: str, settings: Mapping[str, str], stop: StopRequest | None = None
) -> str | None:
    """Say what of a file Spark would pass over or cut in two, None where that is nothing.

    Parameters
    ----------
    path : Path
    file_format : str
        ``csv`` or ``json``; others have no text.
    settings : mapping of str to str
        Options of Spark's reader, by name in lower case.
    stop : StopRequest, optional
        Ends the look with a KeyboardInterrupt.

    Notes
    -----
    What cannot be read or decoded at all is left to Spark, which says so. So is a line that is no
    JSON from its beginning on.
    """
    look = {"csv": _csv, "json": _json}.get(file_format)
    if look is None:
        return None
    try:
        return look(path, settings, stop)
    except (OSError, pa.ArrowException, LookupError, UnicodeError):
        return None


def _json(path: Path, settings: Mapping[str, str], stop: StopRequest | None) -> str | None:
    comments = any(name.endswith("comments") for name in settings)
    if is_true(settings, "multiline"):
        content = b"".join(block for _, block in blocks(path, settings, stop))
        if _may_go_on(content.replace(b"\n", b" ")) and _goes_on(
            as_text(content), comments=comments
        ):
            return "has more behind its first JSON value, which Spark would pass over"
        return None
    for first, block in blocks(path, settings, stop):
        if not _may_go_on(block):
            continue
        for number, line in enumerate(block.split(b"\n"), start=first):
            if _goes_on(text := as_text(line), comments=comments):
                return (
                    f"has more behind the first JSON value of line {number}, which Spark would "
                    f"pass over: {_shown(text)}"
                )
    return None


def _may_go_on(block: bytes) -> bool:
    """Whether a line may have something behind its first value; never False where one has."""
    if _is_flat(block):
        return False
    if b"\\" in block:
        block = block.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    text = np.frombuffer(block, np.uint8)
    ends = np.append(np.flatnonzero(text == ord("\n")), text.size)
    marks = np.flatnonzero(text == ord('"'))
    if _odd_lines(marks, ends) or b"'" in block:
        return True
    closes = (text == ord("}")) | (text == ord("]"))
    brackets = np.flatnonzero(closes | (text == ord("{")) | (text == ord("[")))
    # Outside of texts alone.
    brackets = brackets[np.searchsorted(marks, brackets) % 2 == 0]
    if not brackets.size:
        return False
    depth = np.cumsum(1 - 2 * closes[brackets].astype(np.int64))
    lasts = np.searchsorted(brackets, ends) - 1
    lasts = np.unique(lasts[lasts >= 0])
    if depth[lasts].any() or np.count_nonzero(depth <= 0) != lasts.size:
        return True
    behind = brackets[lasts] + 1
    return bool((text[behind[behind < text.size]] != ord("\n")).any())


def _is_flat(block: bytes) -> bool:
    """Whether each line is an object with no bracket inside, which takes a tenth of the time."""
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    return (
        b"[" not in block
        and block.count(b"{") == block.count(b"\n{") + block.startswith(b"{") == lines
        and block.count(b"}") == block.count(b"}\n") + block.endswith(b"}") == lines
    )


def _odd_lines(marks: Positions, ends: Positions) -> bool:
    """Whether a line has an odd number of quotes."""
    return bool((np.diff(np.searchsorted(marks, ends), prepend=0) & 1).any())


def _goes_on(text: str, *, comments: bool) -> bool:
    """Whether another record may follow the first value, if that is an object or an array."""
    begin = len(text) - len(text.lstrip())
    if text[begin : begin + 1] not in ("{", "["):
        return False
    try:
        _, end = _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError):
        # Spark takes single quotes as well.
        end = _end_of_value(text)
    rest = text[end:]
    if comments and (found := _COMMENT.search(rest)):
        rest = rest[: found.start()]
    return _OPENING.search(rest) is not None


def _end_of_value(text: str) -> int:
    """Where the first value in brackets ends, by its brackets; the end where it has none."""
    depth = 0
    for found in _JSON_PARTS.finditer(text):
        if found[0] in ("{", "["):
            depth += 1
        elif found[0] in ("}", "]"):
            depth -= 1
            if depth == 0:
                return found.end()
    return len(text)


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
