"""What several unit tests ask for: the kernel on every path, and a catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from dedup.kernel._kernel import Kernel
from tests.support.catalog import Bench
from tests.support.kernel_models import PATHS, load


@pytest.fixture(scope="session", params=PATHS)
def tested(request: pytest.FixtureRequest) -> Kernel:
    """One path of the kernel after another."""
    return load(request.param)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def compiled() -> Kernel:
    """The path in C, which checks its arguments."""
    return load("native")
