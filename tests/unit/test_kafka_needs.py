"""Tests of Kafka skip and say why where something is missing, and fail where it is required."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support import kafka_needs
from tests.support.kafka_needs import VARIABLE, do_without, need_java, need_library
from tests.support.processes import python

ROOT = Path(__file__).resolve().parents[2]
#: Runs tests of a broker without the client library.
_PROGRAM = """
import sys
sys.modules["confluent_kafka"] = None
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "tests/kafka/test_slots.py"]))
"""


@pytest.fixture(params=["", "1"], ids=["skip", "fail"])
def outcome(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> object:
    """What comes of a test that has to do without."""
    monkeypatch.setenv(VARIABLE, request.param)
    return pytest.fail.Exception if request.param else pytest.skip.Exception


def test_what_is_missing_skips_or_fails(outcome: type[BaseException]) -> None:
    with pytest.raises(outcome, match="no jars"):
        do_without("no jars")


def test_a_missing_library_is_named(
    outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(outcome, match="fastavro cannot be had"):
        need_library()


def test_a_missing_java_is_told(
    outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_needs.shutil, "which", lambda name: None)
    monkeypatch.setenv("JAVA_HOME", "")
    with pytest.raises(outcome, match="no java"):
        need_java()
    monkeypatch.setenv("JAVA_HOME", "/usr/lib/jvm")
    need_java()


@pytest.mark.parametrize(("required", "told"), [("", "skipped"), ("1", "failed")])
def test_tests_whose_imports_fail_are_counted(required: str, told: str) -> None:
    done = python("-c", _PROGRAM, cwd=ROOT, env={VARIABLE: required})
    # All of them, and nothing else.
    assert re.match(rf"[1-9]\d* {told} in", done.stdout.splitlines()[-1]), done.stdout
    assert "confluent_kafka cannot be had" in done.stdout


def test_the_check_that_decides_lets_none_skip() -> None:
    assert f"export {VARIABLE}=1\n" in (ROOT / ".ci" / "run").read_text()
