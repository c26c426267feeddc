"""A task of a sink that stands still between two rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

from dedup.testing.sinks import SinkHarness


@contextmanager
def frozen_task(
    sink: SinkHarness, batch_id: int, before: Sequence[int], after: Sequence[int]
) -> Iterator[list[BaseException]]:
    """Let a task write slice 0 in a thread, which stands still between some rows and others.

    It continues at the end of the block. The list then has the error with which it failed.
    """
    begun, thaw = Event(), Event()
    failed: list[BaseException] = []

    def rows() -> Iterator[int]:
        yield from before
        begun.set()
        assert thaw.wait(60)
        yield from after

    def attempt() -> None:
        try:
            sink.task("run1", batch_id, 0, rows())
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=attempt)
    thread.start()
    assert begun.wait(30)
    yield failed
    thaw.set()
    thread.join()
