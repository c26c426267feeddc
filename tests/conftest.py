"""What every test shares: the `slow` marker, chosen by CI_FULL=1, and what runs side by side."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
#: Tests of these folders share what takes long to start.
_TOGETHER = {"cluster"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes long; runs with CI_FULL=1 only")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Files go to one process or the other, whole: their tests share fixtures.
    for item in items:
        folder = item.path.parent.name
        group = folder if folder in _TOGETHER else str(item.path.relative_to(_HERE))
        item.add_marker(pytest.mark.xdist_group(group))
    # `-m` given by hand decides for itself.
    if os.environ.get("CI_FULL") == "1" or config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
