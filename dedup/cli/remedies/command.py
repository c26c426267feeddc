"""The flag of `dedup remedies`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dedup.cli.ending import Done
from dedup.cli.failures import OK
from dedup.cli.flags import Flags, argument, command
from dedup.cli.remedies.work import listing, read_page, section


@dataclass(frozen=True, kw_only=True)
class RemediesFlags(Flags):
    """What can be given to `dedup remedies`."""

    topic: Annotated[str | None, argument("[TOPIC]", "As the error's last line names it.")] = None


@command(RemediesFlags, "dedup remedies late")
def remedies(flags: RemediesFlags) -> Done:
    """Say what to do about an error; without TOPIC, list what there is."""
    page = read_page()
    if flags.topic is None:
        topics = {name: section.about for name, section in page.items()}
        return Done(OK, {"topics": topics}, listing(page))
    found = section(page, flags.topic)
    body = {"topic": flags.topic, "about": found.about, "text": found.text}
    return Done(OK, body, [found.text])
