"""`dedup remedies`: prints sections of REMEDIES.md, which is part of the package."""

from __future__ import annotations

import difflib
import re
from importlib.resources import files
from typing import NamedTuple

from dedup.cli.commands import Done
from dedup.cli.failures import OK
from dedup.cli.flags import RemediesFlags
from dedup.errors import ConfigError

_HEADING = re.compile(r"^## (\S+)\n", re.M)


class Section(NamedTuple):
    """The text of REMEDIES.md about one topic, and the first line of the text."""

    about: str
    text: str


def remedies(flags: RemediesFlags) -> Done:
    page, topic = read_page(), flags.topic
    if topic is None:
        width = max(map(len, page))
        lines = [f"{name:{width}}  {section.about}" for name, section in page.items()]
        return Done(OK, {"topics": {name: section.about for name, section in page.items()}}, lines)
    if topic not in page:
        near = difflib.get_close_matches(topic, page)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(page)}."
        raise ConfigError(f"There is no topic {topic!r}; {hint}")
    return Done(OK, {"topic": topic} | page[topic]._asdict(), [page[topic].text])


def read_page() -> dict[str, Section]:
    _, *parts = _HEADING.split(files("dedup").joinpath("REMEDIES.md").read_text(encoding="utf-8"))
    texts = {topic: text.strip() for topic, text in zip(parts[::2], parts[1::2], strict=True)}
    return {topic: Section(text.partition("\n")[0], text) for topic, text in texts.items()}
