"""How results are kept: one JSON per benchmark in ``benchmarks/results``, see ``README.md``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import machine

FOLDER = Path(__file__).with_name("results")
FORMAT = 1


def keep(benchmark: str, result: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Write a benchmark's result with machine and versions; where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{benchmark}.json"
    whole = {"format": FORMAT, "benchmark": benchmark, "machine": machine(), **result}
    path.write_text(json.dumps(whole, indent=1) + "\n")
    return path


def finish(benchmark: str, result: dict[str, Any], table: Callable[[dict[str, Any]], str]) -> None:
    """Keep the result and print its table."""
    keep(benchmark, result)
    print(table(result))


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of the others does not pass."""
    return float(sorted(values)[min(len(values) - 1, int(share * len(values)))])


def median(values: Sequence[float]) -> float:
    """The median; 0 of none."""
    return float(statistics.median(values)) if values else 0.0
