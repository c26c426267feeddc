"""Whether an ID or a timestamp comes of chance or of the clock, as far as the plan shows it.

The analysed plan knows what each column is made of, through selects, views, unions and joins, up
to a source or a Python pass. It is no public interface, and Spark Connect does not show it: where
it is another one than expected, nothing is said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame

from dedup.spark.driver.expression import Expression, class_name, each
from dedup.spark.driver.planned import chance_of

_CLOCKS = frozenset({"CurrentTimestamp", "Now", "LocalTimestamp", "CurrentDate", "CurrentTime"})
#: The same as the user calls them, for Spark Connect, where the expression alone is seen.
_CLOCK_FUNCTIONS = frozenset(
    {
        "current_timestamp", "now", "localtimestamp", "current_date", "curdate", "current_time",
        "localtime",
    }
)  # fmt: skip
_INSTEAD = (
    "Use what the record itself carries, or an ID that lasts, of dedup.record_id: "
    "from_columns(...), from_kafka(), from_file()"
)


def why_id_does_not_last(df: DataFrame, given: Column, expression: Expression) -> str | None:
    """Return why records of a stream have another ID when they come again, or None.

    Parameters
    ----------
    df : DataFrame
    given : Column
        The ID.
    expression : Expression
        The same in our words.
    """
    chance, clocks = _sources(df, given)
    if chance:
        return (
            f"{expression.text!r} is made by {chance}, which gives a record another ID when Spark "
            "reads it again, and gives each copy an ID of its own, so that nothing would be a "
            f'duplicate. {_INSTEAD}. Records that have none may go on: null_ids="emit".'
        )
    named = expression.functions & _CLOCK_FUNCTIONS
    if "unix_timestamp()" in expression.text:
        named |= {"unix_timestamp"}
    clocks = clocks or ", ".join(sorted(named))
    if clocks:
        return (
            f"{expression.text!r} is made of the current time ({clocks}), which is another "
            f"one when a copy comes later, so that it would be no duplicate. {_INSTEAD}. How long "
            "an ID is remembered is horizon=."
        )
    return None


def why_time_does_not_last(df: DataFrame, given: Column, expression: Expression) -> str | None:
    """Return why records of a stream have another timestamp when they are read again, or None.

    The current time is no such reason: Spark logs it with the micro-batch.
    """
    chance, _ = _sources(df, given)
    if not chance:
        return None
    return (
        f"{expression.text!r} is made by {chance}, which gives a record another timestamp when "
        "Spark reads it again. Use what the record itself carries, or leave timestamp= away."
    )


def why_number_does_not_last(df: DataFrame, given: Column, expression: Expression) -> str | None:
    """Return why records of a stream have another number or producer when they come again."""
    chance, clocks = _sources(df, given)
    clocks = clocks or ", ".join(sorted(expression.functions & _CLOCK_FUNCTIONS))
    if not chance and not clocks:
        return None
    return (
        f"{expression.text!r} is made by {chance or clocks}, which gives a record another value "
        "when it comes again, so that it would be no duplicate. Use what the producer itself has "
        "written."
    )


#: By the option that is looked at.
WHY_NOT: dict[str, Callable[[DataFrame, Column, Expression], str | None]] = {
    "id": why_id_does_not_last,
    "timestamp": why_time_does_not_last,
    "producer": why_number_does_not_last,
    "partition": why_number_does_not_last,
    "epoch": why_number_does_not_last,
    "sequence": why_number_does_not_last,
}


def _sources(df: DataFrame, given: Column) -> tuple[str, str]:
    """Names of the random functions, and of the clocks, that a column is made by."""
    chance, clocks = set[str](), set[str]()
    try:
        plan = df.select(given)._jdf.queryExecution().analyzed()
        patterns = _patterns(df)
        # Among what Spark replaces by other functions is `aes_encrypt`, deterministic to it.
        hints = (patterns.CURRENT_LIKE(), patterns.RUNTIME_REPLACEABLE())
        if plan.deterministic() and not any(map(plan.containsPattern, hints)):
            return "", ""
        for part in _parts(plan):
            if class_name(part) in _CLOCKS:
                clocks.add(str(part.prettyName()))
            chance.update(chance_of(part))
    except (AttributeError, TypeError, Py4JError):  # Connect, or another Spark
        return "", ""
    return ", ".join(sorted(chance)), ", ".join(sorted(clocks))


def _patterns(df: DataFrame) -> Any:
    jvm: Any = df.sparkSession.sparkContext._jvm
    return jvm.org.apache.spark.sql.catalyst.trees.TreePattern


#: Which field is taken of a struct, and the type of that struct; then which one of that field.
_Taken: TypeAlias = "tuple[tuple[int, str], ...]"
#: What makes the fields of a struct; the other fields of it do not count.
_FIELDS: dict[str, Callable[[Any], Any]] = {
    "CreateNamedStruct": lambda struct: struct.valExprs(),
    "UpdateFields": lambda struct: struct.newExprs(),
}


def _parts(plan: Any) -> Iterator[Any]:
    """All parts of what makes the first column of a plan, through the columns below it."""
    made_of = _definitions(plan)
    waiting: list[tuple[Any, _Taken]] = [(plan.output().apply(0), ())]
    seen = set[tuple[int, _Taken]]()
    while waiting:
        part, taken = waiting.pop()
        kind = class_name(part)
        if kind in ("AttributeReference", "OuterReference"):
            number = part.exprId().id()
            if (number, taken) not in seen:
                seen.add((number, taken))
                waiting += [(one, taken) for one in made_of[number]]
        elif kind == "GetStructField":
            struct = part.child()
            field = (part.ordinal(), struct.dataType().catalogString())
            waiting.append((struct, (field, *taken)))
        elif taken and kind in _FIELDS:
            (ordinal, _), *inner = taken
            waiting.append((_FIELDS[kind](part).apply(ordinal), tuple(inner)))
        else:
            yield part
            waiting += _below_part(part, taken)


def _below_part(part: Any, taken: _Taken) -> list[tuple[Any, _Taken]]:
    """What a part is made of; of what hands on the struct that a field is taken of, that alone."""
    if class_name(part) == "ScalarSubquery":
        return [(part.plan().output().apply(0), taken)]
    children = list(each(part.children()))
    if taken:
        struct = taken[0][1]
        like = (struct, f"array<{struct}>")
        handed = [c for c in children if c.dataType().catalogString() in like]
        if handed:
            return [(child, taken) for child in handed]
    return [(child, ()) for child in children]


def _definitions(plan: Any) -> defaultdict[int, list[Any]]:
    """What makes each column of a plan, by the number that Spark gives the column."""
    made_of = defaultdict[int, list[Any]](list)
    for node in [plan, *_below(plan)]:
        kind = class_name(node)
        if kind in ("Union", "Expand"):
            rows = (
                [child.output() for child in each(node.children())]
                if kind == "Union"
                else list(each(node.projections()))
            )
            for column, *makers in zip(each(node.output()), *map(each, rows), strict=True):
                made_of[column.exprId().id()] += makers
        elif kind == "Generate":
            for column in each(node.generatorOutput()):
                made_of[column.exprId().id()].append(node.generator())
        for expression in each(node.expressions()):
            if class_name(expression) == "Alias":
                made_of[expression.exprId().id()].append(expression.child())
    return made_of


def _below(node: Any) -> Iterator[Any]:
    for child in [*each(node.children()), *each(node.subqueries())]:
        yield child
        yield from _below(child)
