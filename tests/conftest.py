"""What every test shares: the `slow` marker, chosen by CI_FULL=1, and how Hypothesis draws."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support import class_archive
from tests.support.kafka_needs import need_library
from tests.support.needs import not_tested
from tests.support.quick_spark import FULL

if not FULL:
    # Of every Spark that a test starts, `dedup run` in a process of its own among them.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", class_archive.OPTIONS)

# A busy machine is no fault of the code. Each run draws other examples: with few at a time, many
# runs see as many as few runs would with many.
settings.register_profile("untimed", deadline=None, max_examples=200 if FULL else 40)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def kafka_library() -> None:
    """For tests of this package's Kafka that need the client library, and no broker."""
    need_library()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes long; runs with CI_FULL=1 only")
    in_parallel = getattr(config.option, "numprocesses", None)
    if not FULL and in_parallel and not hasattr(config, "workerinput"):
        class_archive.make_in_background()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # `-m` given by hand decides for itself.
    if FULL or config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Close with what was not tested, and how to test it."""
    yield
    lines = not_tested(terminalreporter.stats.get("skipped", []))
    if not FULL and not terminalreporter.config.option.markexpr:
        lines.append("       Tests that take long: set CI_FULL=1")
    terminalreporter.section("not tested")
    for line in lines:
        terminalreporter.write_line(line)
