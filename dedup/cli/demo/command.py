"""The flags of `dedup demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dedup.cli.ending import Done
from dedup.cli.failures import FAILED, INTERRUPTED, OK
from dedup.cli.flags import TalkingFlags, command, option
from dedup.cli.progress import reporter
from dedup.cli.stop import stop_on_signals
from dedup.cli.terminal import Terminal


@dataclass(frozen=True, kw_only=True)
class DemoFlags(TalkingFlags):
    """What can be given to `dedup demo`."""

    folder: Annotated[Path | None, option("DIR", "Keep everything here. Default: nowhere.")] = None
    events: Annotated[int, option("N", "Events before copies.")] = 400_000
    seed: Annotated[int, option("N", "Same seed, same events.")] = 7


@command(DemoFlags, "dedup demo --folder demo")
def demo(flags: DemoFlags) -> Done:
    """Make up a stream with known duplicates, de-duplicate it, and check every figure."""
    from dedup.cli.demo import work

    talk = reporter(quiet=flags.quiet)
    try:
        with stop_on_signals() as stop:
            body = work.demo(
                flags.folder,
                events=flags.events,
                seed=flags.seed,
                talk=talk,
                show=None if flags.quiet or flags.as_json else Terminal(),
                stop=stop,
            )
    finally:
        talk.close()
    code = {"ok": OK, "interrupted": INTERRUPTED}.get(body["status"], FAILED)
    return Done(code, body)
