"""Flags of commands: fields of a dataclass, each declared once, and those that commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter, Signature, getdoc
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from typer.models import OptionInfo, ParameterInfo

from dedup.cli.ending import Done, finish
from dedup.errors import ConfigError


def argument(metavar: str, text: str) -> Any:
    """Return how a value that has its place in the command is named and explained."""
    return typer.Argument(metavar=metavar, help=text)


def option(
    metavar: str, text: str, *names: str, least: float | None = None, most: float | None = None
) -> Any:
    """Return how an option is named and explained."""
    return typer.Option(*names, metavar=metavar, help=text, min=least, max=most)


def switch(text: str, *names: str) -> Any:
    """Return how an option without a value is named and explained."""
    return typer.Option(*names, help=text)


ID = option("COL", "ID column; repeat for several.", "--id")
HORIZON = option("DURATION", "How long an ID is remembered: '7 days'.")
Root = Annotated[str, argument("ROOT", "Path or URI of the catalog, or OUTPUT of `dedup run`.")]
OnlyQuery = Annotated[str | None, option("ID", "Only this query.")]
Lateness = Annotated[str | None, option("DURATION", "How far behind is still on time.")]
Stable = Annotated[
    bool,
    switch(
        "All copies of a record have the same timestamp. Fixed for ever.", "--stable-timestamps"
    ),
]
LOG = option("DIR", "Metrics log: DIR of DedupListener(log=DIR), or OUTPUT of `dedup run`.")
Buckets = Annotated[int | None, option("N", "Buckets per horizon.")]
Fpr = Annotated[float | None, option("P", "False positives of the filters.")]
StateBudget = Annotated[int | None, option("N", "Spark state of a shard.")]
TimestampFormat = Annotated[
    str | None,
    option(
        "FMT", "Spark's pattern ('yyyy-MM-dd HH:mm:ss'), or seconds or milliseconds since 1970."
    ),
]
Format = Annotated[str | None, option("FMT", "csv, json, parquet or orc; else by file names.")]
Infer = Annotated[bool, switch("CSV: guess types (default: every column a string).", "--infer")]
ReadOption = Annotated[
    list[str] | None, option("KEY=VALUE", "Option of Spark's reader, such as sep=';'.")
]
OrderFiles = Annotated[
    str,
    option(
        "time|name",
        "Files in the order of their modification times (in one second, of their names), or of "
        "their names alone.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What every command takes."""

    as_json: Annotated[bool, switch("Print one JSON object on stdout.", "--json")] = False


@dataclass(frozen=True, kw_only=True)
class TalkingFlags(Flags):
    """What a command takes that tells of its progress."""

    quiet: Annotated[bool, switch("Say nothing but errors.", "--quiet", "-q")] = False


def pairs(texts: Iterable[str] | None, flag: str) -> dict[str, str]:
    """Return what ``KEY=VALUE`` says, given several times.

    Raises
    ------
    ConfigError
        Where a text is not that; what may be a secret in it is not shown.
    """
    found = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not (key.strip() and equals):
            name = re.match(r"[\w.-]*=?", text)
            raise ConfigError(f"{flag} {name and name[0]} is not KEY=VALUE.")
        found[key.strip()] = value
    return found


_F = TypeVar("_F", bound=Flags)


def command(flags: type[_F], example: str) -> Callable[[Callable[[_F], Done]], Callable[..., None]]:
    """Make a function of flags a command that typer can take, with an example for its help.

    A field's annotation has its type, what `option`, `switch` or `argument` returns, and the panel
    of the help screen, if it is not the first.
    """

    def made(work: Callable[[_F], Done]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            finish(lambda: work(flags(**given)), as_json=given["as_json"])

        paragraphs = (getdoc(work) or "").split("\n\n")  # rich keeps the breaks within them
        run.__doc__ = "\n\n".join(" ".join(text.split()) for text in paragraphs)
        run.__name__ = work.__name__
        run.example = example  # type: ignore[attr-defined]
        run.__signature__ = Signature(list(_parameters(flags)))  # type: ignore[attr-defined]
        return run

    return made


def _parameters(flags: type[Flags]) -> Iterator[Parameter]:
    """What typer reads of a function: a command's own flags first, then those that all have."""
    hints = get_type_hints(flags, include_extras=True)
    for field in sorted(fields(flags), key=lambda field: field.name not in flags.__annotations__):
        kind, shown, *panel = get_args(hints[field.name])
        assert isinstance(shown, ParameterInfo)
        if panel and isinstance(shown, OptionInfo):
            shown = copy(shown)
            (shown.rich_help_panel,) = panel
        default = Parameter.empty if field.default is MISSING else field.default
        yield Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, shown]
        )
