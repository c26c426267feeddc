"""`dedup remedies`: the sections of REMEDIES.md, which comes with the package."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files

from dedup.errors import ConfigError

_HEADING = re.compile(r"^## (\S+)\n", re.M)


@dataclass(frozen=True, slots=True)
class Section:
    """What the page says about one topic: its first line, and all of it."""

    about: str
    text: str


def read_page() -> dict[str, Section]:
    """Return the sections by topic, in the order of the page."""
    _, *parts = _HEADING.split(files("dedup").joinpath("REMEDIES.md").read_text(encoding="utf-8"))
    texts = {topic: text.strip() for topic, text in zip(parts[::2], parts[1::2], strict=True)}
    return {topic: Section(text.partition("\n")[0], text) for topic, text in texts.items()}


def section(page: Mapping[str, Section], topic: str) -> Section:
    """Return the section of a topic.

    Raises
    ------
    ConfigError
        If there is none, naming those that are alike, or all.
    """
    if topic not in page:
        near = difflib.get_close_matches(topic, page)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(page)}."
        raise ConfigError(f"There is no topic {topic!r}; {hint}")
    return page[topic]


def listing(page: Mapping[str, Section]) -> Iterator[str]:
    """Return one line for each topic."""
    width = max(map(len, page))
    return (f"{topic:{width}}  {section.about}" for topic, section in page.items())
