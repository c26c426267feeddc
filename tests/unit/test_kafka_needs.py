"""Tests of Kafka fail and say why if something is missing, unless the user lets them be skipped."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support import kafka_needs
from tests.support.kafka_needs import VARIABLE, need_broker, need_library
from tests.support.needs import do_without
from tests.support.processes import python

ROOT = Path(__file__).resolve().parents[2]
#: Runs tests of a broker without the client library.
_NO_LIBRARY = """
import sys
sys.modules["confluent_kafka"] = None
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "tests/kafka/test_slots.py"]))
"""
#: Runs a test of a broker whose jars cannot be fetched.
_NO_NETWORK = """
import sys
from tests.support import jars
jars._RESOLVE = "raise SystemExit('java.net.UnknownHostException: repo1.maven.org')"
import pytest
test = "tests/kafka/test_proxy.py"
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", test]))
"""


@pytest.fixture(params=["", "1"], ids=["fail", "skip"])
def outcome(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> object:
    """What comes of a test that has to do without."""
    monkeypatch.setenv(VARIABLE, request.param)
    return pytest.skip.Exception if request.param else pytest.fail.Exception


def test_a_missing_requirement_fails_or_skips_the_test(outcome: type[BaseException]) -> None:
    with pytest.raises(outcome, match="no jars"):
        do_without(VARIABLE, "no jars")


def test_a_missing_library_is_named(
    outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(outcome, match="fastavro cannot be had"):
        need_library()


def test_a_missing_java_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(kafka_needs.shutil, "which", lambda name: None)
    monkeypatch.setenv("JAVA_HOME", "")
    with pytest.raises(pytest.fail.Exception, match="no java"):
        need_broker()
    monkeypatch.setenv("JAVA_HOME", "/usr/lib/jvm")
    need_broker()


def test_no_broker_is_started_if_the_user_skips_kafka_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(pytest.skip.Exception, match="make test` without it"):
        need_broker()


@pytest.mark.parametrize(("skipped", "told"), [("", "failed"), ("1", "skipped")])
def test_tests_whose_imports_fail_are_counted(skipped: str, told: str) -> None:
    done = python("-c", _NO_LIBRARY, cwd=ROOT, env={VARIABLE: skipped})
    # Exactly all of them.
    assert re.match(rf"[1-9]\d* {told} in", done.stdout.splitlines()[-1]), done.stdout
    assert "confluent_kafka cannot be had" in done.stdout


def test_a_run_fails_without_the_broker_s_jars(tmp_path: Path) -> None:
    env = {VARIABLE: "", "XDG_CACHE_HOME": str(tmp_path)}
    done = python("-c", _NO_NETWORK, cwd=ROOT, env=env)
    assert done.returncode == 1, done.stdout
    assert "UnknownHostException: repo1.maven.org. To run the other tests alone" in done.stdout


def test_a_run_ends_with_a_list_of_what_was_not_tested() -> None:
    env = {VARIABLE: "1", "CI_FULL": ""}
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kafka/test_proxy.py"]
    for more in ([], ["--numprocesses", "1"]):
        done = python(*command, *more, cwd=ROOT, env=env)
        assert done.returncode == 0, done.stdout
        closing = done.stdout.partition(" not tested ")[2].splitlines()
        assert re.search(rf" [1-9]\d*  {VARIABLE}=1 is set: `make test` without it", closing[1])
        assert closing[2].strip() == "Tests that take long: set CI_FULL=1"


def test_ci_does_not_let_kafka_tests_be_skipped() -> None:
    assert f"{VARIABLE}=1" not in (ROOT / ".ci" / "run").read_text()
