"""Other Python processes, and what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def python(
    *arguments: object,
    timeout_s: float = 240,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run this Python in its own process; it may fail."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env={**os.environ, **(env or {})},
        capture_output=True, text=True, check=False, timeout=timeout_s,
    )  # fmt: skip


def dedup(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return python("-m", "dedup.cli.main", *arguments, env=env)


def run_python(code: str, *args: object, timeout_s: float = 240, **env: str) -> Any:
    """Run code in another Python, which can import these tests; return its last line of JSON."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]
    found = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = python("-c", code, *args, timeout_s=timeout_s, env=found | env)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.strip().splitlines()[-1])
