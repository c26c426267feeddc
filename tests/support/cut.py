"""End a call at one of its steps, as if its process had died."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dedup.errors import faults


class _Cut(BaseException):
    """The call ends here."""


@contextmanager
def cut_at(monkeypatch: pytest.MonkeyPatch, step: str) -> Iterator[None]:
    """Let the call inside end when it reaches a step. Fails if it does not."""

    def cut(name: str, path: object = None) -> None:
        if name == step:
            raise _Cut

    with monkeypatch.context() as patch:
        patch.setattr(faults, "point", cut)
        with pytest.raises(_Cut):
            yield
