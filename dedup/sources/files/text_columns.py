"""Converts columns of text to their types, with the values that `text_values` gives one by one.

Arrow's parsers are fast but forgiving. So they get only texts in the *plain* spelling of a type, of
which no parser can read more than one value. All other texts are converted one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.kernel.arrays import BOOL, I64
from dedup.sources.files.text_values import FromText, Spelling, Unfit

#: The plain spelling of days. In these years no offset leads to a year that Python lacks.
_DAY = "[12][0-9]{3}-[01][0-9]-[0-3][0-9]"
_CLOCK = "[ T][012][0-9]:[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,6})?"
_MOMENT = _DAY + _CLOCK
#: Local times before 2037, because Arrow knows no later change of a clock.
_LOCAL = f"(?:1[0-9]{{3}}|20[0-2][0-9]|203[0-6])-[01][0-9]-[0-3][0-9]{_CLOCK}"
_ZONE = "(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])"
_FLOAT = r"^-?[0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,2})?$"
#: Number of texts that are converted one by one if Arrow rejects one of them.
_FEW = 32


def converted(
    texts: pa.StringArray, kind: pa.DataType, exact: FromText, spelling: Spelling
) -> tuple[pa.Array, list[int]]:
    """Return a column of type `kind`, and the rows whose texts do not fit, which become null.

    `exact` converts single texts. Null stays null.
    """
    if pa.types.is_string(kind):
        return texts, []
    values, is_done = _plain(texts, kind, spelling)
    left = np.flatnonzero(~is_done)
    if not len(left):
        return values, []
    results, unfit = one_by_one(texts.take(pa.array(left)), kind, exact)
    return pc.replace_with_mask(values, pa.array(~is_done), results), left[unfit].tolist()


def one_by_one(texts: pa.StringArray, kind: pa.DataType, exact: FromText) -> tuple[pa.Array, I64]:
    """Return the values of texts, and the rows whose texts do not fit, which become null."""
    values, unfit = list[Any](), list[int]()
    for row, text in enumerate(texts.to_pylist()):
        try:
            values.append(exact(text))
        except Unfit:
            values.append(None)
            unfit.append(row)
    return pa.array(values, kind), np.array(unfit, np.int64)


def _plain(texts: pa.StringArray, kind: pa.DataType, spelling: Spelling) -> tuple[pa.Array, BOOL]:
    """Return the values of texts in the plain spelling, and which rows are done. Nulls are done."""
    is_ = pa.types
    if is_.is_integer(kind):
        return _cast(texts, r"^-?[0-9]{1,19}$", kind)
    if is_.is_decimal(kind):
        # Arrow overflows at a whole digit that the type does not have.
        whole = f"[0-9]{{1,{n}}}" if (n := kind.precision - kind.scale) > 0 else "0"
        digits = rf"(?:\.[0-9]{{1,{kind.scale}}})?" if kind.scale > 0 else ""
        return _cast(texts, f"^-?{whole}{digits}$", kind)
    if is_.is_floating(kind):
        values, is_done = _cast(texts, _FLOAT, kind)
        # Of the two, only FLOAT overflows.
        return values, is_done & ~_flags(pc.is_inf(values))
    if is_.is_boolean(kind):
        return _cast(pc.ascii_lower(texts), "^(?:true|false)$", kind)
    if is_.is_binary(kind):
        return texts.cast(kind), np.ones(len(texts), np.bool_)
    if spelling.pattern(kind) is not None:
        return _cast(texts, "^$", kind)
    if is_.is_date(kind):
        return _cast(texts, f"^{_DAY}$", kind)
    if kind.tz is None:
        return _cast(texts, f"^{_MOMENT}$", kind)
    values, is_done = _cast(texts, f"^{_MOMENT}{_ZONE}$", kind)
    if is_done.all():
        return values, is_done
    local, is_local = _cast(texts, f"^{_LOCAL}$", pa.timestamp("us"))
    try:
        instants = pc.assume_timezone(
            local, spelling.time_zone, ambiguous="earliest", nonexistent="raise"
        )
    except pa.ArrowException:  # a clock change left out one of the times, or Arrow lacks the zone
        return values, is_done
    return pc.coalesce(values, instants.cast(kind)), is_done | is_local


def _cast(texts: pa.StringArray, form: str, kind: pa.DataType) -> tuple[pa.Array, BOOL]:
    matches = pc.match_substring_regex(texts, form)
    if pc.all(matches, min_count=0).as_py():
        plain = texts
    else:
        plain = pc.if_else(matches, texts, pa.scalar(None, texts.type))
    values = _cast_all(plain, kind)
    return values, _flags(pc.or_(pc.is_valid(values), pc.is_null(texts)))


def _cast_all(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """Cast all texts that Arrow can cast, such as days that exist. Others become null."""
    try:
        return texts.cast(kind)
    except pa.ArrowException:
        if len(texts) <= _FEW:
            return pa.nulls(len(texts), kind)
    middle = len(texts) // 2
    halves = [_cast_all(part, kind) for part in (texts[:middle], texts[middle:])]
    return pa.concat_arrays(halves)


def _flags(flags: pa.BooleanArray) -> BOOL:
    return np.asarray(flags.fill_null(False))
