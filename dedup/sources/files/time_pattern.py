"""Reads dates and times by a pattern of Java's ``DateTimeFormatter``, as Spark's options do."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LONGEST_OFFSET = timedelta(hours=18)
_OFFSET = re.compile(r"([+-])([0-9]{1,2})(?::?([0-9]{2})(?::?([0-9]{2}))?)?")
_TOKEN = re.compile(r"([A-Za-z])\1*|'((?:[^']|'')*)'|.", re.DOTALL)
#: Regular expressions of the letters that a pattern may have, by letter and count.
_LETTERS = {
    **dict.fromkeys(("y", "yyy", "yyyy", "u", "uuu", "uuuu"), "(?P<year>[0-9]{4})"),
    **dict.fromkeys(("yy", "uu"), "(?P<short_year>[0-9]{2})"),
    "MMM": f"(?P<month_name>(?i:{'|'.join(_MONTHS)}))",
    "a": "(?P<half>(?i:am|pm))",
    "X": "(?P<zone>Z|[+-][0-9]{2}(?:[0-9]{2})?)",
    "XX": "(?P<zone>Z|[+-][0-9]{4})",
    "XXX": "(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})",
    "x": "(?P<zone>[+-][0-9]{2}(?:[0-9]{2})?)",
    **dict.fromkeys(("xx", "Z", "ZZ", "ZZZ"), "(?P<zone>[+-][0-9]{4})"),
    "xxx": "(?P<zone>[+-][0-9]{2}:[0-9]{2})",
    "VV": "(?P<zone>[A-Za-z0-9/_+:-]+)",
}
for _letter, _name in {"M": "month", "L": "month", "d": "day", "H": "hour", "h": "hour12",
                       "m": "minute", "s": "second"}.items():  # fmt: skip
    _LETTERS |= {_letter: f"(?P<{_name}>[0-9]{{1,2}})", 2 * _letter: f"(?P<{_name}>[0-9]{{2}})"}
_SUPPORTED = "y, u, M, L, d, H, h, m, s, S, a, X, x, Z and VV"


class TimePattern:
    """A pattern such as ``dd/MM/yyyy HH:mm:ss``.

    What the pattern lacks is taken from 1970-01-01 00:00:00. A month's name is English. Raises
    ValueError with the reason if the pattern has a letter that is not supported, or has one twice.
    """

    def __init__(self, pattern: str) -> None:
        expression = ""
        for token in _TOKEN.finditer(pattern):
            text = token[0]
            if token[1] is not None:
                if set(text) == {"S"}:
                    expression += f"(?P<fraction>[0-9]{{1,{len(text)}}})"
                elif text in _LETTERS:
                    expression += _LETTERS[text]
                else:
                    raise ValueError(
                        f"the pattern {pattern!r} has {text}, and only {_SUPPORTED} are supported"
                    )
            elif token[2] is not None:
                expression += re.escape(token[2].replace("''", "'") or "'")
            else:
                expression += {"[": "(?:", "]": ")?"}.get(text) or re.escape(text)
        try:
            self._expression = re.compile(expression)
        except re.error:
            raise ValueError(
                f"the pattern {pattern!r} names a part of the time twice, or has a bracket without "
                "its partner"
            ) from None
        names = self._expression.groupindex
        if ("hour12" in names) != ("half" in names):
            raise ValueError(f"the pattern {pattern!r} needs both h and a, or H instead")

    def parsed(self, text: str) -> tuple[datetime, tzinfo | None]:
        """Return the local time and its zone, or None for the zone if the pattern has none.

        Raises ValueError if the text does not match, or has more than microseconds.
        """
        match = self._expression.fullmatch(text)
        if match is None:
            raise ValueError
        parts = match.groupdict()
        short_year = parts.get("short_year")
        year = int(parts.get("year") or (f"20{short_year}" if short_year else 1970))
        name, half = parts.get("month_name"), parts.get("half")
        month = _MONTHS.index(name.lower()) + 1 if name else int(parts.get("month") or 1)
        hour = int(parts.get("hour") or 0)
        if half or parts.get("hour12"):
            if not half or not parts["hour12"]:
                raise ValueError
            hour = int(parts["hour12"])
            if not 1 <= hour <= 12:
                raise ValueError
            hour = hour % 12 + (12 if half.lower() == "pm" else 0)
        minute, second = int(parts.get("minute") or 0), int(parts.get("second") or 0)
        micros = microseconds(parts.get("fraction"))
        moment = datetime(year, month, int(parts.get("day") or 1), hour, minute, second, micros)
        zone = parts.get("zone")
        return moment, None if zone is None else zone_of(zone)


def microseconds(fraction: str | None) -> int:
    """Return the digits of a fraction of a second as microseconds. Raises ValueError for more."""
    digits = (fraction or "").ljust(6, "0")
    if digits[6:].strip("0"):
        raise ValueError
    return int(digits[:6])


def zone_of(name: str) -> tzinfo:
    """Return the time zone of a name such as ``Z``, ``+02:00``, ``UTC+2`` or ``Europe/Berlin``.

    Raises ValueError for an unknown name.
    """
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    offset = _OFFSET.fullmatch(name.removeprefix("UTC").removeprefix("GMT").removeprefix("UT"))
    if offset is None:
        try:
            return ZoneInfo(name)
        except (OSError, KeyError):  # the name may be that of a folder
            raise ValueError(f"the time zone {name} is not known") from None
    hours, minutes, seconds = (int(part or 0) for part in offset.groups()[1:])
    length = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if length > _LONGEST_OFFSET or minutes > 59 or seconds > 59:
        raise ValueError(f"the time zone {name} is not known")
    return timezone(-length if offset[1] == "-" else length)
