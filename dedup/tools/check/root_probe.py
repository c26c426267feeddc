"""Facts about a catalog root, as one machine sees it."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dedup.errors import DedupError
from dedup.storage.root import Root

#: Object below the probe's folder that the driver writes first.
MARK = "driver"


def text_of(error: Exception) -> str:
    if isinstance(error, DedupError):
        return error.text
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class RootProbe:
    """Uses a catalog root as a query does, in a folder that the driver deletes afterwards."""

    root: Root
    folder: str
    content: bytes

    def facts(self) -> dict[str, Any]:
        """Return the milliseconds of each step, or the error that ended the probe.

        A machine that does not see what the driver wrote, writes nothing.
        """
        found: dict[str, Any] = {"ms": {}, "problem": None, "sees_driver": None}
        try:
            self._take_steps(found)
        except Exception as error:  # of the storage, or of the user's function
            found["problem"] = text_of(error)
        return found

    def _take_steps(self, found: dict[str, Any]) -> None:
        root, data = self.root, os.urandom(1 << 16)
        name = f"{self.folder}/{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
        mark = f"{self.folder}/{MARK}"
        found["sees_driver"] = root.exists(mark) and root.read_bytes(mark) == self.content
        if not found["sees_driver"]:
            return

        def copy() -> bool:
            root.copy(name, f"{name}-copy")
            return root.exists(f"{name}-copy")

        steps: dict[str, Callable[[], bool]] = {
            "create": lambda: root.create_bytes(name, data),
            "read": lambda: root.read_bytes(name) == data,
            "list": lambda: name in {file.name for file in root.list(self.folder)},
            "copy": copy,
            "create again": lambda: not root.create_bytes(name, b""),
            "delete": lambda: root.delete([name, f"{name}-copy"]) == 2 and not root.exists(name),
        }
        for step, act in steps.items():
            began_s = time.monotonic()
            if not act():
                found["problem"] = f"the step {step!r} has another result than on a file system"
                return
            found["ms"][step] = round((time.monotonic() - began_s) * 1000, 1)
