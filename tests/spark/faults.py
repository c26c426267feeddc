"""Faults inside the group function: tasks that fail once, at a chosen point of a micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: Every point at which the group function can be made to fail, in the order in which it passes
#: them; "kill" ends the worker as SIGKILL does.
POINTS = (
    "certificate", "start", "frames", "read", "hash", "tail", "probe", "lookup", "judge",
    "sidecar", "segment", "upkeep", "backup", "before state", "after state", "write", "yield",
    "kill",
)  # fmt: skip


def failing(points: dict[int, str], marks: Path) -> Callable[..., Iterator[Any]]:
    """`dedup_stream`, made to fail once at a point in each of the given micro-batches.

    The first task that gets there fails; a file in `marks` tells that it did.
    """
    folder = str(marks)

    # Shipped to the workers by value: all that it needs is imported inside.
    def stream(plan: Any, key: Any, frames: Any, state: Any) -> Iterator[Any]:
        import os
        import signal
        from contextlib import ExitStack
        from unittest.mock import patch

        from dedup.catalog.backup import write_backup
        from dedup.catalog.compatibility import create_or_check
        from dedup.catalog.root import Root
        from dedup.spark.executor import by_id, group, task
        from dedup.spark.observations import Stopwatch

        chosen = points.get(task.Task.current(plan).epoch)

        def strike(here: str) -> None:
            if here != chosen:
                return
            try:
                os.close(os.open(f"{folder}/{here}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            if here == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError(f"made to fail at {here}")

        lap, put_file = Stopwatch.lap, Root.put_file

        def put_and_strike(self: Any, name: str, path: Any) -> None:
            put_file(self, name, path)
            strike("sidecar" if name.endswith(".filter") else "segment")

        def backup_and_strike(*given: Any) -> None:
            write_backup(*given)
            strike("backup")

        def create_and_strike(*given: Any) -> Any:
            made = create_or_check(*given)
            strike("certificate")
            return made

        def lap_and_strike(self: Any, stage: str) -> None:
            lap(self, stage)
            if stage != "write" or updated:
                strike(stage)

        updated: list[bool] = []

        class State:
            def __getattr__(self, name: str) -> Any:
                return getattr(state, name)

            def update(self, value: Any) -> None:
                strike("before state")
                state.update(value)
                updated.append(True)
                strike("after state")
                strike("kill")

        def struck() -> Iterator[Any]:
            for frame in frames:
                yield frame
                strike("frames")

        with ExitStack() as stack:
            for where, name, instead in (
                (Stopwatch, "lap", lap_and_strike),
                (Root, "put_file", put_and_strike),
                (task, "create_or_check", create_and_strike),
                (by_id, "write_backup", backup_and_strike),
            ):
                stack.enter_context(patch.object(where, name, instead))
            strike("start")
            yield from group.dedup_stream(plan, key, struck(), State())
            strike("yield")

    return stream
