"""One broker for all the tests of a process."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.kafka.broker import fetch_jars, running_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        pytest.skip("Kafka needs a JDK 17 or newer, and there is no java")
    try:
        fetch_jars()
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"Kafka's jars are not to be had from Maven Central: {error}")
    with running_broker(tmp_path_factory.mktemp("kafka")) as address:
        yield address
