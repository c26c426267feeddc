"""Reads files of CSV or JSON in blocks, so that memory is bounded for every file.

Several tasks may share a file that is not compressed. The record that begins in a task's range of
bytes belongs to the task.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import pyarrow as pa

from dedup.sources.files.event_times import EventTime
from dedup.sources.files.text_records import BadRecord, Rows, TextReader, Unreadable, line_ends
from dedup.sources.files.text_values import Spelling

#: Number of bytes that are read at a time.
BLOCK_BYTES = 8 << 20
#: Largest record, and how many of its bytes are kept if it is larger.
MAX_RECORD_BYTES = 64 << 20
_KEPT_BYTES = 64 << 10
TOO_LONG = f"It is longer than {MAX_RECORD_BYTES >> 20} MiB."
#: Matches the name of a file that is unpacked when it is opened.
PACKED = r"(?i)\.(gz|bz2|zst|lz4)$"
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_MARK = codecs.BOM_UTF8


class TextFormat(Protocol):
    """How the files of an input are read. It must pickle."""

    @property
    def encoding(self) -> str: ...

    @property
    def spelling(self) -> Spelling: ...

    @property
    def is_divisible(self) -> bool:
        """Whether tasks may share a file that is not packed."""

    def reader(self, begin: bytes, *, is_last: bool) -> tuple[TextReader, int] | None:
        """Return the reader of a file, and the number of bytes of its header.

        `begin` is the begin of the file, and `is_last` says whether it is the whole file. Returns
        None if the header does not end in these bytes. Raises Unreadable.
        """


@dataclass(frozen=True, slots=True)
class Located:
    """Rows of a file, and its bad records with the numbers of their lines, from 1.

    `times` has the event times of the rows as its only item, if event times are wanted.
    """

    good: pa.RecordBatch
    bad: list[tuple[int, BadRecord]]
    times: list[pa.Array]


def open_text(path: Path) -> pa.NativeFile:
    """Open a file, and unpack it if its suffix names a compression, in upper or lower case.

    Raises OSError.
    """
    compression = _CODECS.get(path.suffix.lower(), "detect")
    return pa.input_stream(str(path), compression=compression)


class TextInput:
    """An open file of CSV or JSON. Methods raise OSError, pyarrow.ArrowException or Unreadable.

    Unreadable has the number of a line, from 1, instead of an offset.
    """

    def __init__(self, path: Path, text_format: TextFormat, time: EventTime | None = None) -> None:
        self._path, self._format, self._time = path, text_format, time
        self._stream = open_text(path)
        self._decode: Callable[[bytes], bytes] | None = None
        if not is_utf8(text_format.encoding):
            self._decode = _decoder(text_format.encoding)
        self._data, self._is_last = b"", False
        #: Offset of the data in the file, and number of line ends before it. They are only counted
        #: from the first bad record on, or if the file has another encoding than the data.
        self._at: int = 0
        self._lines: int | None = None if self._decode is None else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()

    def rows(self, number: int = 0, count: int = 1) -> Iterator[Located]:
        """Yield the rows of part `number` of `count` parts. A file that is packed has one part."""
        begin, stop = 0, None
        if count > 1:
            size = self._path.stat().st_size
            begin, stop = (size * part // count for part in (number, number + 1))
            stop = None if number + 1 == count else stop
        try:
            reader = self.begin()
            if begin > self._at:
                self._go_to(begin, reader)
            yield from self._rows(reader, stop, reader.read)
        except Unreadable as error:
            offset, reason = error.args
            raise Unreadable(self._line(offset), reason) from None
        except UnicodeDecodeError as error:
            reason = f"its text ends within a character of {self._format.encoding} ({error.reason})"
            raise Unreadable(self._line(len(self._data)), reason) from None

    def begin(self) -> TextReader:
        """Return the reader of the file, which knows its header. Call it only once."""
        while True:
            self._more()
            self._take(len(_MARK) if self._at == 0 and self._data.startswith(_MARK) else 0)
            begun = self._format.reader(self._data, is_last=self._is_last)
            if begun is not None:
                break
            if len(self._data) >= MAX_RECORD_BYTES:
                raise Unreadable(0, f"its header is longer than {MAX_RECORD_BYTES >> 20} MiB")
        reader, nbytes = begun
        self._take(nbytes)
        return reader

    def _go_to(self, begin: int, reader: TextReader) -> None:
        """Go to the first record that begins at this offset of the file, or behind it."""
        if not reader.quote:
            # A line that begins here is behind a line end.
            self._at = begin - max(1, len(reader.line_end))
            self._is_last = False
            self._stream.seek(self._at)
            self._data = b""
        for _ in self._rows(reader, begin, reader.skip):
            pass

    def _rows(
        self, reader: TextReader, stop: int | None, read: Callable[[bytes, bool], Rows]
    ) -> Iterator[Located]:
        """Yield what `read` returns for the records that begin before an offset of the file."""
        while stop is None or self._at < stop:
            part = self._data if stop is None else self._data[: stop - self._at]
            is_whole = len(part) == len(self._data)
            rows = read(part, self._is_last and is_whole)
            if not is_whole and not rows.nbytes:
                # This record begins in the part and ends behind it.
                end = reader.first_end(self._data, is_last=self._is_last)
                if end is not None:
                    rows = read(self._data[:end], True)
            if rows.nbytes:
                yield self._located(rows)
                self._take(rows.nbytes)
            elif self._is_last:
                return
            elif (long := self._skip_long(reader)) is not None:
                yield Located(pa.RecordBatch.from_pylist([], reader.columns), [long], [])
            else:
                self._more()

    def _located(self, rows: Rows) -> Located:
        """Return the rows with their event times. Records whose time cannot be read are bad."""
        good, bad, times = rows.good, list(rows.bad), list[pa.Array]()
        if self._time is not None:
            made, unfit = self._time.of(good.column(self._time.column))
            if unfit:
                spans, keep = rows.spans(), np.ones(good.num_rows, np.bool_)
                reason = f"{self._time.column} is not a time."
                # An array of JSON in one line has several rows.
                for begin, end in dict.fromkeys(map(spans.__getitem__, unfit)):
                    bad.append(BadRecord(begin, self._data[begin:end], reason))
                bad.sort(key=lambda record: record.offset)
                keep[unfit] = False
                good, made = good.filter(pa.array(keep)), made.filter(pa.array(keep))
            times = [made]
        return Located(good, [(self._line(record.offset), record) for record in bad], times)

    def _skip_long(self, reader: TextReader) -> tuple[int, BadRecord] | None:
        """Skip a record that is too long, and return its line and begin, or None."""
        if len(self._data) < MAX_RECORD_BYTES:
            return None
        long = self._line(0), BadRecord(0, self._data[:_KEPT_BYTES], TOO_LONG)
        while True:
            end = reader.first_end(self._data, is_last=self._is_last)
            # The last bytes may be a part of a line end.
            kept = max(1, len(reader.line_end))
            nbytes = max(0, len(self._data) - kept) if end is None else end
            if reader.quote and reader.quote in self._data[:nbytes]:
                # Line ends within quotes end no record, and the quotes may be the fault.
                reason = f"a record with quotes is longer than {MAX_RECORD_BYTES >> 20} MiB"
                raise Unreadable(0, reason)
            self._take(nbytes)
            if end is not None or self._is_last:
                return long
            self._more()

    def _more(self) -> None:
        chunk = self._stream.read(BLOCK_BYTES)
        self._is_last = not chunk
        self._data += chunk if self._decode is None else self._decode(chunk)

    def _take(self, nbytes: int) -> None:
        """Remove bytes from the begin of the data."""
        if self._lines is not None:
            self._lines += line_ends(self._data, nbytes)
        self._data = self._data[nbytes:]
        self._at += nbytes

    def _line(self, offset: int) -> int:
        """Return the number of the line at an offset of the data."""
        if self._lines is None:
            self._lines = 0
            with open_text(self._path) as stream:
                left, last = self._at, b""
                while left > 0 and (chunk := stream.read(min(left, BLOCK_BYTES))):
                    is_cut = last == b"\r" and chunk.startswith(b"\n")
                    self._lines += line_ends(chunk, len(chunk)) - is_cut
                    left, last = left - len(chunk), chunk[-1:]
        return self._lines + line_ends(self._data, offset) + 1


def is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name in ("utf-8", "ascii")


def _decoder(encoding: str) -> Callable[[bytes], bytes]:
    """Return a function from bytes to UTF-8. What cannot be decoded becomes invalid UTF-8."""
    encoding = codecs.lookup(encoding).name
    errors = "surrogatepass" if encoding.startswith("utf") else "surrogateescape"
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    return lambda data: decoder.decode(data, final=not data).encode("utf-8", "surrogatepass")
