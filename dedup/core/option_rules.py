"""What an option may be: each rule once, told in the words of a program or of a command.

`option` is the name as it was given: ``late`` of a program, ``--late`` of a command.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TypeVar

from dedup.core.duration import duration_ms
from dedup.core.policy import MAX_BUCKETS, MIN_FPR
from dedup.errors import ConfigError

_T = TypeVar("_T", bound=str)


def refused(option: str, value: object, rule: str) -> ConfigError:
    """Return the error that a value breaks a rule."""
    shown = f"{option} {value}" if option.startswith("-") else f"{option}={value!r}"
    return ConfigError(f"{shown} must {rule}")


def choice(option: str, value: object, choices: tuple[_T, ...]) -> _T:
    """Return the value, which is one of the choices; else ConfigError."""
    for known in choices:
        if value == known:
            return known
    names = choices if option.startswith("-") else map(repr, choices)
    raise refused(option, value, f"be one of {', '.join(names)}.")


def check_least(option: str, value: int | None, least: int = 1) -> None:
    """Refuse a number that is too small."""
    if value is not None and value < least:
        raise refused(option, value, f"be at least {least}.")


def check_buckets(option: str, value: int) -> None:
    """Refuse a number of buckets per horizon that no lookup should have to ask."""
    if not 1 <= value <= MAX_BUCKETS:
        raise refused(option, value, f"be 1 to {MAX_BUCKETS}; 8 is best.")


def check_fpr(option: str, value: float) -> None:
    """Refuse what is no rate of false positives."""
    if isinstance(value, (int, float)) and MIN_FPR <= value < 1:
        return
    rule = f"lie between 0 and 1, from {MIN_FPR:g} on; 0.01 is usual, and a false positive only "
    raise refused(option, value, f"{rule}costs a read.")


def shuffle_partitions(text: str | None) -> int | None:
    """Return the number in ``spark.sql.shuffle.partitions``, or None if Spark chooses it.

    Databricks takes ``auto``.
    """
    text = text or ""
    return int(text) or None if re.fullmatch(r"\s*\d{1,9}\s*", text) else None


def positive_ms(option: str, text: str | timedelta) -> int:
    """Return the milliseconds of a duration that is longer than none."""
    found_ms = duration_ms(text, option=option)
    if found_ms < 1:
        raise refused(option, text, "be at least a millisecond.")
    return found_ms
