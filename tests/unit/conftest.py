"""What several unit tests ask for: the kernel on every path."""

from __future__ import annotations

import pytest

from dedup.kernel._types import Kernel
from tests.support.kernel_models import PATHS, load


@pytest.fixture(scope="session", params=PATHS)
def tested(request: pytest.FixtureRequest) -> Kernel:
    """One path of the kernel after another."""
    return load(request.param)
