"""The flags of `dedup compact`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dedup.cli.ending import Done
from dedup.cli.failures import OK
from dedup.cli.flags import Flags, argument, command, option


@dataclass(frozen=True, kw_only=True)
class CompactFlags(Flags):
    """What can be given to `dedup compact`."""

    output: Annotated[str, argument("OUTPUT", "Folder with batch=N folders, on a local disk.")]
    target_file_size: Annotated[str, option("SIZE", "Merge files up to about this.")] = "128MB"
    older_than: Annotated[str, option("TIME", "Leave micro-batches alone that are younger.")] = (
        "1 hour"
    )
    keep_replaced: Annotated[
        str, option("TIME", "How long replaced files stay, hidden, for readers at work.")
    ] = "1 hour"


@command(CompactFlags, "dedup compact unique")
def compact(flags: CompactFlags) -> Done:
    """Merge small files of each micro-batch, while others read the output and a query writes it.

    Rows get into files with new names: a reader that remembers which files it has read (Spark's
    readStream over the output, Auto Loader, Snowpipe) reads them again. Do not compact what such a
    reader still looks at.

    Parquet and JSON lines. Replaced files stay in _compaction until a later run removes them.
    """
    from dedup import tools
    from dedup.cli.compact.screen import compacted_lines

    body = tools.compact(
        flags.output,
        target_file_size=flags.target_file_size,
        older_than=flags.older_than,
        keep_replaced=flags.keep_replaced,
    ).to_json()
    return Done(OK, body, compacted_lines(body))
