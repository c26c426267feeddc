"""Divides JSON into lines, and searches the lines as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.kernel.arrays import BOOL, I64

_FEED, _RETURN = b"\n\r"
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of some data that are not empty: where they begin and end."""

    data: bytes
    starts: I64
    stops: I64
    #: Number of bytes of all lines, empty ones and line ends included.
    nbytes: int
    #: Whether blanks of JSON separate the lines.
    has_blanks_between: bool

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def of(cls, data: bytes, separator: bytes, *, is_last: bool) -> Self:
        """Find the lines that end in the data. `separator` is b"" for CR LF, LF and CR.

        `is_last` says that the file ends with the data.
        """
        codes = np.frombuffer(data, np.uint8)
        if len(separator) > 1:
            separators = (match.start() for match in re.finditer(re.escape(separator), data))
            stops = np.fromiter(separators, np.int64)
        elif separator or b"\r" not in data:
            stops = np.flatnonzero(codes == (separator or b"\n")[0])
        else:
            is_end = (codes == _FEED) | (codes == _RETURN)
            is_end[:-1] &= (codes[:-1] != _RETURN) | (codes[1:] != _FEED)
            if not is_last and data.endswith(b"\r"):  # a line feed may follow
                is_end[-1] = False
            stops = np.flatnonzero(is_end)
        nexts = stops + max(1, len(separator))
        nbytes = int(nexts[-1]) if len(nexts) else 0
        if is_last and nbytes < len(data):
            nbytes = len(data)
            stops, nexts = np.append(stops, nbytes), np.append(nexts, nbytes)
        starts = np.append(0, nexts)[:-1]
        if not separator:
            is_pair = (codes[stops - 1] == _RETURN) & (stops > starts) & (stops < nexts)
            stops = stops - (is_pair & (codes[np.minimum(stops, len(data) - 1)] == _FEED))
        filled = starts < stops
        return cls(data, starts[filled], stops[filled], nbytes, not separator.strip(b" \t\r\n"))

    def texts(self, lines: I64) -> Iterator[tuple[int, bytes]]:
        """Yield the offsets and the texts of some lines."""
        bounds = self.starts[lines].tolist(), self.stops[lines].tolist()
        for start, stop in zip(*bounds, strict=True):
            yield start, self.data[start:stop]

    def joined(self, lines: I64) -> bytes | pa.Buffer:
        """Return the text of some lines, in their order."""
        steps = np.diff(lines)
        gaps = np.flatnonzero(steps != 1) if self.has_blanks_between else np.arange(len(steps))
        starts = self.starts[lines[np.append(0, gaps + 1)]].tolist()
        stops = self.stops[lines[np.append(gaps, -1)]].tolist()
        if not len(gaps):
            return pa.py_buffer(self.data)[starts[0] : stops[0]]
        return b"\n".join(self.data[a:b] for a, b in zip(starts, stops, strict=True))

    def are_objects(self) -> BOOL:
        """Return which lines begin and end with braces."""
        codes = np.frombuffer(self.data, np.uint8)
        final = self.stops - 1
        final = final - (codes[final] == _RETURN)
        braces: BOOL = (codes[self.starts] == ord("{")) & (codes[final] == ord("}"))
        return braces

    def are_utf8(self) -> BOOL:
        size = np.array([0, len(self.data)], np.int32)
        data = pa.py_buffer(self.data)
        try:
            pa.StringArray.from_buffers(1, pa.py_buffer(size), data).validate(full=True)
        except pa.ArrowInvalid:
            flags = (_is_utf8(text) for _, text in self.texts(np.arange(len(self))))
            return np.fromiter(flags, np.bool_, len(self))
        return np.ones(len(self), np.bool_)

    def matches(self, pattern: str) -> BOOL:
        """Return which lines have a match of a regular expression."""
        return np.asarray(pc.match_substring_regex(self.array(), pattern))

    def array(self) -> pa.BinaryArray:
        """Return the lines with their line ends. Empty lines are at the end of others."""
        offsets = np.append(self.starts, self.nbytes).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), len(self), buffers)


def first_line_end(data: bytes, separator: bytes, *, is_last: bool) -> int | None:
    """Return where the first line ends, with its line end, or None if it does not end."""
    match = re.search(re.escape(separator) if separator else _LINE_END, data)
    if match is None or (match[0] == b"\r" and match.end() == len(data) and not separator):
        return len(data) if is_last and data else None
    return match.end()


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
