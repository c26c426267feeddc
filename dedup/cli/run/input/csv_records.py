"""The records of a CSV file, counted in its bytes: what Spark must return, or a reason to stop.

Spark decodes invalid bytes to U+FFFD, ends a record with its line even within quotes, skips lines
of blanks, and takes one kind of line end for a whole file. Two values become one that way, or a
record is lost, without an error. So every new file is read here before Spark reads it.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Mapping
from pathlib import Path

from dedup.cli.run.input.file_columns import open_text
from dedup.cli.run.input.input_files import is_true
from dedup.cli.stop import StopRequest
from dedup.errors import ConfigError, DataError

_BLOCK_BYTES = 8 << 20
_SHOWN_CHARS = 200
_SPARK_ESCAPES = {"\\t": "\t", "\\\\": "\\"}
#: Spark skips a line that has no character above the blank, unless values may have line ends.
_BLANKS = "".join(map(chr, range(33)))
#: The mark of UTF-32-LE begins like the mark of UTF-16-LE.
_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
_LINE_ENDS = {"\r\n": "CR LF", "\r": "CR", "\n": "LF"}
_ANY_LINE_END = re.compile("|".join(_LINE_ENDS))
_AGAIN = "Write the file again under its name"
_NO_QUOTES = "If quotes have no meaning, give --read-option quote= with a new --output"


class _Fault(Exception):
    """What is wrong (LINE is its place), where in which text, and the way out."""

    def __init__(self, text: str, at: int, what: str, way: str) -> None:
        super().__init__(what)
        self.text = text
        self.at = at
        self.what = what
        self.way = way


class CsvRecords:
    """Counts the records of one CSV file as Spark's reader does.

    Parameters
    ----------
    settings : mapping of str to str
        Options of Spark's reader, by name in lower case.

    Raises
    ------
    ConfigError
        If Spark could not read such text, or it cannot be checked.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._has_header = is_true(settings, "header")
        self._skips_blanks = is_true(settings, "ignoreleadingwhitespace")
        self._multiline = is_true(settings, "multiline")
        self._line_end = settings.get("linesep")
        self._comment = settings.get("comment", "")
        mark = settings.get("quote", '"')
        self._mark = mark if len(mark) == 1 else ""
        separator = settings.get("sep", settings.get("delimiter", ","))
        self._separator = _SPARK_ESCAPES.get(separator, separator)
        self._encoding = self._checked_encoding(settings)
        self._record = re.compile(self._pattern(settings.get("escape", '"')), re.DOTALL)
        #: Empty until it has been seen.
        self._end = self._line_end or ("" if self._multiline else "\n")
        self._has_one_column: bool | None = None

    def _checked_encoding(self, settings: Mapping[str, str]) -> str:
        given = settings.get("encoding", settings.get("charset", "utf-8"))
        try:
            name = codecs.lookup(given).name
        except LookupError:
            raise ConfigError(
                f"--read-option encoding={given}: text in it cannot be checked. Write the files "
                "in UTF-8, and leave the option out."
            ) from None
        is_wide = name.startswith(("utf-16", "utf-32"))
        if is_wide and not self._multiline and not (self._line_end and name[-2:] in ("le", "be")):
            raise ConfigError(
                f"--read-option encoding={given}: Spark looks for line ends byte by byte, and "
                "finds none in such text. Give --read-option multiLine=true as well, or write the "
                "files in UTF-8."
            )
        return name

    def _pattern(self, escape: str) -> str:
        """Pattern of a record; its groups are the record, and how it ends.

        Groups are atomic, not possessive: before Python 3.11.5 possessive ones go wrong
        (https://github.com/python/cpython/issues/106052).
        """
        between, quote = re.escape(self._separator), re.escape(self._mark)
        ends = [self._line_end] if self._line_end else _LINE_ENDS if self._multiline else ["\n"]
        end = "|".join(map(re.escape, ends))
        firsts = re.escape("".join(stop[0] for stop in (self._separator, *ends)))
        value = plain = f"(?>(?:[^{firsts}]|(?!{between}|{end})[{firsts}])*)"
        if self._mark:
            inside = f"[^{quote}{re.escape(escape)}]++"
            if escape:
                inside += f"|{quote}{quote}" if escape == self._mark else f"|{re.escape(escape)}."
            blanks = "[ \t]*+" if self._skips_blanks else ""
            value = f"{blanks}(?:{quote}(?>(?:{inside})*){quote}{plain}|(?!{quote}){plain})"
        return f"((?>{value}(?:{between}{value})*))({end})"

    def count(self, path: Path, stop: StopRequest | None = None) -> int:
        """Return the number of rows that Spark must return for a file.

        Parameters
        ----------
        path : Path
        stop : StopRequest, optional
            Ends the look with a KeyboardInterrupt.

        Raises
        ------
        DataError
            If Spark would change a value or lose a record: the place, and the way out.
        OSError, pyarrow.ArrowException
            If the file cannot be read.
        """
        records, line, text, decoder, is_last = 0, 1, "", None, False
        with open_text(path) as stream:
            while not is_last:
                if stop is not None and stop.is_set():
                    raise KeyboardInterrupt
                # A long record is not looked through again and again.
                chunk = stream.read(max(_BLOCK_BYTES, len(text)))
                is_last = not chunk
                if decoder is None:
                    chunk = chunk.removeprefix(codecs.BOM_UTF8)
                    decoder = self._decoder(chunk)
                try:
                    text = self._decoded(decoder, text, chunk)
                    found, used = self._count(text, is_last=is_last)
                except _Fault as fault:
                    line += fault.text.count(self._end or "\n", 0, fault.at)
                    what = fault.what.replace("LINE", f"line {line:,}", 1)
                    raise DataError(
                        f"{path} {what}. Nothing of it was taken. {fault.way}.",
                        remedy="bad-records",
                    ) from None
                records += found
                line += text.count(self._end or "\n", 0, used)
                text = text[used:]
        return max(records - self._has_header, 0)

    def _decoder(self, start: bytes) -> codecs.IncrementalDecoder | io.IncrementalNewlineDecoder:
        """Return what decodes as Java does, and makes LF of line ends if Spark does."""
        encoding = self._encoding
        if encoding in ("utf-16", "utf-32") and not start.startswith(_WIDE_MARKS):
            encoding += "-be"
        decoder = codecs.getincrementaldecoder(encoding)()
        if self._multiline or self._line_end:
            return decoder
        return io.IncrementalNewlineDecoder(decoder, translate=True)

    def _decoded(
        self,
        decoder: codecs.IncrementalDecoder | io.IncrementalNewlineDecoder,
        text: str,
        chunk: bytes,
    ) -> str:
        try:
            text += decoder.decode(chunk, not chunk)
        except UnicodeDecodeError as error:
            text += error.object[: error.start].decode(error.encoding, "ignore")
            raise _Fault(
                text,
                len(text),
                f"has bytes in LINE that are not {self._encoding.upper()}: "
                f"{error.object[error.start : error.end].hex(' ')}",
                f"{_AGAIN} in that encoding. Or give, with a new --output, --read-option "
                "encoding=... with the encoding that the files have",
            ) from None
        seen = getattr(decoder, "newlines", None)
        if isinstance(seen, tuple) and "\r" in seen:
            raise _Fault(
                text,
                len(text),
                "has a CR alone, where Spark ends the record, although other lines end with LF",
                f"{_AGAIN} with one kind of line end. If the CR belongs to a value in quotes, give "
                "--read-option multiLine=true with a new --output",
            )
        return text

    def _count(self, text: str, *, is_last: bool) -> tuple[int, int]:
        """Return the number of records, and of the characters that they take."""
        if text.endswith("\r") and not is_last:
            # A line feed may follow.
            text = text[:-1]
        if not self._end:
            found = _ANY_LINE_END.search(text)
            if found is None and not is_last:
                return 0, 0
            self._end = found[0] if found else "\n"
        if is_last and text and not text.endswith(self._end):
            text += self._end
        is_whole = is_last or not self._multiline
        if is_whole:
            text = text[: text.rfind(self._end) + len(self._end)] if self._end in text else ""
        if self._has_one_column is None:
            first = next(filter(self._is_record, text.split(self._end)), self._separator)
            self._has_one_column = self._separator not in first
        records = at = 0
        while at < len(text):
            lines, used = self._count_lines(text, at)
            records += lines
            at += used
            if self._comment and text.startswith(self._comment, at):
                used = text.find(self._end, at) + len(self._end) - at
                if used > 0:
                    at += used
                    continue
            found = self._record.match(text, at)
            if found is None:
                if is_whole and at < len(text):
                    raise self._unclosed(text, at)
                break
            self._check(found)
            records += self._is_record(found[1])
            at = found.end()
        return records, at

    def _count_lines(self, text: str, begin: int) -> tuple[int, int]:
        """As `_count`, up to the first line with quotes: each line is a record, or none."""
        mark = text.find(self._mark, begin) if self._mark else -1
        end = text.rfind(self._end, begin, mark if mark >= 0 else len(text))
        plain = text[begin : max(end, begin) + len(self._end)] if end >= 0 else ""
        if not self._line_end and self._multiline:
            ends = plain.count("\r") + plain.count("\n")
            if plain.count(self._end) * len(self._end) != ends:
                return 0, 0
        lines = plain.split(self._end)[:-1]
        records = len(lines)
        for number, line in enumerate(lines):
            # Others have a character above the blank.
            if line[:1] <= " " or line.startswith(self._comment or " "):
                records -= not self._is_record(line)
                if self._is_lost(line):
                    raise _Fault(
                        text,
                        begin + len(self._end.join(lines[: number + 1])),
                        "has nothing but blanks and separators in LINE, which Spark would skip",
                        "Remove the line from the file, or put its values in quotes",
                    )
        return records, len(plain)

    def _check(self, found: re.Match[str]) -> None:
        """Refuse a record of which Spark would make another."""
        record, end = found.groups()
        text, at = found.string, found.start()
        if self._mark in record and "\0" in record and self._mark:
            raise _Fault(
                text,
                at,
                "has a NUL in the record of LINE, which Spark loses beside quotes",
                f"{_AGAIN} without it. {_NO_QUOTES}",
            )
        if not self._multiline and self._end in record:
            raise self._unclosed(text, at)
        if self._line_end or not self._multiline:
            return
        if end != self._end:
            raise _Fault(
                text,
                found.start(2),
                f"ends LINE with {_LINE_ENDS[end]}, and its first line with "
                f"{_LINE_ENDS[self._end]}: Spark takes one kind of line end for a whole file",
                f"{_AGAIN} with one kind of line end",
            )
        if end != "\n" and end in record:
            raise _Fault(
                text,
                text.index(end, at),
                f"has {_LINE_ENDS[end]} within a value in LINE, which Spark would change to LF, "
                "because the file's lines end so",
                f"{_AGAIN} with LF at the end of its records. Or give, with a new --output, "
                "--read-option lineSep=$'\\r\\n'",
            )

    def _is_record(self, line: str) -> bool:
        """Whether Spark makes a row of a line."""
        if not line or (self._comment and line.startswith(self._comment)):
            return False
        may_be_blank = self._multiline and not self._skips_blanks
        return may_be_blank or bool(line.strip(_BLANKS))

    def _is_lost(self, line: str) -> bool:
        """Whether Spark skips a line that has values."""
        has_values = self._has_one_column or self._separator in line
        return bool(line) and not self._multiline and not line.strip(_BLANKS) and has_values

    def _unclosed(self, text: str, at: int) -> _Fault:
        what = "has a value in quotes without an end in LINE"
        way = "Correct the file under its name: within a value in quotes, a quote is doubled"
        if not self._multiline:
            line = text[at:].partition(self._end)[0][:_SHOWN_CHARS]
            shown = "".join(c if c.isprintable() else "\ufffd" for c in line)
            what += f", where Spark ends the record: {shown}"
            way += (
                ". Or give, with a new --output, --read-option multiLine=true if values have line "
                "ends"
            )
        return _Fault(text, at, what, f"{way}. {_NO_QUOTES}")
