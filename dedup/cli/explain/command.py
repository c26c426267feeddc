"""The flags of `dedup explain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dedup.cli import flags as shared
from dedup.cli.ending import Done
from dedup.cli.failures import CANNOT_TELL, NOT_FOUND, OK
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


@command(ExplainFlags, "dedup explain catalog order-42 --checkpoint checkpoint")
def explain(flags: ExplainFlags) -> Done:
    """Say when a record ID was let through, where it is kept, and until when it is remembered.

    Exit codes: 0 it is remembered, 5 it is not, 6 the catalog alone cannot tell: without
    --checkpoint the newest IDs are unknown.
    """
    from dedup import tools
    from dedup.cli.catalog.work import opened
    from dedup.cli.explain.screen import sentences

    root, snapshot = opened(flags.root, flags.checkpoint)
    found = tools.explain(root, flags.id, snapshot, flags.query)
    code = {"remembered": OK, "not remembered": NOT_FOUND, "cannot tell": CANNOT_TELL}[found.status]
    body = found.to_json()
    return Done(code, body, sentences(body))
