"""The flags of `dedup prepare`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dedup.cli.ending import Done
from dedup.cli.failures import OK
from dedup.cli.flags import TalkingFlags, command, switch
from dedup.cli.progress import reporter


@dataclass(frozen=True, kw_only=True)
class PrepareFlags(TalkingFlags):
    """What can be given to `dedup prepare`."""

    again: Annotated[bool, switch("Also where it was done before.", "--again")] = False


@command(PrepareFlags, "dedup prepare")
def prepare(flags: PrepareFlags) -> Done:
    """Make later starts of Spark on this machine quicker: keep its Java classes in a file."""
    from dedup.cli.prepare import work

    talk = reporter(quiet=flags.quiet)
    try:
        body = work.prepare(again=flags.again, talk=talk)
    finally:
        talk.close()
    return Done(OK, body, [] if flags.quiet else work.lines(body))
