"""Reads JSON at two speeds: by pyarrow what it cannot misread, and record by record the rest.

pyarrow gets only *regular* lines, which begin with ``{`` and end with ``}``. In JSON no ``{``
follows a ``}``, and no text continues in the next line. So if pyarrow finds as many rows as there
are lines, each line is one object. pyarrow rejects repeated keys and wrong syntax, but not in
fields that it skips, so it reads all fields. Everything else that pyarrow forgives is found before
(`_by_pyarrow`) or in the values (`dedup.sources.files.json_columns`).
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.json

from dedup.kernel.arrays import I64
from dedup.sources.files import json_columns
from dedup.sources.files.json_lines import Lines, first_line_end
from dedup.sources.files.json_records import JsonRecords
from dedup.sources.files.json_text import parsed
from dedup.sources.files.text_input import is_utf8
from dedup.sources.files.text_records import Rows, no_rows
from dedup.sources.files.text_values import Spelling, Unfit

#: Number of lines that `JsonRecords` reads as fast as pyarrow begins to read.
_FEW = 16
#: Number of lines that are read one by one if pyarrow rejects one of them.
_PIECE = 64
#: Largest number of lines that pyarrow reads at a time.
_LINES = 65536
#: Largest number of lines to read one by one before pyarrow tries again.
_MOST = 4096
#: Largest number of fields that pyarrow reads although no column has them.
_MAX_OTHERS = 100
_MAX_PATTERNS = 16
_ROW = re.compile(r" in row (\d+)$")
_CHANGE = re.compile(
    r"Column\([^)]*?([^/)]{1,100})(?:/\[\])*\) changed from (?!null)\w+ to "
    "(string|number|boolean|array|object)"
)
_NO_INTEGER = re.compile(r"couldn't parse:(\S{1,100})$")
#: Some lines, and their rows, one each.
_Run: TypeAlias = tuple[I64, pa.RecordBatch]
#: The characters with which values begin.
_BEGINS = {"string": '"', "number": "-0-9", "boolean": "tf", "array": "[", "object": "{"}


@dataclass(frozen=True, kw_only=True)
class JsonFormat:
    """How files of JSON are read. Implements `text_input.TextFormat`."""

    columns: pa.Schema
    spelling: Spelling
    encoding: str = "UTF-8"
    line_end: bytes = b""
    #: Whether a file is one object, or one array of objects.
    is_whole: bool = False

    @property
    def is_divisible(self) -> bool:
        return not self.is_whole and is_utf8(self.encoding)

    def reader(self, begin: bytes, *, is_last: bool) -> tuple[JsonReader, int]:
        reader = JsonReader(
            self.columns, self.spelling, line_end=self.line_end, is_whole=self.is_whole
        )
        return reader, 0


class JsonReader:
    """Reads JSON: an object, or an array of objects, in each line. A `TextReader`.

    Lines end with LF, CR LF or CR, or only with `line_end`. With `is_whole` a file is one object,
    or one array of objects, over any number of lines. Raises TypeError for a column with a type
    that JSON cannot hold.
    """

    def __init__(
        self,
        columns: pa.Schema,
        spelling: Spelling,
        *,
        line_end: bytes = b"",
        is_whole: bool = False,
    ) -> None:
        self.columns, self.quote, self.line_end = columns, b"", line_end
        self._spelling, self._is_whole = spelling, is_whole
        self._records = JsonRecords(columns, spelling)
        self._kind = pa.struct(list(columns))
        #: The type in which pyarrow reads an object, or None if it cannot read the columns.
        self._read_type: pa.StructType | None = None
        if not is_whole:
            with suppress(TypeError):
                self._read_type = json_columns.read_type(self._kind)
        self._max_fields = json_columns.width(self._kind) + _MAX_OTHERS
        self._odd_integers = json_columns.odd_integers(self._kind)
        #: Patterns of lines that are read one by one.
        decimals = set(json_columns.named(self._kind, pa.types.is_decimal))
        self._suspicions = json_columns.long_numbers(decimals)
        #: Patterns that came from errors of pyarrow.
        self._tried = set[str]()
        #: Number of lines to read one by one after pyarrow has rejected one. It doubles each time.
        self._patience = _FEW

    def read(self, data: bytes, is_last: bool = True) -> Rows:
        lines = self._lines(data, is_last)
        if self._read_type is None:
            return self._joined(lines, [], np.arange(len(lines)))
        return self._joined(lines, *self._by_pyarrow(lines))

    def skip(self, data: bytes, is_last: bool = True) -> Rows:
        return no_rows(self.columns, self._lines(data, is_last).nbytes)

    def _lines(self, data: bytes, is_last: bool) -> Lines:
        if not self._is_whole:
            return Lines.of(data, self.line_end, is_last=is_last)
        # The file is one line.
        end = len(data) if is_last else 0
        start = np.arange(min(end, 1))
        return Lines(data, start, start + end, end, False)

    def first_end(self, data: bytes, *, is_last: bool) -> int | None:
        if self._is_whole:
            return len(data) if is_last and data else None
        return first_line_end(data, self.line_end, is_last=is_last)

    def _by_pyarrow(self, lines: Lines) -> tuple[list[_Run], I64]:
        """Return the rows that pyarrow reads, and the lines that must be read one by one."""
        is_regular = lines.are_objects() & lines.are_utf8()
        if self._suspicions:
            is_regular &= ~lines.matches("|".join(self._suspicions))
        fast: list[_Run] = []
        slow = [np.flatnonzero(~is_regular)]
        regular = np.flatnonzero(is_regular)
        waiting = [regular[at : at + _LINES] for at in range(0, len(regular), _LINES)][::-1]
        resumed = 0  # lines before this one are read one by one
        while waiting:
            own = waiting.pop()
            cut = len(own) if len(own) < _FEW else int(np.searchsorted(own, resumed))
            if cut:
                slow.append(own[:cut])
                waiting += [own[cut:]] * (cut < len(own))
                continue
            try:
                rows, odd = self._run(lines, own)
            except (pa.ArrowException, ValueError) as error:
                reason = str(error)
                row = _ROW.search(reason)
                at = int(row[1]) if row else len(own)
                if pattern := self._new_suspicion(reason):
                    is_odd = lines.matches(pattern)
                    waiting.append(own)
                    if is_odd[own].mean() > 0.5 and self._learn(lines, own[at : at + 1]):
                        continue
                    self._suspicions.append(pattern)
                    slow += [each[is_odd[each]] for each in waiting]
                    waiting = [each[~is_odd[each]] for each in waiting]
                    waiting = [each for each in waiting if len(each)]
                elif at < len(own):
                    is_news = self._learn(lines, own[at : at + 1])
                    if at >= _PIECE:
                        slow.append(own[at : at + 1])
                        waiting += [own[at + 1 :]] * (at + 1 < len(own))
                        waiting.append(own[:at])
                    else:
                        resumed = int(own[at]) + 1 if is_news else self._after(own[at])
                        waiting.append(own)
                elif "unexpected field" in reason and self._learn(
                    lines, own if len(own) <= _PIECE else own[:_FEW]
                ):
                    waiting.append(own)
                elif len(own) > _PIECE:
                    middle = len(own) // 2
                    waiting += [own[middle:], own[:middle]]
                else:
                    resumed = self._after(own[-1])
                    waiting.append(own)
            else:
                fast.append((own, rows))
                slow.append(own[odd])
                if len(own) >= _PIECE:
                    self._patience = _FEW
        return fast, np.unique(np.concatenate(slow))

    def _new_suspicion(self, error: str) -> str | None:
        """Return a pattern of most lines that pyarrow will reject for the same reason."""
        patterns = []
        if change := _CHANGE.search(error):
            patterns = [f"{json_columns.key_pattern([change[1]])}[{_BEGINS[change[2]]}]"]
        elif number := _NO_INTEGER.search(error):
            patterns = [*self._odd_integers, rf"[\s:,\[]{re.escape(number[1])}[\s,\]}}]"]
        for pattern in patterns:
            if pattern not in self._tried and len(self._tried) < _MAX_PATTERNS:
                self._tried.add(pattern)
                return pattern
        return None

    def _run(self, lines: Lines, own: I64) -> tuple[pa.RecordBatch, I64]:
        """Read lines by pyarrow. Return the rows, and which of them may have other values."""
        batch = read_lines(lines, own, self._read_type)
        rows, odd = json_columns.converted(batch.to_struct_array(), self._kind, self._spelling)
        return pa.RecordBatch.from_arrays(rows.flatten(), schema=self.columns), odd

    def _learn(self, lines: Lines, own: I64) -> bool:
        """Read also the fields of these lines that no column has. Return whether any is new."""
        known = self._read_type
        if json_columns.width(known) >= self._max_fields:
            return False
        for _, text in lines.texts(own):
            with suppress(Unfit):
                wider = json_columns.widened(known, parsed(text), self._kind)
                if json_columns.width(wider) <= self._max_fields:
                    known = wider
        is_new: bool = known != self._read_type
        self._read_type = known
        return is_new

    def _after(self, line: np.int64) -> int:
        """Return the line from which pyarrow reads again after it has rejected a line."""
        self._patience = min(2 * self._patience, _MOST)
        return int(line) + self._patience

    def _joined(self, lines: Lines, fast: list[_Run], slow: I64) -> Rows:
        good, offsets, bad = self._records.read(lines.texts(slow))
        if fast:
            own = np.concatenate([run for run, _ in fast])
            is_kept = np.append(~np.isin(own, slow), np.ones(len(good), np.bool_))
            good = pa.concat_batches([*(rows for _, rows in fast), good])
            offsets = np.append(lines.starts[own], offsets)
            if len(slow):
                kept = np.flatnonzero(is_kept)
                order = kept[np.argsort(offsets[kept], kind="stable")]
                good, offsets = good.take(pa.array(order)), offsets[order]

        def spans() -> list[tuple[int, int]]:
            stops = lines.stops[np.searchsorted(lines.starts, offsets)]
            return list(zip(offsets.tolist(), stops.tolist(), strict=True))

        return Rows(good, bad, lines.nbytes, spans)


def read_lines(lines: Lines, own: I64, kind: pa.StructType) -> pa.RecordBatch:
    """Read objects by pyarrow, one in each line. Raises ValueError or pyarrow.ArrowException."""
    data = lines.joined(own)
    table = pa.json.read_json(
        pa.BufferReader(data),
        pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        pa.json.ParseOptions(
            explicit_schema=pa.schema(list(kind)), unexpected_field_behavior="error"
        ),
    )
    if len(table) != len(own):
        raise ValueError("a line has several values")
    (batch,) = table.combine_chunks().to_batches()
    return batch
