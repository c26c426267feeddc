"""What tests of Kafka need: where it cannot be had they skip, except under ``REQUIRE_KAFKA=1``.

``.ci/run`` sets the variable, so that nothing passes there only because it did not run.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

VARIABLE = "REQUIRE_KAFKA"
#: Of the extra `kafka`.
_LIBRARIES = ("confluent_kafka", "fastavro")


def do_without(reason: str) -> NoReturn:
    """Skip the running test, or fail it where Kafka is required; every test of Kafka asks here."""
    if os.environ.get(VARIABLE) == "1":
        pytest.fail(f"{VARIABLE}=1 does not let tests of Kafka skip: {reason}", pytrace=False)
    pytest.skip(reason)


def missing_library() -> str | None:
    """Return what is missing of the extra `kafka`, None where nothing is."""
    for name in _LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"tests of Kafka need the extra 'kafka', and {name} cannot be had: {error}"
    return None


def need_library() -> None:
    """Go on only with the extra `kafka`."""
    if (reason := missing_library()) is not None:
        do_without(reason)


def need_java() -> None:
    """Go on only where a broker can run."""
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        do_without("tests of Kafka need a JDK 17 or newer, and there is no java")


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
