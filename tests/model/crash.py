"""A root that dies: the process is gone before or after one of its writes or deletes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from dedup.catalog.location import FileSystemFactory
from dedup.catalog.root import Root


class Crash(BaseException):
    """The process was killed; nothing may catch it."""


class MortalRoot(Root):
    """Counts writes and deletes, and dies at one of them.

    Parameters
    ----------
    where
        As of `Root`.
    calls_left : int
        Writes and deletes until the fatal one.
    takes_effect : bool
        Whether the fatal one is done first.
    """

    def __init__(
        self,
        where: str | os.PathLike[str] | FileSystemFactory,
        *,
        calls_left: int,
        takes_effect: bool,
    ) -> None:
        super().__init__(where)
        self.calls_left = calls_left
        self.takes_effect = takes_effect
        self.died = False

    def put_bytes(self, name: str, data: bytes) -> None:
        with self._mortal():
            super().put_bytes(name, data)

    def create_bytes(self, name: str, data: bytes) -> bool:
        with self._mortal():
            return super().create_bytes(name, data)

    def put_file(self, name: str, local_path: str | os.PathLike[str]) -> None:
        with self._mortal():
            super().put_file(name, local_path)

    def delete(self, names: Iterable[str]) -> int:
        deleted = 0
        for name in names:
            with self._mortal():
                deleted += super().delete([name])
        return deleted

    @contextmanager
    def _mortal(self) -> Iterator[None]:
        self.calls_left -= 1
        self.died = self.calls_left < 0
        if self.died and not self.takes_effect:
            raise Crash
        yield
        if self.died:
            raise Crash
