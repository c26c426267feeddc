"""Parse durations and sizes as Spark users write them, and format them for people."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from dedup.errors import ConfigError

MS_PER_UNIT = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_ALIASES = {
    "ms": "millisecond", "s": "second", "sec": "second", "m": "minute", "min": "minute",
    "h": "hour", "hr": "hour", "d": "day", "w": "week",
}  # fmt: skip
_MS = MS_PER_UNIT | {alias: MS_PER_UNIT[unit] for alias, unit in _ALIASES.items()}
#: Units whose length varies, with their greatest length in days.
_CALENDAR_DAYS = {"month": 31, "year": 366}
_TERM = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([a-zA-Z]+)\s*")
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([kmgtp]?)i?b?\s*", re.IGNORECASE)
#: Longer than any pair of timestamps that Spark can hold (years 1 to 9999).
MAX_DURATION_MS = 10_000 * 366 * 86_400_000
#: `took` shows durations from here on in whole seconds.
_EXACT_MS = 100_000


def duration_ms(value: str | timedelta, *, option: str) -> int:
    """Return a duration in whole milliseconds.

    Text is a sequence of ``number unit`` terms as in Spark's day-time intervals. Months and years
    are rejected, because their length varies.

    Raises ConfigError, with the name of the option, if the text cannot be parsed, or the duration
    is negative, finer than a millisecond, or longer than ten thousand years.

    Examples
    --------
    >>> duration_ms("1 day 12 hours", option="horizon")
    129600000
    """
    if isinstance(value, timedelta):
        micros = value // timedelta(microseconds=1)
        if micros % 1000:
            raise ConfigError(f"{option}={value!r} is finer than a millisecond; round it.")
        total_ms = micros // 1000
    elif isinstance(value, str):
        total_ms = _parse(value, option)
    else:
        raise ConfigError(
            f"{option}={value!r} is not a duration; give text such as '7 days' or a timedelta."
        )
    if not 0 <= total_ms <= MAX_DURATION_MS:
        raise ConfigError(f"{option}={value!r} must be between 0 and ten thousand years.")
    return total_ms


def _parse(text: str, option: str) -> int:
    position = 0
    total_ms = Fraction(0)
    body = re.sub(r"^\s*interval\s+", "", text, flags=re.IGNORECASE)
    while position < len(body):
        term = _TERM.match(body, position)
        unit = term.group(2).lower() if term else ""
        unit_ms = _MS.get(unit) or _MS.get(unit.removesuffix("s"))
        if term is not None and unit.rstrip("s") in _CALENDAR_DAYS:
            days = Fraction(term.group(1)) * _CALENDAR_DAYS[unit.rstrip("s")]
            raise ConfigError(
                f"{option}={text!r} has no fixed length, because months and years vary; "
                f"give days, such as '{round(days)} days'."
            )
        if term is None or unit_ms is None:
            raise ConfigError(
                f"{option}={text!r} is not a duration; write it as Spark does, for example "
                f"'7 days' or '1 hour 30 minutes' (units: {', '.join(MS_PER_UNIT)})."
            )
        total_ms += Fraction(term.group(1)) * unit_ms
        position = term.end()
    if not body.strip():
        raise ConfigError(f"{option}={text!r} is empty; give a duration such as '7 days'.")
    if total_ms.denominator != 1:
        raise ConfigError(f"{option}={text!r} is finer than a millisecond; round it.")
    return int(total_ms)


def format_ms(duration: int) -> str:
    """Return the duration in its largest whole unit, e.g. ``"36 hours"``.

    >>> format_ms(129600000)
    '36 hours'
    """
    for unit, unit_ms in reversed(MS_PER_UNIT.items()):
        if duration and duration % unit_ms == 0:
            count = duration // unit_ms
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{duration} milliseconds"


def span(duration_ms: int | None) -> str:
    """Return the duration to the second, e.g. ``1d 02:03:04``, or a dash for None."""
    if duration_ms is None:
        return "-"
    seconds = abs(duration_ms) // 1000
    days, rest = divmod(seconds, 86_400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return ("-" if duration_ms < 0 else "") + (f"{days}d " if days else "") + clock


def took(duration_ms: float | None) -> str:
    """Return a duration as text: ``0.81 s`` below 100 s, ``00:02:03`` above."""
    if duration_ms is None:
        return "-"
    if duration_ms >= _EXACT_MS:
        return span(round(duration_ms))
    seconds = duration_ms / 1000
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"


def iso(time_ms: int | None) -> str | None:
    """Return a UTC time as ISO 8601 text to the second, or as milliseconds outside years 1-9999."""
    if time_ms is None:
        return None
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms} ms"
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def counted(count: int, noun: str) -> str:
    """Return the count with its noun in the right form, e.g. ``1 record`` or ``2 records``."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


def cell(value: object) -> str:
    """Return a value as text: a dash for None, and whole numbers with separators."""
    if value is None:
        return "-"
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_number else str(value)


def size(count: int | None) -> str:
    """Return a number of bytes in a suitable unit, e.g. ``1.5 MiB``, or a dash for None."""
    if count is None:
        return "-"
    if count < 1024:
        return f"{count} B"
    power = min(3, (count.bit_length() - 1) // 10)
    return f"{count / 1024**power:.1f} {'KMG'[power - 1]}iB"


def size_bytes(text: str | None, *, unit: str = "b") -> int | None:
    """Return the number of bytes of a size such as Spark's ``"4g"``, or None if it is malformed.

    If the text is a bare number, its unit is ``unit``: ``"b"``, ``"m"``, ...

    Examples
    --------
    >>> size_bytes("4g"), size_bytes("512", unit="m")
    (4294967296, 536870912)
    """
    match = _SIZE.fullmatch(text) if text is not None else None
    if match is None:
        return None
    letter = (match[2] or unit).lower()
    return int(Fraction(match[1]) * 1024 ** "bkmgtp".index(letter))
