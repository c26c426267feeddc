"""Expressions of classic Spark: `org.apache.spark.sql.internal.ColumnNode`, and Catalyst's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dedup.spark.driver.expression import Words, class_name, each, literal


def read_classic(words: Words, node: Any) -> str:
    """Write down a node of the tree below a Column."""
    kind = class_name(node)
    if kind == "Alias":
        return read_classic(words, node.child())
    if kind == "UnresolvedAttribute":
        return words.column(list(each(node.nameParts())))
    if kind == "Literal":
        return literal(node.value())
    if kind == "Cast":
        mode = node.evalMode()
        tried = mode.isDefined() and class_name(mode.get()) == "Try$"
        return words.cast(read_classic(words, node.child()), node.dataType().simpleString(), tried)
    if kind == "SqlExpression":
        return words.sql(node.expression())
    if kind == "UnresolvedFunction":
        arguments = [read_classic(words, child) for child in each(node.arguments())]
        return words.call(node.functionName(), arguments, distinct=node.isDistinct())
    if kind == "UnresolvedNamedLambdaVariable":
        return words.variable(node.name())
    if kind == "LambdaFunction":
        variables = [read_classic(words, one) for one in each(node.arguments())]
        return f"({', '.join(variables)}) -> {read_classic(words, node.function())}"
    if kind in ("CaseWhenOtherwise", "UnresolvedExtractValue"):
        name = "when" if kind == "CaseWhenOtherwise" else "get"
        return words.call(name, [read_classic(words, child) for child in each(node.children())])
    if kind == "ExpressionColumnNode":
        return _catalyst(words, node.expression())
    if kind == "UpdateFields":
        value = node.valueExpression()
        below = [node.structExpression(), *([value.get()] if value.isDefined() else [])]
        return words.update(node.fieldName(), [read_classic(words, one) for one in below])
    return words.as_printed(kind, str(node.sql()), [read_classic(words, n) for n in _below(node)])


def _catalyst(words: Words, expression: Any) -> str:
    """An expression that Spark wraps as it is: a column of a DataFrame, a Python function."""
    kind = class_name(expression)
    if kind == "ColumnNodeExpression":
        return read_classic(words, expression.node())
    if kind == "UnresolvedAttribute":
        return words.column(list(each(expression.nameParts())))
    path = _path(expression)
    if path:
        return words.column(path)
    children = [_catalyst(words, child) for child in each(expression.children())]
    if kind == "Alias":
        return children[0]
    if kind in ("GetStructField", "GetArrayStructFields"):
        return words.call("get", [*children, literal(_field_name(expression, kind))])
    if kind == "PythonUDF":
        if not expression.udfDeterministic():
            words.out.unstable.add(expression.name())
        return words.call(f"python {expression.name()}", children)
    if kind == "NamedArgumentExpression":
        return f"{expression.key()} => {children[0]}"
    # What it is besides its children only its print tells.
    return words.as_printed(kind, str(expression.sql()), children)


def _path(expression: Any) -> list[str]:
    """A column, or the way to a field of one; empty for anything else."""
    kind = class_name(expression)
    if kind == "AttributeReference":
        return [expression.name()]
    if kind == "Alias":
        return _path(expression.child())
    if kind in ("GetStructField", "GetArrayStructFields"):
        above = _path(expression.child())
        return [*above, _field_name(expression, kind)] if above else []
    return []


def _field_name(expression: Any, kind: str) -> str:
    if kind == "GetArrayStructFields":
        return str(expression.field().name())
    return str(expression.childSchema().fields()[expression.ordinal()].name())


def _below(node: Any) -> Iterator[Any]:
    """Nodes of expressions below one; others, such as a window's frame, are in its print."""
    for child in each(node.children()):
        if hasattr(child, "sql") and class_name(child) not in ("Ascending$", "Descending$"):
            yield child
