"""What tests of Kafka need: if it cannot be had they fail, except under ``SKIP_KAFKA=1``."""

from __future__ import annotations

import importlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.needs import do_without

VARIABLE = "SKIP_KAFKA"
#: Of the extra `kafka`.
_LIBRARIES = ("confluent_kafka", "fastavro")


def missing_library() -> str | None:
    """Return what is missing of the extra `kafka`, or None if nothing is."""
    for name in _LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"tests of Kafka need the extra 'kafka', and {name} cannot be had: {error}"
    return None


def need_library() -> None:
    """Skip or fail without the extra `kafka`."""
    if (reason := missing_library()) is not None:
        do_without(VARIABLE, reason)


def need_broker() -> None:
    """Skip or fail unless a broker is wanted and can run."""
    if os.environ.get(VARIABLE) == "1":
        pytest.skip(f"{VARIABLE}=1 is set: `make test` without it runs this on a broker")
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        do_without(VARIABLE, "tests of Kafka need a JDK 17 or newer, and there is no java")


class UnimportableFile(pytest.File):
    """A file of tests that import what is missing: its tests are counted, and none of them runs."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield an item for each test function, found by its name."""
        for name in re.findall(r"^def (test_\w+)", Path(self.path).read_text(), re.MULTILINE):
            yield UnimportableTest.from_parent(self, name=name)


class UnimportableTest(pytest.Item):
    """A test of such a file."""

    def runtest(self) -> None:
        """Skip or fail."""
        need_library()
