"""Makes event times of a column: of text, numbers that count since 1970, days, or timestamps."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.sources.files.text_columns import converted
from dedup.sources.files.text_values import Spelling, Unfit, from_text

#: Units of numbers that count since 1970, with the number of their digits down to microseconds.
EPOCH_UNITS = {"seconds": 6, "milliseconds": 3}
#: Largest number of microseconds, which is at the end of the year 9999, and the smallest.
_LAST_US, _FIRST_US = 253_402_300_799_999_999, -62_135_596_800_000_000
_FINER = r"([.][0-9]{6})[0-9]+"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTime:
    """How event times are made of `column`.

    `form` is a key of `EPOCH_UNITS`, a pattern of Java's, or None for ISO 8601 and for columns of
    dates or timestamps. Digits below the microsecond do not count.
    """

    column: str
    form: str | None
    time_zone: str

    @property
    def type(self) -> pa.DataType:
        return pa.timestamp("us", self.time_zone)

    def of(self, column: pa.Array) -> tuple[pa.Array, list[int]]:
        """Return the times, and the rows without a time although they have a value."""
        is_ = pa.types
        if self.form in EPOCH_UNITS:
            return self._counted(column, EPOCH_UNITS[self.form])
        if is_.is_date(column.type):
            column = column.cast(pa.string())
        if is_.is_string(column.type):
            texts = pc.replace_substring_regex(column, _FINER, r"\1")
            spelling = Spelling(time_zone=self.time_zone, timestamp=self.form)
            return converted(texts, self.type, from_text(self.type, spelling), spelling)
        return column.cast(self.type), []

    def _counted(self, column: pa.Array, scale: int) -> tuple[pa.Array, list[int]]:
        kind, is_ = pa.decimal128(38, scale), pa.types
        unfit = list[int]()
        if is_.is_floating(column.type):
            micros = np.rint(column.fill_null(0).to_numpy(zero_copy_only=False) * 10.0**scale)
            is_fit = np.abs(micros) <= _LAST_US
            micros = np.where(is_fit, micros, 0).astype(np.int64)
        else:
            if is_.is_string(column.type):
                column, unfit = converted(column, kind, partial(_rounded, scale), Spelling())
            elif is_.is_decimal(column.type):
                column = pc.round(column, scale, "half_towards_infinity")
            column = column.cast(kind)
            words = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, 2)
            micros, high = words[column.offset : column.offset + len(column)].T
            is_fit = high == micros >> 63
        is_fit &= (micros >= _FIRST_US) & (micros <= _LAST_US)
        is_null = np.asarray(column.is_null())
        unfit += np.flatnonzero(~(is_fit | is_null)).tolist()
        times = pa.array(micros, pa.int64(), mask=is_null | ~is_fit)
        return times.cast(pa.timestamp("us")).cast(self.type), unfit


def _rounded(scale: int, text: str) -> Decimal:
    try:
        number = Decimal(text.strip())
        if abs(number) <= _LAST_US:  # false for NaN
            return number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
    except ArithmeticError:
        pass
    raise Unfit
