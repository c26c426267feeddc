"""`make bench`: the operator against Spark's built-ins, side by side (see pipelines.py)."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.pipelines import run, table

RESULTS = Path(__file__).with_name("results")


def test_pipelines(capsys: pytest.CaptureFixture[str]) -> None:
    """10 M rows in micro-batches of 1 M; prints a table and keeps the raw figures."""
    arguments = Namespace(
        rows=1_000_000,
        batches=12,
        duplicates=0.05,
        only=None,
        driver_memory="8g",
        data=None,
        work=None,
    )
    result = run(arguments)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "pipelines.json").write_text(json.dumps(result, indent=1) + "\n")
    with capsys.disabled():
        print("\n" + table(result))
