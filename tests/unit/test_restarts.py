"""When a query is started again: strategies, the classification of errors, exit codes."""

from __future__ import annotations

import ast
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pyspark import SparkContext
from typer.testing import CliRunner

import dedup.errors
from dedup.cli import failures
from dedup.cli.app import app
from dedup.cli.watch_screen import STATUSES
from dedup.errors import (
    ConfigError,
    DedupError,
    MissingExtraError,
    OtherRelease,
    SegmentDamaged,
    SinkError,
    StateError,
    restart_helps,
)
from dedup.tools import ExponentialDelay, FailureRate, FixedDelay, run_with_restarts
from dedup.tools.restarts import QueryFailure, Strategy
from tests.unit.test_remedies import PACKAGE, SECTIONS, used

CLASSES = {
    name: kind
    for name, kind in vars(dedup.errors).items()
    if isinstance(kind, type) and issubclass(kind, DedupError)
}
#: Whether a new start may overcome an error, by class and topic. A new pair has to be added here.
OVERCOME = {
    ("CatalogError", None): True,
    ("CatalogError", "damaged-certificate"): False,
    ("CatalogError", "damaged-pending-list"): False,
    ("CatalogError", "damaged-segment"): False,
    ("CatalogError", "incomplete-merge"): False,
    ("CatalogError", "local-disk"): True,
    ("CatalogError", "lost-checkpoint"): False,
    ("CatalogError", "missing-catalog"): False,
    ("CatalogError", "name-taken"): False,
    ("CatalogError", "rebuilt-elsewhere"): False,
    ("CatalogError", "storage"): True,
    ("CatalogError", "unshared-root"): False,
    ("ClockError", "clock"): True,
    ("DedupError", None): True,
    ("DedupError", "local-disk"): True,
    ("DedupError", "output-folder"): True,
    ("ExecutorError", "executor-package"): False,
    ("FilterDamaged", None): False,
    ("MachineError", None): False,
    ("MissingExtraError", None): False,
    ("ObjectMissing", "missing-catalog"): False,
    ("OtherRelease", "other-version"): False,
    ("SegmentDamaged", "damaged-segment"): False,
    ("SinkError", None): True,
    ("SinkError", "files-gone"): False,
    ("SinkError", "other-version"): False,
    ("SinkError", "sink-differs"): False,
    ("SinkError", "sink-markers"): False,
    ("SinkError", "sink-older-checkpoint"): False,
    ("SinkError", "storage"): False,
    ("SourceError", "poison-records"): True,
    ("SourceError", "topic-made-anew"): False,
    ("StateError", "changed-settings"): False,
    ("StateError", "damaged-state"): False,
    ("StateError", "missing-catalog"): False,
    ("StateError", "other-version"): False,
}
#: Errors of these classes never pass, under any topic.
FINAL = ("ConfigError", "DataError")
#: What a call states in a variable: a damaged marker, or a document of the ledger.
ELSEWHERE = [("SinkError", "storage")]
#: What methods of the classes make.
BY_METHODS = [StateError.damaged("x"), OtherRelease.at("place", "reason")]


def made(name: str, topic: str | None) -> DedupError:
    if name == "MissingExtraError":
        return MissingExtraError("spark", "It")
    return CLASSES[name]("text", remedy=topic)


def raised() -> set[tuple[str, str | None]]:
    """Pairs of class and topic that the package makes, as far as its calls state the topic."""
    found: set[tuple[str, str | None]] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = _name(node.func) if isinstance(node, ast.Call) else ""
            if not isinstance(node, ast.Call) or name not in CLASSES:
                continue
            given = [each.value for each in node.keywords if each.arg == "remedy"]
            if not given:
                found.add((name, None))
            found |= {(name, each.value) for each in given if isinstance(each, ast.Constant)}
    return found | {(type(error).__name__, error.remedy) for error in BY_METHODS}


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def test_every_error_that_the_package_raises_is_classified() -> None:
    found = raised()
    assert {pair for pair in found if pair[0] not in FINAL} == set(OVERCOME) - set(ELSEWHERE)
    assert set(used()) <= {topic for _, topic in found | set(ELSEWHERE)}
    assert set(dedup.errors._OVERCOME) == set(CLASSES.values())


@pytest.mark.parametrize(("pair", "helps"), OVERCOME.items(), ids=str)
def test_errors_are_classified_by_whether_a_restart_helps(
    pair: tuple[str, str | None], helps: bool
) -> None:
    assert restart_helps(made(*pair)) == helps


@pytest.mark.parametrize("name", FINAL)
def test_a_restart_never_helps_against_errors_of_options_and_records(name: str) -> None:
    assert not any(restart_helps(made(name, topic)) for topic in [None, *SECTIONS])


def test_errors_of_spark_and_users_are_classified_by_our_error_inside() -> None:
    told = "[STREAM_FAILED] x\nCaused by: dedup.errors.{}: x\nRemedies: dedup remedies {}\n"
    assert restart_helps(told.format("CatalogError", "storage"))
    assert not restart_helps(told.format("CatalogError", "damaged-segment"))
    assert not restart_helps(RuntimeError(told.format("DataError", "bad-records")))
    assert restart_helps(ValueError("of the user's code"))
    assert restart_helps("java.io.IOException: broken pipe")

    class Own(SinkError):
        """An error of a user's sink."""

    assert restart_helps(Own("no answer"))
    assert not restart_helps(Own("differs", remedy="sink-differs"))


# --- strategies


def delays(strategy: Strategy, failures: Sequence[tuple[float, float]]) -> list[float | None]:
    """Return what a strategy says after each failure, given as time and time run."""
    known = [QueryFailure(*each) for each in failures]
    return [strategy(known[: n + 1]) for n in range(len(known))]


def test_a_fixed_delay_ends_after_its_attempts() -> None:
    strategy = FixedDelay(2, "5 seconds")
    assert delays(strategy, [(1, 1), (9, 3), (99_999, 90_000)]) == [5, 5, None]
    assert delays(FixedDelay(0), [(1, 1)]) == [None]


def test_an_exponential_delay_grows_to_its_longest_and_then_ends() -> None:
    strategy = ExponentialDelay("2 seconds", "9 seconds", factor=2, attempts=4, jitter=0)
    assert delays(strategy, [(n, 1) for n in range(5)]) == [2, 4, 8, 9, None]
    assert delays(ExponentialDelay("9 seconds", "2 seconds", jitter=0), [(1, 1)]) == [2]


def test_an_exponential_delay_begins_anew_after_a_long_run() -> None:
    strategy = ExponentialDelay("1 second", attempts=3, reset_after="1 minute", jitter=0)
    runs = [5, 5, 59, 60, 1, 1, 1]
    assert delays(strategy, [(0, ran) for ran in runs]) == [1, 2, 4, 1, 2, 4, None]
    assert delays(strategy, [(0, 60), (0, 60)]) == [1, 1]


def test_jitter_spreads_delays_and_keeps_their_mean() -> None:
    strategy = ExponentialDelay("10 seconds", jitter=0.5)
    found = [strategy([QueryFailure(0, 0)]) or 0 for _ in range(500)]
    assert 5 <= min(found) < 6 < 14 < max(found) <= 15
    assert 9 < sum(found) / len(found) < 11


def test_a_failure_rate_counts_the_failures_of_its_interval() -> None:
    strategy = FailureRate(2, "1 minute", "3 seconds")
    assert delays(strategy, [(0, 0), (59, 0), (61, 0), (118, 0)]) == [3, 3, 3, None]
    assert delays(strategy, [(0, 0), (30, 0), (60, 0)]) == [3, 3, 3], "60 s are over"


@pytest.mark.parametrize(
    ("strategy", "option"),
    [
        (lambda: FixedDelay(-1), "attempts=-1"),
        (lambda: FixedDelay(1, "soon"), "delay='soon'"),
        (lambda: ExponentialDelay("x"), "initial='x'"),
        (lambda: ExponentialDelay(most="x"), "most='x'"),
        (lambda: ExponentialDelay(factor=0.5), "factor=0.5"),
        (lambda: ExponentialDelay(factor=float("nan")), "factor=nan"),
        (lambda: ExponentialDelay(attempts=1.5), "attempts=1.5"),  # type: ignore[arg-type]
        (lambda: ExponentialDelay(jitter=2), "jitter=2"),
        (lambda: FailureRate(True), "most=True"),
        (lambda: FailureRate(1, "1 month"), "interval='1 month'"),
    ],
)
def test_invalid_options_are_named(strategy: Callable[[], Strategy], option: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(option)):
        strategy()


# --- the loop


class World:
    """A clock, and a query that ends as planned: after some seconds, with an error or None."""

    def __init__(self, *ends: tuple[float, Exception | None]) -> None:
        self.ends, self.now_s = list(ends), 1000.0
        self.started: list[float] = []

    def start(self) -> Any:
        self.started.append(self.now_s)
        return self

    def awaitTermination(self) -> None:  # noqa: N802
        ran_s, error = self.ends.pop(0)
        self.sleep(ran_s)
        if error is not None:
            raise error

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def run(self, strategy: Strategy | None = None) -> Any:
        return run_with_restarts(self.start, strategy, clock=lambda: self.now_s, sleep=self.sleep)


def test_a_query_starts_again_until_it_ends_well(caplog: pytest.LogCaptureFixture) -> None:
    world = World(
        (7, SinkError("no answer from postgresql://me:s3cret@host")),
        (2, ValueError("x")),
        (1, None),
    )
    with caplog.at_level(logging.WARNING, "dedup"):
        assert world.run(FixedDelay(2, "10 seconds")) is world
    assert world.started == [1000, 1017, 1029]
    told = [record.getMessage() for record in caplog.records]
    assert told[0].startswith("The query has failed, and starts again in 10 s (failure 1 in this")
    assert "SinkError: no answer from" in told[0]
    assert "s3cret" not in told[0]
    assert told[1].endswith("(failure 2 in this process): x")


def test_the_default_gives_up_after_half_an_hour_of_failures() -> None:
    world = World(*[(1, ValueError("x"))] * 13)
    with pytest.raises(ValueError, match="x") as caught:
        world.run()
    assert len(world.started) == 13
    assert 15 * 60 < world.now_s - 1000 < 30 * 60
    assert caught.value.__notes__ == ["The query was started 13 times in this process."]


def test_an_error_that_no_restart_helps_ends_the_loop_at_once() -> None:
    spark = RuntimeError("[STREAM_FAILED]\nCaused by: dedup.errors.SegmentDamaged: s1 is gone\n")
    world = World((1, SinkError("no answer")), (1, spark), (1, None))
    with pytest.raises(SegmentDamaged, match=r"^s1 is gone") as caught:
        world.run(FixedDelay(9))
    assert (str(caught.value), caught.value.__cause__) == ("s1 is gone", spark)
    assert len(world.started) == 2
    own = ConfigError("wrong")
    with pytest.raises(ConfigError) as caught:
        World((1, own)).run(FixedDelay(9))
    assert caught.value is own


def test_an_error_of_the_start_itself_counts() -> None:
    calls: list[int] = []

    def start() -> Any:
        calls.append(1)
        raise ValueError("no topic yet") if len(calls) < 3 else ConfigError("wrong")

    with pytest.raises(ConfigError, match="wrong"):
        run_with_restarts(start, FixedDelay(9), sleep=lambda _: None)
    assert len(calls) == 3


def test_without_java_only_a_new_process_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    java = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=java))
    try:
        assert World((1, ConnectionRefusedError()), (1, None)).run(FixedDelay(1)), "it still runs"
    finally:
        java.communicate()
    with pytest.raises(ConnectionRefusedError):
        World((1, ConnectionRefusedError()), (1, None)).run(FixedDelay(1))


# --- exit codes


PAGE = (Path(dedup.__file__).parent / "cli/README.md").read_text()


def _numbers(codes: str) -> Iterator[int]:
    """Yield the numbers of "5, 6", "10 to 15" or "10-15"."""
    for first, last in re.findall(r"(\d+)(?:(?: to |-)(\d+))?", codes):
        yield from range(int(first), int(last or first) + 1)


def test_the_help_and_the_page_list_the_codes_of_the_code() -> None:
    known = {code for name, code in vars(failures).items() if name.isupper() and type(code) is int}
    known |= {code for code, *_ in STATUSES.values()}
    assert {failures.TEMPORARY, failures.INTERRUPTED, 10} < known
    shown = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"}).invoke(app, ["--help"]).stdout
    listed = " ".join(shown.split()).partition("Exit codes: ")[2]
    assert {each for part in listed.split(", ") for each in _numbers(part)} == known
    rows = re.findall(r"^\| ([\d, to]+) \| .* \| (yes|no) \|$", PAGE, re.MULTILINE)
    again = {code: told == "yes" for codes, told in rows for code in _numbers(codes)}
    assert set(again) == known
    assert {code for code, start in again.items() if start} == {failures.TEMPORARY}


def test_the_examples_for_supervisors_end_at_the_codes_of_a_run_that_no_start_overcomes() -> None:
    final = {failures.FAILED, failures.USAGE, failures.DAMAGE}
    systemd = re.search(r"^RestartPreventExitStatus=(.*)$", PAGE, re.MULTILINE)
    assert systemd is not None
    assert set(map(int, systemd[1].split())) == final
    assert f"\nSuccessExitStatus={failures.INTERRUPTED}\n" in PAGE
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (rule,) = yaml.safe_load(text)["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["operator"]) == ("FailJob", "In")
    assert set(rule["onExitCodes"]["values"]) == final
