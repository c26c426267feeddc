"""How far a run is, by Spark's log of its files."""

from __future__ import annotations

import json
from pathlib import Path

from dedup.cli.figures import Figures
from dedup.cli.run.progress import Reporter, RunProgress


class Observed(Reporter):
    """Keeps the last progress."""

    total_files = -1

    def update(self, figures: Figures, total_files: int) -> None:
        self.total_files = total_files


class NothingDone:
    """A query before its first micro-batch."""

    lastProgress = None  # noqa: N815


def checkpoint(folder: Path, *batches: list[str], committed: int) -> Path:
    """The logs of a query that has planned these files."""
    for name in ("sources/0", "offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, paths in enumerate(batches):
        lines = (
            json.dumps({"path": f"file://{path}", "timestamp": 1, "batchId": number})
            for path in paths
        )
        (folder / "sources" / "0" / str(number)).write_text("\n".join(["v1", *lines]))
        (folder / "offsets" / str(number)).write_text(f'v1\n{{}}\n{{"logOffset":{number}}}')
        if number <= committed:
            (folder / "commits" / str(number)).write_text("v1\n{}")
    return folder


def test_files_that_were_archived_since_are_not_counted(tmp_path: Path) -> None:
    """With as many of them as new files, the line said 0/0."""
    old, begun, new = ([f"/in/{kind}{n}" for n in range(3)] for kind in ("old", "begun", "new"))
    made = checkpoint(tmp_path, old, begun, committed=0)
    heard = Observed()
    progress = RunProgress(made, [old[0], *begun, *new], frozenset(), heard)
    progress.look(NothingDone())  # type: ignore[arg-type]
    assert heard.total_files == len(begun) + len(new)
