"""Faults against the file sink, on a local disk and on S3, again and again, from a seed.

    python -m tests.files_sink.campaign --each 30 --seed 1

Besides the faults of tests/support/sink_campaign.py, the disk is full at chosen steps, and each
start divides the rows among another number of tasks. A plain reader reads the output all the time:
it must see each micro-batch whole or not at all (on S3: no row twice).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path

if __name__ == "__main__":  # before `dedup.errors.faults` reads it
    os.environ["DEDUP_FAULTS"] = tempfile.mkdtemp(prefix="dedup-files-faults-")

from tests.files_sink.folder_sink import FolderSink, seen, seen_locally
from tests.support.object_store import ObjectStore, running_store
from tests.support.sink_campaign import WIDTH, Campaign, Round, Worker, run_campaign

MODES: dict[str, dict[str, str]] = {
    "parquet": {},
    "parquet by day": {"partition_by": "day"},
    "json by day": {"file_format": "json", "partition_by": "day"},
    "csv": {"file_format": "csv", "header": "true"},
    "s3, parquet": {"on": "s3"},
    "s3, parquet by day": {"on": "s3", "partition_by": "day"},
    "s3, json": {"on": "s3", "file_format": "json"},
}
TASK = ("files.task.begin", "files.group", "files.written", "files.task.end")
DRIVER = (
    "files.driver.before", "files.laid.out", "files.planned", "files.published",
    "files.driver.published", "files.driver.after",
)  # fmt: skip
ON_S3 = ("files.uploaded", "files.copied")
POINTS = (*TASK, *DRIVER, *ON_S3)


class FilesCampaign(Campaign):
    """A query into a folder that a reader looks at."""

    def __init__(self, store: ObjectStore, seed: int, before: Counter[str]) -> None:
        super().__init__(seed, MODES, before)
        self._store = store
        self._path = self._checkpoint = Path()
        self._where = ""

    def run(self) -> Round:
        """Run it to its end and judge it."""
        with tempfile.TemporaryDirectory(prefix="dedup-files-") as folder:
            self._checkpoint = Path(folder, "checkpoint")
            self._where = f"{folder}/out"
            if self._is_on_s3:
                self._where = self._store.uri(f"campaign-{self.result.seed}")
            context = get_context("fork")
            ours, theirs = context.Pipe()
            over = context.Event()
            file_format = self.result.options.get("file_format", "parquet")
            reader = context.Process(target=_read_on, args=(self._where, file_format, over, theirs))
            reader.start()
            theirs.close()
            done = self.go()
            over.set()
            looks, wrong, found = ours.recv()
            reader.join()
            self.result.besides["looks of a reader"] += looks
            self.judge(Counter(range(done * WIDTH)), found)
            self.result.seen_wrong = wrong
            return self.end()

    @property
    def _is_on_s3(self) -> bool:
        return "on" in self.result.options

    def points(self) -> tuple[str, ...]:
        """Where faults are armed."""
        return POINTS if self._is_on_s3 else (*TASK, *DRIVER)

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield now and then a full disk as well."""
        yield from super().faults()
        if self.rng.random() < 0.2:
            yield self.rng.choice(self.points()), "enospc"

    def tasks(self, tasks: int) -> int:
        """As other cores and adaptive execution make it."""
        return self.rng.choice((tasks, self.rng.randint(1, 4)))

    def worker(self) -> Worker:
        """A new process."""
        options = {name: value for name, value in self.result.options.items() if name != "on"}
        return Worker(partial(FolderSink, self._where, self._checkpoint, **options))


def _read_on(where: str, file_format: str, over, answer) -> None:  # type: ignore[no-untyped-def]
    """Read the output until the end; send the number of reads, faults, and the last result."""
    looks, wrong = 0, ""
    while not over.is_set():
        if "://" in where:
            found = seen(where, file_format)
            time.sleep(0.2)
        else:
            found = seen_locally(where, file_format)
            batches = Counter(n // WIDTH for n in found)
            half = sorted(batch for batch, count in batches.items() if count != WIDTH)
            wrong = wrong or (f"micro-batches {half} were seen in part" if half else "")
        looks += 1
        twice = [n for n, count in found.items() if count > 1]
        wrong = wrong or (f"rows {twice} were seen twice" if twice else "")
    answer.send((looks, wrong, seen(where, file_format)))


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="dedup-files-") as folder,
        running_store(Path(folder, "log")) as store,
    ):
        return run_campaign(__doc__, POINTS, lambda *given: FilesCampaign(store, *given).run())


if __name__ == "__main__":
    sys.exit(main())
