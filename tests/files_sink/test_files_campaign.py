"""The campaign against the file sink, in a short form."""

from __future__ import annotations

import re

import pytest

from tests.support.processes import python


@pytest.mark.parametrize("kills", [8, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_every_row_is_there_once_whatever_is_killed(kills: int) -> None:
    """On a local disk, and in the long form on S3; the seed tells which comes first."""
    done = python("-m", "tests.files_sink.campaign", "--kills", kills, "--seed", "1", timeout_s=800)
    assert done.returncode == 0, done.stdout + done.stderr
    rounds = [line for line in done.stdout.splitlines() if line.startswith("seed ")]
    assert all(re.search(r"(\d+) of \1 faults fired", line) for line in rounds), rounds
    assert all(re.search(r"'looks of a reader': [1-9]", line) for line in rounds), rounds
    struck = re.findall(r"\| kill \| \d+ \| (\d+) \| 0 \| 0 \|", done.stdout)
    assert sum(map(int, struck)) >= kills
