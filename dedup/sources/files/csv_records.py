"""Finds the records and values of CSV in bytes, by RFC 4180 and the options of `CsvForm`.

A value is in quotes if it begins with a quote. Within quotes, separators and line ends are text,
and two quotes are one. Outside quotes, a quote is text. Each CR LF, LF or CR outside quotes ends a
record. An empty line holds no record.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from dedup.sources.files.text_records import NOT_UTF8, Unreadable

#: How far the end of a usual record is searched. Data with CR as line end may have no LF at all.
_USUAL_BYTES = 4 << 10
TEXT_BEHIND_QUOTE = "It has text behind the closing quote of a value."


@dataclass(frozen=True, kw_only=True)
class CsvForm:
    """The options of CSV, as Spark's reader names them.

    `quote`, `comment` and `line_end` may be empty: no quotes, no comments, and any line end.
    `trims_left` and `trims_right` remove blanks around values outside quotes.
    """

    separator: str = ","
    quote: str = '"'
    escape: str = '"'
    comment: str = ""
    line_end: str = ""
    null: str = ""
    empty: str = ""
    trims_left: bool = False
    trims_right: bool = False

    @property
    def is_plain(self) -> bool:
        """Return whether Arrow reads this form."""
        one_byte = all(len(mark.encode()) == 1 for mark in (self.separator, self.quote or '"'))
        same = self.escape in ("", self.quote) or not self.quote
        return (
            one_byte
            and same
            and not (self.comment or self.line_end or self.trims_left or self.trims_right)
        )


class CsvRecord(NamedTuple):
    """A record, from an offset to `stop`. The next record is at `end`."""

    #: The texts of the values. None is a value without a text or quotes.
    values: list[str | None]
    stop: int
    end: int
    #: Why the record cannot be read, or None.
    reason: str | None = None


def _until(ends: bytes, first: bytes) -> bytes:
    """Return a pattern for the text before one of the ends, whose first bytes are `first`.

    It has no possessive quantifier, which Python 3.11.2 matches wrongly within a group.
    """
    return rb"[^%s]*(?:(?!%s).[^%s]*)*" % (first, ends, first)


class CsvScanner:
    """Finds single records, for every form."""

    def __init__(self, form: CsvForm) -> None:
        separator = re.escape(form.separator.encode())
        line_end = re.escape(form.line_end.encode()) or rb"\r\n|\r|\n"
        quote, escape = (re.escape(mark.encode()) for mark in (form.quote, form.escape))
        self._blanks = b" \t".replace(form.separator.encode(), b"")
        blanks = b"[%s]*" % self._blanks
        begin = (blanks if form.trims_left else b"") + (quote or rb"(?!)")
        others = rb"[^%s]*" % (quote or rb"\n")
        inside = rb"(%s(?:%s%s)*)%s(?!%s)" % (others, quote * 2, others, quote, quote)
        self._escaped, self._plain = re.compile(quote * 2), form.quote.encode()
        if form.escape not in ("", form.quote):
            others = rb"[^%s%s]*" % (quote, escape)
            inside = rb"(%s(?:%s.%s)*)%s" % (others, escape, others, quote)
            self._escaped = re.compile(rb"%s([%s%s])" % (escape, quote, escape))
            self._plain = rb"\1"
        first = re.escape(form.line_end[:1].encode()) or rb"\r\n"
        text = _until(line_end, first)
        first += re.escape(form.separator.encode()[:1])
        bare = _until(rb"%s|%s" % (separator, line_end), first)
        end = rb"(%s|%s|\Z)" % (separator, line_end)
        self._separator = form.separator
        self._quoted = re.compile(begin + inside, re.DOTALL)
        self._bare = re.compile(rb"(?!%s)(%s)%s" % (begin, bare, end), re.DOTALL)
        self._rest = re.compile(rb"(%s)%s" % (bare, end), re.DOTALL)
        self._end = re.compile((blanks if form.trims_right else b"") + end)
        self._skipped, self._line_end = re.compile(line_end), form.line_end.encode() or b"\n"
        self._first_of_skipped = f"\n\r{form.line_end[:1]}{form.comment}".encode()
        if form.comment:
            comment = re.escape(form.comment.encode())
            self._skipped = re.compile(
                rb"%s|%s%s(?:%s|\Z)" % (line_end, comment, text, line_end), re.DOTALL
            )
        self._has_usual_lines = not (form.line_end or form.trims_left or form.trims_right)
        self._quote = form.quote.encode() or b"\n"
        self._sides = form.trims_left, form.trims_right

    def record(self, data: bytes, at: int, *, is_last: bool) -> CsvRecord | None:
        """Return the record at an offset, or None if its end is not in the data.

        `is_last` says that the file ends with the data. Raises Unreadable for a value in quotes
        without an end.
        """
        if self._has_usual_lines and (end := data.find(b"\n", at, at + _USUAL_BYTES)) >= 0:
            line = data[at:end].removesuffix(b"\r")
            if self._quote not in line and b"\r" not in line:
                stop = at + len(line)
                try:
                    texts = line.decode().split(self._separator)
                except UnicodeDecodeError:
                    return CsvRecord([], stop, end + 1, NOT_UTF8)
                return CsvRecord([text or None for text in texts], stop, end + 1)
        return self._record(data, at, is_last=is_last)

    def _record(self, data: bytes, begin: int, *, is_last: bool) -> CsvRecord | None:
        at, values, reason, separator = begin, list[bytes | None](), None, self._separator.encode()
        while True:
            match = self._bare.match(data, at)
            if match is not None:
                values.append(self._trimmed(match[1]) or None)
            else:
                quoted = self._quoted.match(data, at)
                if quoted is None:
                    if is_last:
                        raise Unreadable(begin, "a value in quotes has no end")
                    return None
                values.append(self._escaped.sub(self._plain, quoted[1]))
                match = self._end.match(data, quoted.end())
                if match is None:
                    reason = TEXT_BEHIND_QUOTE
                    match = self._rest.match(data, quoted.end())
                    assert match is not None
            at, stop = match.end(), match.start(match.lastindex or 0)
            mark = data[stop:at]
            if mark == separator:
                continue
            # A CR at the end of the data may be the first half of a line end.
            if not is_last and at == len(data) and mark in (b"", b"\r"):
                return None
            try:
                data[begin:stop].decode()
                texts = [None if value is None else value.decode() for value in values]
            except UnicodeDecodeError:
                return CsvRecord([], stop, at, NOT_UTF8)
            return CsvRecord(texts, stop, at, reason)

    def skip(self, data: bytes, at: int, *, is_last: bool) -> int:
        """Return the offset behind a line without a record at an offset, or the offset itself."""
        if data[at] not in self._first_of_skipped:
            return at
        match = self._skipped.match(data, at)
        if match is None:
            return at
        may_go_on = match.end() == len(data) and not match[0].endswith(self._line_end)
        return match.end() if is_last or not may_go_on else at

    def _trimmed(self, value: bytes) -> bytes:
        left, right = self._sides
        value = value.lstrip(self._blanks) if left else value
        return value.rstrip(self._blanks) if right else value
