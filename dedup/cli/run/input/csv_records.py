"""Counts the records of a CSV file, which is the number of rows that Spark must return.

Spark decodes invalid bytes to U+FFFD, ends a record with its line even within quotes, skips lines
of blanks, and expects one kind of line end in a whole file. So Spark can lose records, or make two
values equal, without an error. To detect this, we read every new file before Spark does.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dedup.cli.run.input.files import is_true, open_text, separator
from dedup.cli.stop import StopRequest
from dedup.errors import ConfigError, DataError

_BLOCK_BYTES = 8 << 20
_SHOWN_CHARS = 200
#: Spark skips a line that holds only these characters, unless values may contain line ends.
_BLANKS = "".join(map(chr, range(33)))
#: Byte order marks of encodings with wide characters. UTF-32-LE's mark begins like UTF-16-LE's.
_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
#: Matches Python's names of encodings that Python and Java decode in the same way.
_CHECKED = re.compile("utf-(8|16|32)|ascii|iso8859-|koi8-|cp125")
_LINE_ENDS = {"\r\n": "CR LF", "\r": "CR", "\n": "LF"}
_ANY_LINE_END = re.compile("|".join(_LINE_ENDS))
_AGAIN = "Write the file again under its name"
_DOUBLED = (
    "Correct the file under its name: within a value in quotes, a quote is doubled. If a "
    "backslash escapes it, give --read-option escape=\\\\ with a new --output"
)
_NO_QUOTES = "If quotes have no meaning, give --read-option quote= with a new --output"


class _Fault(Exception):
    """A fault of a line. The arguments say what is wrong, and what the user can do."""


class Counted(NamedTuple):
    """Number of rows that Spark must return for a file, and the file's header line."""

    rows: int
    header: str | None


class CsvRecords:
    """Counts the records of one CSV file as Spark's reader does.

    A record is a line. With ``multiLine`` a record ends with the first line that ends outside of
    quotes. `settings` are the options of Spark's reader, by name in lower case. Raises ConfigError
    if Spark or this class cannot read text with these options.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._has_header = is_true(settings, "header")
        self._blanks = "[ \t]*+" if is_true(settings, "ignoreleadingwhitespace") else ""
        self._multiline = is_true(settings, "multiline")
        self._line_end = settings.get("linesep")
        #: Characters that begin a comment.
        self._comments = tuple(settings.get("comment", ""))
        #: The quote character. If the option is empty, Spark uses NUL.
        self._mark = settings.get("quote", '"') or "\0"
        self._separator = separator(settings)
        self._encoding = self._checked_encoding(settings)
        escape = settings.get("escape", '"')
        self._line = re.compile(self._pattern(escape), re.DOTALL)
        between = re.escape(self._separator)
        #: `_foreign` matches ``\"`` within quotes, as Spark and MySQL write a quote.
        begin, end = rf'(?:\A|{between}){self._blanks}"', rf"(?![\x00-\x20]*(?:{between}|\Z))"
        foreign = rf'{begin}(?>(?:[^"\\]|(?:\\)?""|\\(?!"))*)\\"{end}'
        by_default = escape == self._mark == '"' and "unescapedquotehandling" not in settings
        self._foreign = re.compile(foreign if by_default else r"(?!)")
        #: Line end of the file, or None before the first line end.
        self._end = self._line_end
        self._number = 0

    def _checked_encoding(self, settings: Mapping[str, str]) -> str:
        name = given = settings.get("encoding", settings.get("charset", "utf-8"))
        with suppress(LookupError):
            name = codecs.lookup(given).name
        if not _CHECKED.match(name):
            raise ConfigError(
                f"--read-option encoding={given}: text in it cannot be checked. Write the files "
                "in UTF-8, and leave the option out."
            )
        is_wide = name.startswith(("utf-16", "utf-32"))
        if is_wide and not self._multiline and not (self._line_end and name[-2:] in ("le", "be")):
            raise ConfigError(
                f"--read-option encoding={given}: Spark looks for line ends byte by byte, and "
                "finds none in such text. Give --read-option multiLine=true as well, or write the "
                "files in UTF-8."
            )
        return name

    def _pattern(self, escape: str) -> str:
        """Return the pattern of a line without its end. Group 1 matches a value that is not closed.

        The pattern uses atomic groups, because possessive groups are wrong before Python 3.11.5
        (https://github.com/python/cpython/issues/106052).
        """
        between, quote = re.escape(self._separator), re.escape(self._mark)
        first, ends = re.escape(self._separator[0]), "" if self._line_end else "\r\n"
        plain = f"(?>(?:[^{first}{ends}]|(?!{between}){first})*)"
        within = "" if self._multiline else ends
        inside = f"[^{quote}{re.escape(escape)}{within}]++"
        if escape:
            of_other = rf"|{re.escape(escape)}(?:.|\Z)"
            inside += f"|{quote}{quote}" if escape == self._mark else of_other
        begun = f"{self._blanks}{quote}(?>(?:{inside})*)"
        value = f"(?:{begun}{quote}{plain}|{self._blanks}(?!{quote}){plain})"
        return f"(?>(?:{value}{between})*)(?:{value}|({begun}))"

    def count(self, path: Path, stop: StopRequest | None = None) -> Counted:
        """Count the records of a file. Raises KeyboardInterrupt if a stop is requested.

        Raises DataError, which names the line and a remedy, if Spark would change a value or lose a
        record. Raises OSError or pyarrow.ArrowException if the file cannot be read.
        """
        records, header, begin, is_open = 0, None, 0, False
        mark, comments = self._mark, self._comments
        try:
            for lines in self._lines(path, stop):
                for line in lines:
                    self._number += 1
                    is_whole = header is not None and not is_open and line[:1] > " "
                    if is_whole and not ("\r" in line or "\n" in line or mark in line):
                        records += not line.startswith(comments)
                        continue
                    if not is_open:
                        if self._is_skipped(line, header):
                            continue
                        header = line if header is None else header
                        records, begin = records + 1, self._number
                    is_open = self._is_unclosed(line, is_open=is_open)
            if is_open:
                self._number = begin
                raise self._unclosed()
        except _Fault as fault:
            what, way = fault.args
            what = what.replace("LINE", f"line {self._number:,}", 1)
            raise DataError(
                f"{path} {what}. Nothing of it was taken. {way}.", remedy="bad-records"
            ) from None
        return Counted(max(records - self._has_header, 0), header)

    def _lines(self, path: Path, stop: StopRequest | None) -> Iterator[list[str]]:
        decoder, rest, is_last = None, "", False
        with open_text(path) as stream:
            while not is_last:
                if stop is not None and stop.is_set():
                    raise KeyboardInterrupt
                chunk, fault = stream.read(_BLOCK_BYTES), None
                is_last = not chunk
                if decoder is None:
                    chunk = chunk.removeprefix(codecs.BOM_UTF8)
                    decoder = self._decoder(chunk)
                try:
                    text = rest + decoder.decode(chunk, is_last)
                except UnicodeDecodeError as error:
                    fault = error
                    text = rest + error.object[: error.start].decode(error.encoding, "ignore")
                if not (self._multiline or self._line_end):
                    # Programs on Windows sometimes turn CR LF into CR CR LF.
                    text = text.replace("\r\r\n", "\n").replace("\r\n", "\n")
                # Keep a CR at the end for later, because the next block may begin with LF.
                whole = text if is_last or self._line_end else text.rstrip("\r")
                if self._end is None and (end := _ANY_LINE_END.search(whole)):
                    self._end = end[0]
                lines = whole.split(self._end) if self._end else [whole]
                rest = lines.pop() + text[len(whole) :]
                yield lines
                if fault is not None:
                    self._number += 1
                    raise _Fault(
                        f"has bytes in LINE that are not {self._encoding.upper()}: "
                        f"{fault.object[fault.start : fault.end].hex(' ')}",
                        f"{_AGAIN} in that encoding. Or give, with a new --output, --read-option "
                        "encoding=... with the encoding that the files have",
                    )
        if rest:
            yield [rest]

    def _decoder(self, start: bytes) -> codecs.IncrementalDecoder:
        encoding = self._encoding
        if encoding in ("utf-16", "utf-32") and not start.startswith(_WIDE_MARKS):
            encoding += "-be"
        return codecs.getincrementaldecoder(encoding)()

    def _is_skipped(self, line: str, header: str | None) -> bool:
        if not line or line.startswith(self._comments):
            return True
        if line.strip(_BLANKS) or (self._multiline and not self._blanks):
            return False
        has_values = self._separator in line or self._separator not in (header or self._separator)
        if has_values and not self._multiline:
            raise _Fault(
                "has nothing but blanks and separators in LINE, which Spark would skip",
                "Remove the line from the file, or put its values in quotes",
            )
        return True

    def _is_unclosed(self, line: str, *, is_open: bool) -> bool:
        """Return whether a line ends in a quoted value. `is_open` says that it begins in one."""
        if "\0" in line and (is_open or self._mark in line):
            raise _Fault(
                "has a NUL in the record of LINE, which Spark would lose",
                f"{_AGAIN} without it" + (f". {_NO_QUOTES}" if self._mark != "\0" else ""),
            )
        line = self._mark + line if is_open else line
        match = self._line.fullmatch(line)
        if match is None:
            other, first = _ANY_LINE_END.findall(line)[0], self._end or "\n"
            raise _Fault(
                f"has {_LINE_ENDS[other]} within LINE, and its first line ends with "
                f"{_LINE_ENDS[first]}: readers differ in where the record ends",
                f"{_AGAIN} with one kind of line end. If it belongs to a value in quotes, give "
                "--read-option multiLine=true with a new --output",
            )
        if '\\"' in line and self._foreign.search(line):
            raise _Fault("has a quote behind a backslash within a value in LINE", _DOUBLED)
        if match[1] is None:
            return False
        if not self._multiline:
            raise self._unclosed(line)
        if self._end != "\n" and self._end and not self._line_end:
            raise _Fault(
                f"has {_LINE_ENDS[self._end]} within a value in LINE, which Spark would change to "
                "LF, because the file's lines end so",
                f"{_AGAIN} with LF at the end of its records. Or give, with a new --output, "
                "--read-option lineSep=$'\\r\\n'",
            )
        return True

    def _unclosed(self, line: str = "") -> _Fault:
        what, way = "has a value in quotes without an end in LINE", _DOUBLED
        if not self._multiline:
            shown = "".join(c if c.isprintable() else "\ufffd" for c in line[:_SHOWN_CHARS])
            what += f", where Spark ends the record: {shown}"
            way += (
                ". Or give, with a new --output, --read-option multiLine=true if values have line "
                "ends"
            )
        return _Fault(what, f"{way}. {_NO_QUOTES}")


def csv_names(header: str, separator: str, quote: str) -> list[str] | None:
    """Return the names in a header, or None if only Spark can parse the header.

    Raises ValueError if a name is empty or occurs twice.
    """
    if len(separator) != 1 or len(quote) != 1:
        return None
    try:
        (names,) = csv.reader([header], delimiter=separator, quotechar=quote)
    except (ValueError, csv.Error):
        return None
    if "" in names:
        raise ValueError(f"has no name for column {names.index('') + 1}")
    folded = [name.lower() for name in names]
    repeated = [name for at, name in enumerate(names) if name.lower() in folded[:at]]
    if repeated:
        raise ValueError(f"has two columns named {repeated[0]!r}")
    return names
