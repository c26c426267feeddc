"""Which input files a checkpoint has taken in: Spark's own log of its file source, read only."""

from __future__ import annotations

import json
from pathlib import Path


def files_taken(checkpoint: Path) -> dict[int, int]:
    """Count the files of each micro-batch that was planned.

    Parameters
    ----------
    checkpoint : Path
        Folder of a query with one file source.

    Returns
    -------
    dict
        Number of the source's batch to number of files; empty for a new checkpoint.

    Notes
    -----
    The log is ``sources/0/<n>``: a version line, then a JSON object a file. Every tenth entry is
    ``<n>.compact`` and repeats all before it. Entries that cannot be read are left out: the
    answer is for progress lines only.
    """
    folder = checkpoint / "sources" / "0"
    taken: dict[str, int] = {}
    if not folder.is_dir():
        return {}
    names = [p for p in folder.iterdir() if p.name.removesuffix(".compact").isdigit()]
    for path in names:
        try:
            lines = path.read_text(encoding="utf-8").split("\n")[1:]
            for line in lines:
                if line:
                    entry = json.loads(line)
                    taken[entry["path"]] = int(entry["batchId"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    counts: dict[int, int] = {}
    for batch in taken.values():
        counts[batch] = counts.get(batch, 0) + 1
    return counts
