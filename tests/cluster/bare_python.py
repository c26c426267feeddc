"""A Python for executors with every package that this one has, except dedup."""

from __future__ import annotations

import sysconfig
import venv
from pathlib import Path


class BarePython:
    """A virtual environment; what is put into `extra` is importable in it.

    Modules of this environment appear in it by links, so that nothing is installed again.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.executable = str(folder / "bin" / "python")
        (packages,) = folder.glob("lib/python*/site-packages")
        for origin in {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}:
            for entry in origin.iterdir():
                if not any(name in entry.name for name in ("dedup", "__editable__")):
                    (packages / entry.name).symlink_to(entry)
        self.extra = folder / "extra"
        self.extra.mkdir()
        (packages / "extra.pth").write_text(f"{self.extra}\n")
