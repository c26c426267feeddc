"""Options that sinks have in common, as ``writeStream.option`` takes them."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence

from dedup.catalog.uri import scheme_of
from dedup.core.option import Option, switch, text, whole
from dedup.errors import ConfigError

#: Spark's own, which say nothing about the sink.
_OF_SPARK = ("path", "queryname")
_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}")


#: A name that becomes part of markers, folders and transactional IDs.
NAME = text(
    r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}",
    "be 1 to 100 letters, digits, dots, hyphens or underscores: it becomes part of markers.",
)
ACCEPT = (
    Option(
        "accept.difference", whole(0),
        help="number of a micro-batch that may give other rows than before",
    ),
    Option(
        "accept.lost.markers", switch(), False,
        help="continue without markers, see `dedup remedies sink-markers`",
    ),
)  # fmt: skip


def named(name: str) -> Option:
    """Return the option `name` of a sink, with its default."""
    help_text = "name of the sink within its query; two sinks need two names"
    return Option("name", NAME, name, help_text)


def known_options(
    given: Mapping[str, str], own: Sequence[str], *, format_name: str, prefix: str | None = None
) -> dict[str, str]:
    """Return the options that a user gave, by their names in lower case.

    Parameters
    ----------
    given : mapping of str to str
    own : sequence of str
        The options that there are, in lower case.
    format_name : str
        For the error.
    prefix : str, optional
        How the names of others begin, which are looked at elsewhere.

    Raises
    ------
    ConfigError
        If one is unknown.
    """
    options = {name.lower(): value.strip() for name, value in given.items()}
    for name in options:
        if name in (*own, *_OF_SPARK) or (prefix is not None and name.startswith(prefix)):
            continue
        near = difflib.get_close_matches(name, own, n=1)
        all_names = ", ".join([*own, *([] if prefix is None else [f"{prefix}*"])])
        hint = f"Did you mean {near[0]}?" if near else f"There are {all_names}."
        raise ConfigError(f"The option {name} is unknown to format {format_name}. {hint}")
    return options


def check_name(option: str, text: str, part_of: str) -> None:
    """Refuse a name that cannot become part of others."""
    if not _NAME.fullmatch(text):
        raise ConfigError(
            f"Option {option}={text!r} must be 1 to 100 letters, digits, dots, hyphens or "
            f"underscores: it becomes part of {part_of}."
        )


def folder(options: Mapping[str, str], name: str) -> str:
    """Return where a sink of this name keeps what driver and executors share.

    Raises
    ------
    ConfigError
        If no option tells.
    """
    given = {option.lower(): value.strip() for option, value in options.items()}
    if given.get("staging"):
        return f"{_absolute(given['staging'])}/{name}"
    checkpoint = given.get("checkpointlocation")
    if not checkpoint:
        raise ConfigError(
            "The sink needs a folder that driver and executors share, for slices that wait: give "
            "the option checkpointLocation, below which it makes one, or the option staging."
        )
    return f"{located(checkpoint)}/dedup-sinks/{name}"


def located(checkpoint: str) -> str:
    """Return a checkpoint's location as pyarrow takes it, the same in every process."""
    same = re.sub(r"^s3[an]://", "s3://", checkpoint)
    return _absolute(re.sub(r"^file:(//localhost)?/+", "/", same))


def _absolute(where: str) -> str:
    return where.rstrip("/") if scheme_of(where) else os.path.abspath(where)


def batch_number(option: str, options: Mapping[str, str]) -> int | None:
    """Return the number of a micro-batch, None where the option is not given."""
    text = options.get(option)
    if text is None:
        return None
    if not text.isdigit():
        raise ConfigError(f"Option {option}={text!r} must be the number of the micro-batch.")
    return int(text)


def flag(option: str, options: Mapping[str, str]) -> bool:
    """Return whether an option is set."""
    text = options.get(option, "false").lower()
    if text not in ("true", "false"):
        raise ConfigError(f"Option {option}={options[option]!r} must be true or false.")
    return text == "true"
