"""Commands on a machine whose root is read-only, as in hardened containers."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

_READ_ONLY = (
    'for m in $(printf "%s\\n" / /tmp /var/tmp /dev/shm "$(stat -c %m .)" | sort -u); do '
    "mountpoint -q $m && mount -o remount,ro,bind $m; done"
)


def read_only(
    folder: Path, *command: str, before: str = "true", env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command of the environment in `folder`. Only its new folder ``w`` can be written.

    The mounts, and those of `before`, are gone when the command ends.
    """
    (folder / "w").mkdir()
    unshare = ["unshare", "--mount"] + (["--user", "--map-root-user"] if os.geteuid() else [])
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"]).returncode:
        pytest.skip("needs the right to mount (util-linux, unshare --mount)")
    program = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
    script = f"{_READ_ONLY}; mount -t tmpfs tmpfs w; {before}; exec {shlex.join(program)}"
    without = {name: each for name, each in os.environ.items() if name not in ("TEMP", "TMP")}
    return subprocess.run(
        [*unshare, "bash", "-c", script], cwd=folder, env={**without, **env}, capture_output=True,
        text=True, check=False, timeout=120,
    )  # fmt: skip
