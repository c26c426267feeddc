"""Tests of Kafka fail and say why if something is missing, unless the user lets them be skipped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.kafka_needs import VARIABLE
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
