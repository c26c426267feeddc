"""What Spark makes of a DataFrame or an expression: the steps of its plan, by name."""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from dedup.causes import spark_cause
from dedup.errors import ConfigError
from dedup.spark.driver.expression import Expression, class_name, each

#: What a step that an expression brings along does to the rows, where Spark's name says little.
_STEPS = {
    "Generate": "makes several rows of one, or none",
    "Expand": "makes several rows of one",
    "Filter": "drops rows",
    "Aggregate": "makes one value of many rows",
    "Window": "takes its value from other rows",
}
#: Functions that give another value when Spark computes a row again; for Spark Connect, where the
#: plan does not tell.
_UNSTABLE = frozenset(
    {
        "rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle",
        "monotonically_increasing_id", "spark_partition_id", "reflect", "try_reflect",
        "java_method",
        "input_file_block_start", "input_file_block_length",
    }
)  # fmt: skip
#: May draw a vector of its own for each call, and Spark calls it deterministic.
_SALTED = frozenset({"aes_encrypt"})
#: Spark calls it nondeterministic, but a record that is read again is read from the same file.
_STABLE_ALL_THE_SAME = "input_file_name"
#: A tilde marks the steps of a stream.
_STEP_LINE = re.compile(r"^[ :|+-]*~?([A-Z]\w+)", re.M)
_ANALYZED = re.compile(r"== Analyzed Logical Plan ==\n(.*?)(?:\n== |\Z)", re.S)
_CUT_OFF = re.compile(r"\.\.\. \d+ more characters|^Truncated plan of \d+ characters", re.M)


def steps(df: DataFrame) -> Counter[str]:
    """Count the steps of the analysed plan by Spark's names, such as ``EventTimeWatermark``.

    Raises
    ------
    ConfigError
        On Spark Connect, where the plan cannot be made, or the session cuts it off before its end.
    """
    classic = getattr(df, "_jdf", None)
    if classic is not None:
        return Counter(_names(classic.queryExecution().analyzed()))
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text):
            df.explain(extended=True)
    except Exception as error:
        # Spark computes constants meanwhile, rows of a local DataFrame among them.
        raise ConfigError(f"The query cannot be planned: {spark_cause(str(error))}") from error
    if _CUT_OFF.search(text.getvalue()):
        raise ConfigError(
            "spark.sql.maxPlanStringLength is so small that the query's plan cannot be checked. "
            "Set it to 1000000 or more."
        )
    found = _ANALYZED.search(text.getvalue())
    # Its first line is the schema.
    plan = found.group(1).partition("\n")[2] if found else text.getvalue()
    return Counter(_STEP_LINE.findall(plan))


def check_row_by_row(
    selected: DataFrame, before: Counter[str], expression: Expression, option: str
) -> None:
    """Refuse an expression that is not one lasting value of each row.

    Parameters
    ----------
    selected : DataFrame
        A DataFrame with the expression as its only column.
    before : Counter of str
        `steps` of that DataFrame without it.
    expression : Expression
        The same in our words.
    option : str
        The option that it is given for.

    Raises
    ------
    ConfigError
        For generators, aggregates, window functions and nondeterministic functions.
    """
    added = steps(selected) - before
    del added["Project"]
    if added:
        step = next((name for name in _STEPS if name in added), min(added))
        does = _STEPS.get(step, f"needs a step of its own ({step})")
        raise ConfigError(
            f"{option}={expression.text!r} {does}, so it is no value of each record. Make it a "
            "column before the operator (events.withColumn(...), select or join), and name that "
            "column."
        )
    unstable = sorted(_unstable(selected, expression))
    if unstable:
        raise ConfigError(
            f"{option}={expression.text!r} is not the same when Spark computes a record again "
            f"({', '.join(unstable)}), so that a task that is retried would judge other records. "
            "Use what the record itself carries."
        )


def _unstable(selected: DataFrame, expression: Expression) -> set[str]:
    classic = getattr(selected, "_jdf", None)
    salted = expression.functions & _SALTED
    if classic is None:
        return expression.unstable | (expression.functions & _UNSTABLE) | salted
    made = classic.queryExecution().analyzed().expressions().apply(0)
    return set(_all_chance(made, every=bool(salted)))


def _all_chance(expression: Any, *, every: bool) -> Iterator[str]:
    if every or not expression.deterministic():
        yield from chance_of(expression)
        for child in each(expression.children()):
            yield from _all_chance(child, every=every)


def chance_of(expression: Any) -> Iterator[str]:
    """Name of the function, if it is what makes an expression nondeterministic."""
    if class_name(expression) == "AesEncrypt" and _is_salted(expression):
        yield "aes_encrypt"
        return
    if expression.deterministic() or not all(
        c.deterministic() for c in each(expression.children())
    ):
        return
    kind = class_name(expression)
    name = str(expression.name() if kind == "PythonUDF" else expression.prettyName())
    # A Python table function is called nondeterministic unless its author says otherwise.
    if name != _STABLE_ALL_THE_SAME and kind != "PythonUDTF":
        yield name


def _is_salted(encryption: Any) -> bool:
    """Whether it draws its vector: it is given none, and its mode needs one."""
    mode, _, vector, _ = list(each(encryption.children()))[2:6]
    if mode.foldable() and str(mode.eval(None)).upper() == "ECB":
        return False
    return bool(vector.foldable()) and not vector.eval(None)


def _names(plan: Any) -> Iterator[str]:
    yield class_name(plan)
    for child in each(plan.children()):
        yield from _names(child)
