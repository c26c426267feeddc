"""Checks, in a DataFrame's plan, that an expression gives each row one value that never changes.

A step is a node of Spark's analysed plan, such as ``Project`` or ``Filter``.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from dedup.errors import ConfigError
from dedup.errors.cause import spark_cause
from dedup.spark.driver.expression import CLOCK_KEYWORDS, Expression, class_name, each

#: Functions that may return another value when Spark computes a record again. Spark calls
#: `aes_encrypt` deterministic, but the function draws a random vector unless the user gives one.
_RANDOM = frozenset({
    "rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle",
    "monotonically_increasing_id", "spark_partition_id", "reflect", "try_reflect",
    "java_method", "aes_encrypt", "input_file_block_start", "input_file_block_length",
})  # fmt: skip
_CLOCKS = CLOCK_KEYWORDS | {"now", "curdate"}
#: Options that identify a record, so their values must not depend on the current time. A timestamp
#: may depend on the current time, because Spark logs the time with the micro-batch.
_IDENTITY = ("id", "producer", "partition", "epoch", "sequence")
#: Spark calls this function nondeterministic, but it returns the same file when Spark reads the
#: record again.
_STABLE_ALL_THE_SAME = "input_file_name"
#: Steps that make no column.
_NO_COLUMNS = ("Filter", "CollectMetrics")
#: A line of a printed plan, with the name of its step. A tilde marks the steps of a stream.
_STEP_LINE = re.compile(r"^[ :|+-]*~?([A-Z]\w+)", re.M)
#: The analysed plan in the text of `explain`, after the line with the schema. The title of the next
#: plan is missing if Spark cuts off the text.
_ANALYZED = re.compile(r"== Analyzed Logical Plan ==\n.*?\n(.*?)\n== ", re.S)


def steps(df: DataFrame) -> Counter[str]:
    """Count the steps of the analysed plan by Spark's names, such as ``EventTimeWatermark``."""
    classic = getattr(df, "_jdf", None)
    if classic is not None:
        return Counter(_names(classic.queryExecution().analyzed()))
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text):
            df.explain(extended=True)
    except Exception as error:
        # Planning already computes constants, such as the rows of a local DataFrame, and may fail.
        raise ConfigError(f"The query cannot be planned: {spark_cause(str(error))}") from error
    match = _ANALYZED.search(text.getvalue())
    if match is None:
        raise ConfigError(
            "spark.sql.maxPlanStringLength is so small that the query's plan cannot be checked. "
            "Set it to 1000000 or more."
        )
    return Counter(_STEP_LINE.findall(match[1]))


def check_row_by_row(
    selected: DataFrame, before: Counter[str], expression: Expression, option: str
) -> None:
    """Reject an expression that does not give each row one value that never changes.

    Generators, aggregates, window functions and random functions are rejected. A stream also
    rejects an ID that depends on the current time. `selected` has the expression as its only
    column, and `before` counts the `steps` of the DataFrame before this column was added.
    """
    added = steps(selected) - before
    del added["Project"]
    if added:
        raise ConfigError(
            f"{option}={expression.text!r} adds a step to Spark's plan ({', '.join(sorted(added))})"
            ", which may drop, repeat or combine rows. So it is not a value of each record. Make "
            "it a column before the operator (events.withColumn(...), select or join), and name "
            "that column."
        )
    why = _why_unstable(selected, expression, option)
    if why is not None:
        instead = "Use what the record itself carries"
        if option == "id":
            instead += (
                ", or an ID of dedup.record_id: from_columns(...), from_kafka(), from_file(). "
                'Records without an ID may pass through: null_ids="emit"'
            )
        raise ConfigError(f"{option}={expression.text!r} {why} {instead}.", remedy="unstable-id")


def _why_unstable(selected: DataFrame, expression: Expression, option: str) -> str | None:
    """Return why a record's value may change when Spark reads it again, or None."""
    random = expression.unstable | (expression.functions & _RANDOM)
    classic = getattr(selected, "_jdf", None)
    if not random and classic is not None and _STABLE_ALL_THE_SAME not in expression.functions:
        made = classic.queryExecution().analyzed().expressions().apply(0)
        if not made.deterministic():
            random = {"Spark calls it nondeterministic"}
    if random:
        return (
            f"is not the same when Spark computes a record again ({', '.join(sorted(random))}): "
            "a task that is retried would judge other records."
        )
    clocks = expression.functions & _CLOCKS
    if "unix_timestamp()" in expression.text:
        clocks |= {"unix_timestamp"}
    if clocks and option in _IDENTITY and selected.isStreaming:
        return (
            f"is made of the current time ({', '.join(sorted(clocks))}): a copy that arrives later "
            "would have another value, so it would not be a duplicate."
        )
    return None


def makes_random_columns(df: DataFrame) -> bool:
    """Return whether a step makes a column that Spark calls nondeterministic.

    Returns False on Spark Connect, which hides the plan.
    """
    classic = getattr(df, "_jdf", None)
    return classic is not None and _is_random(classic.queryExecution().analyzed())


def _is_random(plan: Any) -> bool:
    if plan.deterministic():
        return False
    if class_name(plan) not in _NO_COLUMNS and not all(
        expression.deterministic() for expression in each(plan.expressions())
    ):
        return True
    return any(_is_random(child) for child in each(plan.children()))


def _names(plan: Any) -> Iterator[str]:
    yield class_name(plan)
    for child in each(plan.children()):
        yield from _names(child)
