"""The demonstration in a short form, and how it judges a table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.kafka.demo.producers import Load
from tests.postgres.demo.run import judged
from tests.postgres.server import Server
from tests.support.processes import python


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demonstration(server: Server, tmp_path: Path) -> None:
    flags = ["--kills", "1", "--batches", "6", "--folder", tmp_path]
    done = python("-m", "tests.postgres.demo", *flags, timeout_s=380)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every figure is right." in done.stdout
    assert "Restarted PostgreSQL under the query." in done.stderr


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ({"a": 1, "b": 1}, set()),
        ({"a": 1}, {"rows in the table", "  lost"}),
        ({"a": 2, "b": 1}, {"rows in the table", "  duplicated"}),
    ],
)
def test_a_wrong_table_is_found(found: dict[str, int], wrong: set[str]) -> None:
    load = Load(stretches=1, batches=1, producers=1, batch=2)
    checks = judged(load, 3, ["a", "b", "b"], Counter(found))
    assert {check.name for check in checks if not check.good} == wrong
