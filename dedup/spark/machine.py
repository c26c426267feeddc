"""The machine's clock, cores and memory. `dedup.core` gets these values as arguments."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from dedup.errors import ConfigError


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Stopwatch:
    """Measures the microseconds that each stage of a task takes."""

    us: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    last_ns: int = field(default_factory=time.perf_counter_ns)

    def resume(self) -> None:
        """Start a stage. The time since the end of the last stage is not counted."""
        self.last_ns = time.perf_counter_ns()

    def lap(self, stage: str) -> None:
        """End the stage of this name, and start the next stage."""
        now_ns = time.perf_counter_ns()
        self.us[stage] += (now_ns - self.last_ns) // 1000
        self.last_ns = now_ns


def machine_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local_cores(master: str) -> int | None:
    """Return the number of cores of a local Spark master, or None for the master of a cluster."""
    match = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", master)
    if match is None:
        return None
    return machine_cores() if match[1] == "*" else int(match[1] or 1)


def machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def local_folders() -> list[str]:
    """Return Spark's folders for local data, as a Python worker knows them."""
    folders = [folder for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if folder]
    return folders or [tempfile.gettempdir()]


def home_path(path: str | Path) -> Path:
    """Return a path with ``~`` replaced by the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{path} does not exist: user {Path(path).parts[0][1:] or os.getuid()} has no home "
            "folder. Set HOME, or give a path without '~'."
        ) from None


def shuffle_partitions(text: str | None) -> int | None:
    """Return the number in the setting, or None if Spark chooses it (Databricks: ``auto``)."""
    text = text or ""
    return int(text) or None if re.fullmatch(r"\s*\d{1,9}\s*", text) else None
