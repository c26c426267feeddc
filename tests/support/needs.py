"""What tests do if something that they need is missing, and what the reader of a run sees of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, NoReturn

import pytest

#: Tests whose SQL, or whose part of PySpark, is newer than Spark 3.5.
needs_spark_4 = pytest.mark.skipif(
    version("pyspark").startswith("3."), reason="PySpark 3.5 lacks what the test is about"
)

needs_rescale = pytest.mark.skipif(
    version("pyspark").startswith(("3.", "4.0", "4.1")),
    reason="PySpark before 4.2 cannot give a state other partitions",
)


def do_without(variable: str, reason: str) -> NoReturn:
    """Fail the running test, or skip it if the user has set this variable to 1.

    So no test passes only because it did not run.
    """
    if os.environ.get(variable) == "1":
        pytest.skip(f"{variable}=1 is set: {reason}")
    pytest.fail(f"{reason}. To run the other tests alone, set {variable}=1.", pytrace=False)


def not_tested(skipped: Iterable[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """Return a line for each reason for which tests were skipped, the commonest first."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in skipped
        if isinstance(report.longrepr, tuple)
    )
    return [f"{count:>5}  {reason}" for reason, count in reasons.most_common()]


def long(*values: Any) -> Any:
    """Return parameters of a case that takes long: it runs with CI_FULL=1 only."""
    return pytest.param(*values, marks=pytest.mark.slow)


def of_spark_4(*values: Any) -> Any:
    """Return parameters of a case that needs Spark 4."""
    return pytest.param(*values, marks=needs_spark_4)


def some_long(values: Sequence[Any], *quick: Any) -> list[Any]:
    """Return one parameter for each case; those that are not `quick` run with CI_FULL=1 only."""
    return [value if value in quick else long(value) for value in values]
