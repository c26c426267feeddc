"""Options: a declaration of an option checks its values, reads them from text, and documents it.

An error shows an option's name as the user wrote it, so every check takes that name: ``late`` for
an argument in Python, ``--late`` for a flag, ``Option late`` for an option of a sink.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dedup.errors import ConfigError
from dedup.values.duration import duration_ms, size, size_bytes

#: Default of an option that the user must give.
REQUIRED: Any = object()
#: Options that Spark itself passes to a sink.
_SPARKS_OWN = {"path", "queryname", "checkpointlocation"}


def refused(name: str, value: object, rule: str) -> ConfigError:
    """Return the error "NAME=VALUE must RULE", where a rule is such as ``"be at least 1."``."""
    shown = f"{name} {value}" if name.startswith("-") else f"{name}={value!r}"
    return ConfigError(f"{shown} must {rule}")


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of an option's values."""

    #: Returns the value to use, e.g. milliseconds for a duration, or raises ConfigError. The
    #: arguments are a value and the option's name for errors.
    check: Callable[[Any, str], Any]
    #: Turns a text into a value for `check`, or raises ValueError.
    parse: Callable[[str], object] = str.strip
    #: Placeholder for the value in help screens.
    metavar: str = "TEXT"
    #: Type of the value that the command line passes.
    takes: type = str


def fits(test: Callable[[Any], bool], rule: str) -> Callable[[Any, str], Any]:
    """Return a check that accepts values that meet `test`. `rule` is for the error message."""

    def check(value: Any, name: str) -> Any:
        if test(value):
            return value
        raise refused(name, value, rule)

    return check


def text(pattern: str = "(?s).+", rule: str = "be text that is not empty.") -> Kind:
    """Return a `Kind` for text that matches a pattern from end to end."""
    return Kind(fits(lambda v: isinstance(v, str) and bool(re.fullmatch(pattern, v)), rule))


def choice(*names: str) -> Kind:
    """Return a `Kind` for one of several names. Upper and lower case are equal in text."""
    check = fits(lambda value: value in names, f"be one of {', '.join(names)}.")
    return Kind(check, lambda raw: raw.strip().lower(), "|".join(names))


def whole(least: int = 1, most: int | None = None, hint: str = "") -> Kind:
    """Return a `Kind` for whole numbers from `least` to `most`."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    return number(lambda n: n >= least and (most is None or n <= most), f"{bounds}{hint}", int)


def number(test: Callable[[float], bool], bounds: str, takes: type = float) -> Kind:
    """Return a `Kind` for numbers that meet `test`. `bounds` describes `test` in the error."""
    types, noun = ((int,), "whole number") if takes is int else ((int, float), "number")
    rule = f"be a {noun} {bounds}."
    meets = fits(lambda v: isinstance(v, types) and not isinstance(v, bool) and test(v), rule)
    return Kind(meets, takes, "N" if takes is int else "X", takes)


def switch() -> Kind:
    """Return a `Kind` for booleans, which text gives as ``true`` or ``false`` in any case."""
    words = {"true": True, "false": False}
    check = fits(lambda value: isinstance(value, bool), "be true or false.")
    return Kind(check, lambda raw: words.get(raw.strip().lower(), raw), "true|false", bool)


def duration(least_ms: int = 0) -> Kind:
    """Return a `Kind` for durations. Its check turns text or timedelta into milliseconds."""

    def check(value: Any, name: str) -> int:
        length_ms = duration_ms(value, option=name)
        if length_ms < least_ms:
            raise refused(name, value, "be at least a millisecond.")
        return length_ms

    return Kind(check, metavar="DURATION")


def nbytes(least: int = 1, most: int | None = None) -> Kind:
    """Return a `Kind` for numbers of bytes, or text such as ``64 KiB`` (64 KB is the same)."""
    bounds = f"of at least {size(least)}" if most is None else f"from {size(least)} to {size(most)}"

    def check(value: Any, name: str) -> int:
        count = size_bytes(value) if isinstance(value, str) else value
        if not isinstance(count, int) or isinstance(count, bool):
            count = -1
        if count < least or (most is not None and count > most):
            raise refused(name, value, f"be a number of bytes, or text such as '64 KiB', {bounds}.")
        return count

    return Kind(check, metavar="SIZE")


def words(pattern: str, rule: str) -> Kind:
    """Return a `Kind` for one or several words that match a pattern. The value is a tuple."""
    word = text(pattern, rule)

    def check(value: Any, name: str) -> tuple[str, ...]:
        several = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else value
        return tuple(word.check(each, name) for each in several)

    return Kind(check, metavar="WORD")


def names() -> Kind:
    """Return a `Kind` for tuples of distinct names, which commas separate in text."""

    def parse(raw: str) -> tuple[str, ...]:
        return tuple(each.strip() for each in raw.split(",") if each.strip())

    check = fits(lambda value: len(set(value)) == len(value), "name each column only once.")
    return Kind(check, parse, "NAME,...")


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of one option."""

    #: Name of the argument in Python, or of the option in ``writeStream.option``.
    name: str
    kind: Kind
    #: `REQUIRED` if the user must give a value. An option with the default None accepts None.
    default: Any = None
    #: One line for help screens. For a required option the line says what to give.
    help: str = ""
    #: Placeholder for the value in help screens, by default the metavar of `kind`.
    metavar: str = ""
    #: Flag on the command line, by default ``--`` and the name, with hyphens.
    flag: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "metavar", self.metavar or self.kind.metavar)
        object.__setattr__(self, "flag", self.flag or "--" + re.sub("[._]", "-", self.name))

    @property
    def key(self) -> str:
        """The name as an identifier: ``staging_schema`` for ``staging.schema``."""
        return re.sub(r"\W", "_", self.name).lower()

    def check(self, value: Any, name: str = "") -> Any:
        """Return the value to use for a typed value, or raise ConfigError.

        `name` is how the error shows the option, by default as its name in Python.
        """
        if value is None and self.default is None:
            return None
        return self.kind.check(value, name or self.name)

    def check_flag(self, value: Any) -> Any:
        """Check a flag's value as `check` does. None means that the flag was not given."""
        return None if value is None else self.kind.check(value, self.flag)

    def read(self, raw: str, name: str = "") -> Any:
        """Return the value that a text stands for, or raise ConfigError as `check` does."""
        try:
            value = self.kind.parse(raw)
        except ValueError:
            value = raw  # the check names the rule
        return self.kind.check(value, name or self.name)


def by_name(*options: Option) -> dict[str, Option]:
    return {option.name: option for option in options}


def read_options(
    raw_options: Mapping[str, str], options: Iterable[Option], *, owner: str, prefix: str = ""
) -> dict[str, Any]:
    """Return the value of every option by `Option.key`, from the texts that a user gave.

    Names may be in upper or lower case, and a blank text counts as not given. If ``prefix`` is not
    empty, the function ignores names that begin with the prefix, because other code reads them.
    Errors name ``owner``.
    """
    known = {option.name.lower(): option for option in options}
    texts = {name.lower(): given_text.strip() for name, given_text in raw_options.items()}
    for name in texts:
        if name in known or name in _SPARKS_OWN or (prefix and name.startswith(prefix)):
            continue
        near = difflib.get_close_matches(name, known, n=1)
        every = [option.name for option in known.values()] + ([f"{prefix}*"] if prefix else [])
        hint = f"Did you mean {known[near[0]].name}?" if near else f"There are {', '.join(every)}."
        raise ConfigError(f"The option {name} is unknown to {owner}. {hint}")
    values = {}
    for name, option in known.items():
        if not texts.get(name) and option.default is REQUIRED:
            raise ConfigError(f"The option {option.name} is missing: {option.help}")
        shown = f"Option {option.name}"
        values[option.key] = option.read(texts[name], shown) if texts.get(name) else option.default
    return values
