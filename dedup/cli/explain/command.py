"""The flags of `dedup explain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dedup.cli import flags as shared
from dedup.cli.ending import Done
from dedup.cli.flags import Flags, argument, command, option


@dataclass(frozen=True, kw_only=True)
class ExplainFlags(Flags):
    """What can be given to `dedup explain`."""

    root: shared.Root
    id: Annotated[list[str], argument("ID...", "Value of each ID column, in order.")]
    checkpoint: Annotated[
        str | None, option("DIR", "Checkpoint of the query: only it knows the newest IDs.")
    ] = None
    query: Annotated[str | None, option("ID", "Which query.")] = None


@command(ExplainFlags)
def explain(flags: ExplainFlags) -> Done:
    """Say when a record ID was let through, where it is kept, and until when it is remembered.

    Exit codes: 0 it is remembered, 5 it is not, 6 the catalog alone cannot tell: without
    --checkpoint the newest IDs are unknown.
    """
    from dedup.cli.catalog.work import open_root, snapshot
    from dedup.cli.explain import work

    root = open_root(flags.root)
    known = None if flags.checkpoint is None else snapshot(root, flags.checkpoint)
    body = work.explain(root, flags.id, known, flags.query)
    return Done(work.exit_code(body), body, work.sentences(body))
