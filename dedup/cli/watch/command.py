"""The flags of `dedup watch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dedup.cli.ending import Done
from dedup.cli.failures import OK
from dedup.cli.flags import Flags, argument, command, option, switch
from dedup.cli.stop import stop_on_signals


@dataclass(frozen=True, kw_only=True)
class WatchFlags(Flags):
    """What can be given to `dedup watch`."""

    where: Annotated[
        str,
        argument(
            "DIR|URL",
            "DedupListener(log=DIR), the OUTPUT of `dedup run`, or where "
            "DedupListener(prometheus_port=...) serves.",
        ),
    ]
    query: Annotated[str | None, option("ID", "Which query, by ID or name.")] = None
    once: Annotated[bool, switch("Look once and leave.", "--once")] = False
    every: Annotated[float, option("SECONDS", "How often to look.", least=0.1, most=86_400)] = 2.0


@command(WatchFlags, "dedup watch unique")
def watch(flags: WatchFlags) -> Done:
    """Watch a running query: whether its GC watermark keeps up, and what holds it; q leaves.

    A larger terminal shows more: curves and a table of the last micro-batches.

    With --once or --json the exit code is the verdict:
    0 OK, 10 LAGGING, 11 STALLED, 12 STOPPED, 13 REWOUND, 14 LATE, 15 FUTURE.
    """
    from dedup.cli.watch import work

    look = work.looker(flags.where, flags.query)
    if flags.once or flags.as_json:
        return Done(*work.once(look, as_json=flags.as_json))
    with stop_on_signals(tidy=True) as stop:
        work.follow(look, stop, every_s=flags.every, where=flags.where)
    return Done(OK, {})
