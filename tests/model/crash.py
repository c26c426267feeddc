"""A root that dies: the process is gone before or after one of its writes or deletes."""

from __future__ import annotations

import os
from collections.abc import Iterable

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
        fatal = self._begin()
        super().put_bytes(name, data)
        self._end(fatal)

    def create_bytes(self, name: str, data: bytes) -> bool:
        fatal = self._begin()
        created = super().create_bytes(name, data)
        self._end(fatal)
        return created

    def put_file(self, name: str, local_path: str | os.PathLike[str]) -> None:
        fatal = self._begin()
        super().put_file(name, local_path)
        self._end(fatal)

    def delete(self, names: Iterable[str]) -> int:
        deleted = 0
        for name in names:
            fatal = self._begin()
            deleted += super().delete([name])
            self._end(fatal)
        return deleted

    def _begin(self) -> bool:
        self.calls_left -= 1
        fatal = self.calls_left < 0
        if fatal and not self.takes_effect:
            self.died = True
            raise Crash
        return fatal

    def _end(self, fatal: bool) -> None:
        if fatal:
            self.died = True
            raise Crash
