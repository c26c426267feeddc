"""Reads blocks of CSV: plain records by Arrow, and all others one by one.

Arrow forgives what `dedup.sources.files.csv_records` rejects. So it gets only *plain* records: all
bytes are UTF-8, and each quote opens or closes a value, or is one of two quotes within a value.
Both ways give the same values.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dedup.kernel.arrays import BOOL, I64
from dedup.sources.files.csv_records import CsvForm, CsvScanner
from dedup.sources.files.text_columns import converted
from dedup.sources.files.text_input import is_utf8
from dedup.sources.files.text_records import BadRecord, Rows, Unreadable, no_rows, type_name
from dedup.sources.files.text_values import Spelling, from_text

RAGGED = "It has more or fewer columns than the header."
_LINE_FEED, _RETURN = 10, 13
#: Number of bytes that are searched for plain records behind a record that is not plain.
_WINDOW_BYTES = 64 << 10
#: A search for plain records that finds no more bytes costs more than to read them one by one.
_VAIN_BYTES = 2 << 10
#: Largest number of records that are read one by one before plain records are searched again.
_MOST_SINGLE = 64


@dataclass(slots=True)
class _Found:
    """The records in some data."""

    #: Begin and end of each stretch of plain records.
    stretches: list[tuple[int, int]] = field(default_factory=list)
    #: Begin and end of each other record, without its line end, and the texts of its columns.
    others: list[tuple[int, int]] = field(default_factory=list)
    texts: list[list[str | None]] = field(default_factory=list)
    #: Begin, end and reason of each bad record.
    bad: list[tuple[int, int, str]] = field(default_factory=list)
    #: Where the last record ends.
    end: int = 0

    def spans(self, begins: I64, ends: I64) -> list[tuple[int, int]]:
        """Return where some records of the joined stretches begin and end in the data."""
        starts, stops = np.array(self.stretches, np.int64).reshape(-1, 2).T
        joined = np.append(0, np.cumsum(stops - starts))
        at = np.searchsorted(joined, begins, side="right") - 1
        shifts = starts[at] - joined[at] if len(starts) else begins
        return list(zip((begins + shifts).tolist(), (ends + shifts).tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class CsvFormat:
    """How files of CSV are read. Implements `text_input.TextFormat`.

    `columns` have the wanted names and types. A file with a header has them in any order, among
    others, unless the header is ignored. Without a header, `columns` are all columns of the file.
    """

    columns: pa.Schema
    form: CsvForm
    spelling: Spelling
    encoding: str = "UTF-8"
    has_header: bool = True
    ignores_header: bool = False

    @property
    def is_divisible(self) -> bool:
        return is_utf8(self.encoding)

    def reader(self, begin: bytes, *, is_last: bool) -> tuple[CsvReader, int] | None:
        names, nbytes = self.columns.names, 0
        if self.has_header:
            parsed = header(begin, self.form, is_last=is_last)
            if parsed is None:
                return None
            header_names, nbytes = parsed
            if header_names and not self.ignores_header:
                names = header_names
                lower = [name.lower() for name in names]
                for name in self.columns.names:
                    if lower.count(name.lower()) != 1:
                        number = "twice" if name.lower() in lower else "nowhere"
                        raise Unreadable(0, f"its header has the column {name!r} {number}")
        return CsvReader(self.columns, names, self.form, self.spelling), nbytes


def header(begin: bytes, form: CsvForm, *, is_last: bool) -> tuple[list[str], int] | None:
    """Return the values of the first record and where it ends, or None if more bytes are needed.

    A file without records has no values. Raises Unreadable.
    """
    scanner, at = CsvScanner(form), 0
    while at < len(begin) and (end := scanner.skip(begin, at, is_last=is_last)) > at:
        at = end
    if at == len(begin):
        return ([], at) if is_last else None
    record = scanner.record(begin, at, is_last=is_last)
    if record is None:
        return None
    if record.reason is not None:
        raise Unreadable(at, f"its header cannot be read. {record.reason}".rstrip("."))
    return [value or "" for value in record.values], record.end


class CsvReader:
    """Reads CSV whose records have the values of `header`, in this order. A `TextReader`.

    `columns` are in the header, in any order and case.
    """

    def __init__(
        self, columns: pa.Schema, header: Sequence[str], form: CsvForm, spelling: Spelling
    ) -> None:
        self.columns, self.header, self._form = columns, header, form
        self.quote, self.line_end = form.quote.encode(), form.line_end.encode()
        self._width = len(header)
        places = {name.lower(): place for place, name in enumerate(header)}
        self._places = [places[name.lower()] for name in columns.names]
        self._exact = [from_text(column.type, spelling) for column in columns]
        self._scanner, self._spelling = CsvScanner(form), spelling
        self._misfits = [f"{c.name} does not fit {type_name(c.type)}." for c in columns]
        self._is_edge = np.zeros(256, np.bool_)
        if form.is_plain:
            self._is_edge[list(f"{form.separator}\n\r{form.quote}".encode())] = True

    def read(self, data: bytes, is_last: bool = True) -> Rows:
        if self._form.is_plain:
            parts = self._found(data, is_last=is_last, has_plain=True)
            try:
                return self._rows(data, parts)
            except pa.ArrowException:  # also of rows that Arrow has divided in another way
                pass
        return self._rows(data, self._found(data, is_last=is_last, has_plain=False))

    def skip(self, data: bytes, is_last: bool = True) -> Rows:
        found = self._found(data, is_last=is_last, has_plain=self._form.is_plain)
        return no_rows(self.columns, found.end)

    def first_end(self, data: bytes, *, is_last: bool) -> int | None:
        skipped = self._scanner.skip(data, 0, is_last=is_last) if data else 0
        if skipped or not data:
            return skipped or None
        record = self._scanner.record(data, 0, is_last=is_last)
        return None if record is None else record.end

    def _found(self, data: bytes, *, is_last: bool, has_plain: bool) -> _Found:
        parts, at, window, scanner = _Found(), 0, len(data), self._scanner
        # After a search in vain, twice as many records as before are read one by one.
        single, left = 1, 0 if has_plain else len(data)
        while at < len(data):
            if not left:
                begin, stop = at, min(len(data), at + window)
                at = self._plain_end(data, begin, stop, is_last=is_last)
                if at > begin:
                    parts.stretches.append((begin, at))
                    if data.find(b"\n", at, stop) < 0:
                        window *= 4
                        continue
                single = 1 if at - begin > _VAIN_BYTES else min(2 * single, _MOST_SINGLE)
                window, left = _WINDOW_BYTES, single
            left -= 1
            if (skipped := scanner.skip(data, at, is_last=is_last)) > at:
                at = skipped
                continue
            record = scanner.record(data, at, is_last=is_last)
            if record is None:
                break
            reason = record.reason
            if reason is None and len(record.values) != self._width:
                reason = RAGGED
            if reason is None:
                parts.texts.append([record.values[place] for place in self._places])
                parts.others.append((at, record.stop))
            else:
                parts.bad.append((at, record.stop, reason))
            at = record.end
        parts.end = at
        return parts

    def _rows(self, data: bytes, parts: _Found) -> Rows:
        plain = data[: parts.end]
        if parts.stretches != [(0, parts.end)]:
            plain = b"".join(data[at:end] for at, end in parts.stretches)
        columns, has_ragged = self._plain_columns(plain)
        if parts.texts:
            others = (pa.array(texts, pa.string()) for texts in zip(*parts.texts, strict=True))
            columns = [pa.concat_arrays(both) for both in zip(columns, others, strict=True)]
        arrays, misfits = list[pa.Array](), dict[int, list[str]]()
        for texts, column, exact, misfit in zip(
            columns, self.columns, self._exact, self._misfits, strict=True
        ):
            array, rows = converted(self._nulls(texts), column.type, exact, self._spelling)
            arrays.append(array)
            for row in rows:
                misfits.setdefault(row, []).append(misfit)
        good = pa.RecordBatch.from_arrays(arrays, schema=self.columns)
        bad = parts.bad
        if parts.texts or has_ragged or misfits:
            begins, ends, is_ragged = self._records(plain)
            bad += [(*span, RAGGED) for span in parts.spans(begins[is_ragged], ends[is_ragged])]
            spans = parts.spans(begins[~is_ragged], ends[~is_ragged]) + parts.others
            if len(spans) != good.num_rows:
                raise pa.ArrowInvalid("Arrow found other records")
            bad += [(*spans[row], " ".join(reasons)) for row, reasons in misfits.items()]
            order = sorted(set(range(len(spans))) - misfits.keys(), key=spans.__getitem__)
            good, ordered = good.take(pa.array(order, pa.int64())), [spans[row] for row in order]
            records = [BadRecord(at, data[at:end], reason) for at, end, reason in sorted(bad)]
            return Rows(good, records, parts.end, lambda: ordered)
        records = [BadRecord(at, data[at:end], reason) for at, end, reason in bad]
        return Rows(good, records, parts.end, lambda: parts.spans(*self._records(plain)[:2]))

    def _plain_end(self, data: bytes, at: int, stop: int, *, is_last: bool) -> int:
        """Return the end of the plain records at an offset, or the offset if there are none."""
        if data.startswith(codecs.BOM_UTF8, at):  # Arrow would skip it
            return at
        ends_file = is_last and stop == len(data)
        end = stop if ends_file else 1 + data.rfind(b"\n", at, stop)
        if self.quote and data.find(self.quote, at, stop) >= 0:
            end = self._end_of_quoted(data, at, stop, ends_file=ends_file)
        if end <= at:
            return at
        offsets = pa.py_buffer(np.array([0, end - at], np.int32))
        text = pa.py_buffer(memoryview(data)[at:end])
        try:
            pa.BinaryArray.from_buffers(pa.binary(), 1, [None, offsets, text]).cast(pa.string())
        except pa.ArrowInvalid:
            try:
                data[at:end].decode()
            except UnicodeDecodeError as error:
                return self._plain_end(data, at, at + error.start, is_last=False)
        return end

    def _end_of_quoted(self, data: bytes, at: int, stop: int, *, ends_file: bool) -> int:
        text = np.frombuffer(data, np.uint8, stop - at, at)
        quotes = np.flatnonzero(text == self.quote[0])
        # A quote that opens a value is behind an edge, and one that closes a value is before one.
        opening, closing = quotes[::2], quotes[1::2]
        opens = self._is_edge[text[opening - 1]] | (opening == 0)
        closes = self._is_edge[text[np.minimum(closing + 1, len(text) - 1)]]
        closes &= (closing + 1 < len(text)) | ends_file
        if ends_file and len(closing) and closing[-1] + 1 == len(text):
            closes[-1] = True
        wrong = [opening[~opens][:1], closing[~closes][:1], opening[len(closing) :]]
        limit = min((int(each[0]) for each in wrong if len(each)), default=len(text))
        if limit == len(text) and ends_file:
            return stop
        feeds = np.flatnonzero(text[:limit] == _LINE_FEED)
        outside = feeds[np.searchsorted(quotes, feeds) % 2 == 0]
        return at + int(outside[-1]) + 1 if len(outside) else at

    def _plain_columns(self, plain: bytes) -> tuple[list[pa.StringArray], bool]:
        """Return the columns of plain records as text, and whether some records are ragged."""
        if not plain:
            return [pa.array([], pa.string()) for _ in self._places], False
        if not plain.endswith((b"\n", b"\r")):
            plain += b"\n"  # otherwise Arrow reads an empty last value as a text
        ragged = list[Any]()

        def skip(row: Any) -> str:
            ragged.append(row)
            return "skip"

        names, form = [str(place) for place in range(self._width)], self._form
        table = pyarrow.csv.read_csv(
            pa.BufferReader(plain),
            pyarrow.csv.ReadOptions(
                use_threads=False, block_size=len(plain) + 1, column_names=names
            ),
            pyarrow.csv.ParseOptions(
                delimiter=form.separator,
                quote_char=form.quote or False,
                newlines_in_values=True,
                invalid_row_handler=skip,
            ),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                include_columns=[str(place) for place in self._places],
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                check_utf8=False,
            ),
        )
        return [column.combine_chunks() for column in table.columns], bool(ragged)

    def _nulls(self, texts: pa.StringArray) -> pa.StringArray:
        """Make nulls of texts as the form says. A null is a value without a text or quotes."""
        if self._form.empty:
            texts = pc.if_else(pc.equal(texts, ""), self._form.empty, texts)
        is_null = pc.equal(texts, self._form.null)
        if pc.any(is_null).as_py():
            texts = pc.if_else(is_null, pa.scalar(None, pa.string()), texts)
        return texts

    def _records(self, plain: bytes) -> tuple[I64, I64, BOOL]:
        """Return where plain records begin and end, and which are ragged."""
        text = np.frombuffer(plain, np.uint8)
        quotes = np.flatnonzero(text == self.quote[0]) if self.quote else np.empty(0, np.int64)
        padded = np.append(text, np.uint8(0))
        is_end = (text == _LINE_FEED) | ((text == _RETURN) & (padded[1:] != _LINE_FEED))
        ends, separators = (
            places[np.searchsorted(quotes, places) % 2 == 0]
            for places in map(np.flatnonzero, (is_end, text == self._form.separator.encode()[0]))
        )
        begins, ends = np.append(0, ends + 1), np.append(ends, len(text))
        counts = np.diff(np.searchsorted(separators, np.append(begins, len(text) + 1)))
        ends -= (padded[ends - 1] == _RETURN) & (padded[ends] == _LINE_FEED) & (ends > begins)
        filled = ends > begins
        return begins[filled], ends[filled], counts[filled] != self._width - 1
