"""Converts the texts of single values in CSV and JSON, exactly or not at all.

FLOAT and DOUBLE round. Every other type takes only a value that it holds exactly. The page
``dedup/cli/VALUES.md`` says what each type keeps and rejects. `dedup.sources.files.text_columns`
gives the same values for whole columns of text.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import ROUND_DOWN, Context, Decimal
from functools import cached_property
from json.encoder import encode_basestring
from math import isinf
from struct import Struct
from typing import Any, TypeAlias

import pyarrow as pa

from dedup.sources.files.time_pattern import TimePattern, microseconds, zone_of

#: Function that returns the value of a text, or raises `Unfit`.
FromText: TypeAlias = Callable[[str], Any]
#: Function that returns a column's value for a value of JSON, or raises `Unfit`.
FromJson: TypeAlias = Callable[[Any], Any]

#: Matches numbers that can be read in bounded time. No DECIMAL has as many digits.
_NUMBER = re.compile(r"[+-]?(?=\.?[0-9])[0-9]{0,500}(?:\.[0-9]{0,500})?(?:[eE][+-]?0*[0-9]{1,2})?")
#: Matches numbers with commas between groups of three digits.
_GROUPED = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:,[0-9]{3}){1,20}(?:\.[0-9]{0,500})?")
#: Matches numbers for types that round.
_ROUNDED = re.compile(r"[+-]?(?=\.?[0-9])[0-9]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
_DAY = r"\+?([0-9]{4,7})-([0-9]{1,2})-([0-9]{1,2})"
_DATE = re.compile(_DAY)
#: Matches a day, maybe with midnight as its time.
_MIDNIGHT = re.compile(rf"{_DAY}(?:[T ]00:00(?::00(?:\.0*)?)?Z?)?")
_TIME = re.compile(
    rf"{_DAY}(?:[T ]([0-9]{{1,2}}):([0-9]{{1,2}})(?::([0-9]{{1,2}})(?:\.([0-9]*))?)? *(\S.*)?)?"
)
_DIGITS = re.compile(r"-?[0-9]{1,19}")
#: Matches times that Python reads in the same way, but faster.
_PLAIN_TIME = re.compile(
    "[0-9]{4}-[0-9]{2}-[0-9]{2}[T ](?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}"
    r"(?:\.[0-9]{3}(?:[0-9]{3})?)?(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])?"
)
_SECONDS = re.compile(r"-?[0-9]{1,12}")
#: Blanks that may surround a date, a time, or a number that rounds.
_BLANKS = " \t\n\x0b\f\r"
_ENOUGH_DIGITS = Context(prec=1200)
_SINGLE = Struct("f")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ROUNDED_WORDS = {
    "NaN": float("nan"),
    **dict.fromkeys(("Infinity", "+Infinity"), float("inf")),
    "-Infinity": float("-inf"),
}
_JSON_WORDS = _ROUNDED_WORDS | {"+INF": float("inf"), "-INF": float("-inf")}


class Unfit(ValueError):
    """The type of a column does not hold a value exactly."""


class Lacks(Unfit):
    """An object lacks a field that the schema needs. The arguments are the path of the field."""


class Number(str):
    """A number of JSON, as it is spelled."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """How dates, times and numbers are spelled in texts.

    `time_zone` holds for times without a zone. The patterns are Java's, and None for ISO 8601.
    `has_groups` says that commas may separate thousands in a DECIMAL.
    """

    time_zone: str = "UTC"
    date: str | None = None
    timestamp: str | None = None
    timestamp_ntz: str | None = None
    nan: str = "NaN"
    positive_inf: str = "Inf"
    negative_inf: str = "-Inf"
    has_groups: bool = True

    @cached_property
    def zone(self) -> tzinfo:
        return zone_of(self.time_zone)

    def pattern(self, kind: pa.DataType) -> TimePattern | None:
        """Return the pattern for a type of dates or times. Raises ValueError for a wrong one."""
        text = self.date
        if not pa.types.is_date(kind):
            text = self.timestamp_ntz if kind.tz is None else self.timestamp
        return None if text is None else TimePattern(text)


def from_text(kind: pa.DataType, spelling: Spelling) -> FromText:
    """Return the function for a column of CSV. Raises TypeError for a type that CSV cannot hold."""
    is_ = pa.types
    if is_.is_string(kind):
        return str
    if is_.is_binary(kind):
        return str.encode
    if is_.is_integer(kind):
        return _integers(kind)
    if is_.is_decimal(kind):
        return _decimals(kind, has_groups=spelling.has_groups)
    if is_.is_floating(kind):
        words = {
            spelling.negative_inf: float("-inf"),
            spelling.positive_inf: float("inf"),
            spelling.nan: float("nan"),
        }
        return _floats(kind, _ROUNDED_WORDS | words)
    if is_.is_boolean(kind):
        return _boolean
    if is_.is_date(kind) or is_.is_timestamp(kind):
        return _times(kind, spelling, _DATE)
    raise TypeError(f"CSV has no {kind}")


def from_json(kind: pa.DataType, spelling: Spelling) -> FromJson:
    """Return the function for a value of JSON. None stays None.

    The function takes what `dedup.sources.files.json_text` parses: str, bool, `Number`, list and
    dict.
    """
    read = _from_json(kind, spelling)
    return lambda value: None if value is None else read(value)


def _from_json(kind: pa.DataType, spelling: Spelling) -> FromJson:
    is_ = pa.types
    if is_.is_string(kind):
        return json_text
    if is_.is_integer(kind):
        return _only(Number, _integers(kind))
    if is_.is_decimal(kind):
        decimal = _decimals(kind, has_groups=False)
        return _by_type({str: lambda text: decimal(text.strip(_BLANKS)), Number: decimal})
    if is_.is_floating(kind):
        return _by_type({str: _word, Number: _double if kind == pa.float64() else _float})
    if is_.is_boolean(kind):
        return _only(bool, lambda value: value)
    if is_.is_date(kind):
        return _only(str, _times(kind, spelling, _MIDNIGHT))
    if is_.is_timestamp(kind):
        times = _times(kind, spelling, _MIDNIGHT)
        return _only(str, times) if kind.tz is None else _by_type({str: times, Number: _instant})
    if is_.is_binary(kind):
        return _only(str, _base64)
    if is_.is_list(kind):
        return _lists(kind, spelling)
    if is_.is_map(kind):
        return _maps(kind, spelling)
    if is_.is_struct(kind):
        return structs(kind, spelling)
    raise TypeError(f"JSON has no {kind}")


def structs(kind: pa.StructType, spelling: Spelling) -> FromJson:
    """Return the function for an object. Its `Unfit` names the field that does not fit."""
    if len({f.name for f in kind}) < kind.num_fields:
        raise TypeError(f"JSON has no object with two fields of one name: {kind}")
    fields = [(f.name, f.nullable, _from_json(f.type, spelling)) for f in kind]

    def read(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Unfit
        record = {}
        for name, nullable, convert in fields:
            one = value.get(name)
            if one is not None:
                try:
                    one = convert(one)
                except Lacks as error:
                    raise Lacks(name, *error.args) from None
                except Unfit:
                    raise Unfit(name) from None
            elif not nullable:
                raise Lacks(name)
            record[name] = one
        return record

    return read


def _lists(kind: pa.ListType, spelling: Spelling) -> FromJson:
    convert, nullable = from_json(kind.value_type, spelling), kind.value_field.nullable

    def read(value: Any) -> list[Any]:
        if type(value) is not list or (not nullable and None in value):
            raise Unfit
        return [convert(one) for one in value]

    return read


def _maps(kind: pa.MapType, spelling: Spelling) -> FromJson:
    if not pa.types.is_string(kind.key_type):
        raise TypeError(f"JSON has no map with keys that are {kind.key_type}")
    convert, nullable = from_json(kind.item_type, spelling), kind.item_field.nullable

    def read(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not dict or (not nullable and None in value.values()):
            raise Unfit
        return [(key, convert(one)) for key, one in value.items()]

    return read


def _only(kind: type, read: Callable[[Any], Any]) -> FromJson:
    def checked(value: Any) -> Any:
        if type(value) is not kind:
            raise Unfit
        return read(value)

    return checked


def _by_type(reads: dict[type, Callable[[Any], Any]]) -> FromJson:
    def checked(value: Any) -> Any:
        read = reads.get(type(value))
        if read is None:
            raise Unfit
        return read(value)

    return checked


def _instant(seconds: str) -> datetime:
    """Read a whole number of seconds since 1970."""
    if not _SECONDS.fullmatch(seconds):
        raise Unfit
    try:
        return _EPOCH + timedelta(seconds=int(seconds))
    except OverflowError:
        raise Unfit from None


def _integers(kind: pa.DataType) -> FromText:
    limit = 1 << (kind.bit_width - 1)
    least = -limit

    def read(text: str) -> int:
        if _DIGITS.fullmatch(text):
            whole = int(text)
        else:
            number = _decimal(text)
            whole = int(number)
            if whole != number:
                raise Unfit
        if not least <= whole < limit:
            raise Unfit
        return whole

    return read


def _decimals(kind: pa.Decimal128Type, *, has_groups: bool) -> FromText:
    unit, limit = Decimal(1).scaleb(-kind.scale), Decimal(10) ** (kind.precision - kind.scale)

    def read(text: str) -> Decimal:
        if has_groups and _GROUPED.fullmatch(text):
            text = text.replace(",", "")
        number = _decimal(text)
        rounded = number.quantize(unit, ROUND_DOWN, _ENOUGH_DIGITS)
        if rounded != number or abs(number) >= limit:
            raise Unfit
        return rounded

    return read


def _decimal(text: str) -> Decimal:
    if not _NUMBER.fullmatch(text):
        raise Unfit
    return Decimal(text)


def _floats(kind: pa.DataType, words: dict[str, float]) -> FromText:
    rounded = _double if kind == pa.float64() else _float

    def read(text: str) -> float:
        if text in words:
            return words[text]
        if not _ROUNDED.fullmatch(text := text.strip(_BLANKS)):
            raise Unfit
        return rounded(text)

    return read


def _double(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise Unfit
    return number


def _float(text: str) -> float:
    number = _double(text)
    try:
        (single,) = _SINGLE.unpack(_SINGLE.pack(number))
        other = 2 * number - single
        is_tie = single != number and _SINGLE.unpack(_SINGLE.pack(other)) == (other,)
    except OverflowError:
        is_tie = True
    if is_tie:
        # Rounding to DOUBLE has made two values of FLOAT equally near.
        single = pa.scalar(text).cast(pa.float32()).as_py()
        if isinf(single):
            raise Unfit
    return float(single)


def _word(text: str) -> float:
    if text not in _JSON_WORDS:
        raise Unfit
    return _JSON_WORDS[text]


def _boolean(text: str) -> bool:
    if (lowered := text.lower()) not in ("true", "false"):
        raise Unfit
    return lowered == "true"


def _base64(text: str) -> bytes:
    plain = "".join(text.split())
    try:
        decoded = b64decode(plain, validate=True)
    except (binascii.Error, ValueError):
        raise Unfit from None
    # Surplus bits would be lost, and two texts would have one value.
    if b64encode(decoded).decode() != plain:
        raise Unfit
    return decoded


def _times(kind: pa.DataType, spelling: Spelling, date_form: re.Pattern[str]) -> FromText:
    pattern, zone = spelling.pattern(kind), spelling.zone
    is_date = pa.types.is_date(kind)

    def read(text: str) -> date | datetime:
        try:
            if pattern is not None:
                local, zone_info = pattern.parsed(text)
                moment = local.replace(tzinfo=zone_info)
            elif is_date:
                return _day(date_form, text)
            else:
                moment = _moment(text)
            if is_date:
                if moment.time() != time():
                    raise Unfit
                return moment.date()
            if kind.tz is None:
                if moment.tzinfo is not None:
                    raise Unfit
                return moment
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=zone)
            return moment if moment.tzinfo is UTC else moment.astimezone(UTC)
        except (ValueError, OverflowError):
            raise Unfit from None

    return read


def _day(form: re.Pattern[str], text: str) -> date:
    match = form.fullmatch(text.strip(_BLANKS))
    if match is None:
        raise Unfit
    return date(*map(int, match.groups()))


def _moment(text: str) -> datetime:
    if _PLAIN_TIME.fullmatch(text):
        return datetime.fromisoformat(text)
    match = _TIME.fullmatch(text.strip(_BLANKS))
    if match is None:
        raise Unfit
    *parts, fraction, zone = match.groups()
    year, month, day, hour, minute, second = (int(part or 0) for part in parts)
    zone_info = None if zone is None else zone_of(zone)
    return datetime(year, month, day, hour, minute, second, microseconds(fraction), zone_info)


def json_text(value: Any) -> str:
    """Return a value of JSON as text: a text itself, anything else without blanks, as spelled."""
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case Number():
            return value
        case str():
            return encode_basestring(value)
        case list():
            return f"[{','.join(map(_json, value))}]"
    return f"{{{','.join(f'{encode_basestring(key)}:{_json(one)}' for key, one in value.items())}}}"
