"""`dedup remedies`: prints sections of REMEDIES.md, which is part of the package."""

from __future__ import annotations

import difflib
import re
from importlib.resources import files

from dedup.cli.commands import Done
from dedup.cli.failures import OK
from dedup.cli.flags import RemediesFlags
from dedup.errors import ConfigError

_HEADING = re.compile(r"^## (\S+)\n", re.M)


def remedies(flags: RemediesFlags) -> Done:
    page, topic = read_page(), flags.topic
    about = {name: text.partition("\n")[0] for name, text in page.items()}
    if topic is None:
        width = max(map(len, page))
        lines = [f"{name:{width}}  {first_line}" for name, first_line in about.items()]
        return Done(OK, {"topics": about}, lines)
    if topic not in page:
        near = difflib.get_close_matches(topic, page)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(page)}."
        raise ConfigError(f"There is no topic {topic!r}; {hint}")
    text = page[topic]
    return Done(OK, {"topic": topic, "about": about[topic], "text": text}, [text])


def read_page() -> dict[str, str]:
    """Return the text about each topic."""
    _, *parts = _HEADING.split(files("dedup").joinpath("REMEDIES.md").read_text(encoding="utf-8"))
    return {topic: text.strip() for topic, text in zip(parts[::2], parts[1::2], strict=True)}
