"""What an expression does, written so that it reads the same in every release and on Connect.

Spark prints expressions in one way today and in another tomorrow, and numbers the variables of
lambdas anew in each process. A query's ID must be compared over years, so it is written from the
calls that the user made: functions with their arguments, casts, literals, columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pyspark.sql import Column, DataFrame

_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
_QUOTED_PART = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")
#: SQL that is only a column's name, and an alias at the end of any.
_SQL_NAME = re.compile(r"[^\W\d]\w*|`(?:[^`]|``)*`")
_SQL_ALIAS = re.compile(r"\s+as\s+(?:[^\W\d]\w*|`(?:[^`]|``)*`)$", re.IGNORECASE)
#: Functions that carry timestamps without asking for the time zone.
_CARRY_TIMESTAMPS = frozenset(
    {"timestamp_millis", "timestamp_micros", "timestamp_seconds", "coalesce", "least", "greatest"}
)
#: Functions that know no time at all, whatever text they are given.
_TIMELESS = frozenset(
    {
        "lower", "upper", "lcase", "ucase", "initcap", "trim", "ltrim", "rtrim", "btrim", "lpad",
        "rpad", "left", "right", "substr", "substring", "substring_index", "split", "split_part",
        "regexp_replace", "regexp_extract", "replace", "translate", "reverse", "repeat", "length",
        "concat", "concat_ws", "array", "array_join", "get", "element_at", "md5", "sha", "sha1",
        "sha2", "crc32", "hash", "xxhash64", "hex", "unhex", "base64", "unbase64", "encode",
        "decode", "coalesce", "nullif", "ifnull", "nvl", "when", "if", "least", "greatest", "+",
        "-", "*", "/", "%", "negative", "abs", "floor", "ceil", "round", "in", "=", "<", ">", "<=",
        ">=", "and", "or", "not", "isnull", "isnotnull", "getbit", "transform", "filter",
    }
)  # fmt: skip
#: Functions of texts, numbers or bytes that take each as it is, whatever
#: ``spark.sql.ansi.enabled`` says.
_PLAIN = frozenset(
    {
        "lower", "upper", "lcase", "ucase", "initcap", "trim", "ltrim", "rtrim", "btrim", "reverse",
        "length", "concat", "concat_ws", "md5", "sha", "sha1", "sha2", "crc32", "hash", "xxhash64",
        "hex", "unhex", "base64", "unbase64", "encode", "decode", "regexp_replace",
        "regexp_extract", "replace", "translate", "split", "split_part", "substring_index",
        "timestamp_millis", "timestamp_micros", "timestamp_seconds",
    }
)  # fmt: skip
#: One name for what the two kinds of sessions call differently.
_SAME_FUNCTION = {"==": "=", "!": "not"}
_SAME_TYPE = {
    "long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint", "str": "string",
    "timestamp_ltz": "timestamp",
}  # fmt: skip


@dataclass(slots=True)
class Expression:
    """An expression in our own words.

    Parameters
    ----------
    text : str
        Such as ``lower(order_id)``.
    columns : list of str
        What it reads, as `pyspark.sql.functions.col` takes it.
    functions : set of str
        Names of the functions that it calls, in lower case; those of SQL among them.
    is_order : bool
        It is a sort order, not a value.
    unstable : set of str
        Python functions that their author calls nondeterministic; on Spark Connect alone.
    casts : set of str
        Types that it casts to.
    sql : list of str
        Fragments of SQL that it holds; which columns they read is not known.
    """

    text: str = ""
    columns: list[str] = field(default_factory=list)
    functions: set[str] = field(default_factory=set)
    is_order: bool = False
    unstable: set[str] = field(default_factory=set)
    casts: set[str] = field(default_factory=set)
    sql: list[str] = field(default_factory=list)

    def depends_on_zone(self, kinds: list[str]) -> bool:
        """Whether the session's time zone may change what comes out.

        Parameters
        ----------
        kinds : list of str
            Spark types of the columns that it reads and of its result.
        """
        if not (self.functions or self.casts or self.sql):
            return False
        if self.functions <= _CARRY_TIMESTAMPS and not (self.casts or self.sql):
            return False
        timed = any("timestamp" in kind for kind in (*kinds, *self.casts))
        return bool(timed or self.sql or self.functions - _TIMELESS)

    @property
    def depends_on_ansi(self) -> bool:
        """Whether ``spark.sql.ansi.enabled`` may change what comes out.

        It decides what a text beside a number becomes, for example.
        """
        return bool(self.casts or self.sql or self.functions - _PLAIN)


def read_expression(given: Column, df: DataFrame, *, case_sensitive: bool) -> Expression:
    """Read what a Column does, without its alias.

    Parameters
    ----------
    given : Column
        Of classic Spark or of Spark Connect.
    df : DataFrame
        What it is applied to.
    case_sensitive : bool
        Whether the session tells names apart by case; where not, they come in lower case.
    """
    made = _Reader(given, df.columns, case_sensitive)
    node = getattr(given, "_jc", None)
    if node is not None:
        made.out.text = made.classic(node.node())
    else:
        connect: Any = given
        made.out.text = made.connect(connect.to_plan(df.sparkSession.client))
    made.out.is_order = made.out.text.startswith(("SortOrder(", "sort_order("))
    return made.out


class _Reader:
    def __init__(self, given: Column, columns: list[str], case_sensitive: bool) -> None:
        self.out = Expression()
        self._given = given
        self._known = {self._fold(name, case_sensitive) for name in columns}
        self._case_sensitive = case_sensitive
        self._variables: dict[str, str] = {}

    @staticmethod
    def _fold(name: str, case_sensitive: bool) -> str:
        return name if case_sensitive else name.lower()

    # --- classic: org.apache.spark.sql.internal.ColumnNode

    def classic(self, node: Any) -> str:
        kind = _class(node)
        if kind == "Alias":
            return self.classic(node.child())
        if kind == "UnresolvedAttribute":
            return self._column(list(_each(node.nameParts())))
        if kind == "Literal":
            return _literal(node.value())
        if kind == "Cast":
            mode = node.evalMode()
            tried = mode.isDefined() and _class(mode.get()) == "Try$"
            return self._cast(self.classic(node.child()), node.dataType().simpleString(), tried)
        if kind == "SqlExpression":
            return self._sql(node.expression())
        if kind == "UnresolvedFunction":
            arguments = [self.classic(child) for child in _each(node.arguments())]
            return self._call(node.functionName(), arguments, distinct=node.isDistinct())
        if kind == "UnresolvedNamedLambdaVariable":
            return self._variable(node.name())
        if kind == "LambdaFunction":
            variables = [self.classic(one) for one in _each(node.arguments())]
            return f"({', '.join(variables)}) -> {self.classic(node.function())}"
        if kind in ("CaseWhenOtherwise", "UnresolvedExtractValue"):
            name = "when" if kind == "CaseWhenOtherwise" else "get"
            return self._call(name, [self.classic(child) for child in _each(node.children())])
        if kind == "ExpressionColumnNode":
            return self._catalyst(node.expression())
        if kind == "UpdateFields":
            value = node.valueExpression()
            below = [node.structExpression(), *([value.get()] if value.isDefined() else [])]
            return self._update(node.fieldName(), [self.classic(one) for one in below])
        return self._as_printed(kind, str(node.sql()), [self.classic(n) for n in _below(node)])

    def _catalyst(self, expression: Any) -> str:
        """An expression that Spark wraps as it is: a column of a DataFrame, a Python function."""
        kind = _class(expression)
        if kind == "ColumnNodeExpression":
            return self.classic(expression.node())
        if kind == "UnresolvedAttribute":
            return self._column(list(_each(expression.nameParts())))
        path = _path(expression)
        if path:
            return self._column(path)
        children = [self._catalyst(child) for child in _each(expression.children())]
        if kind == "Alias":
            return children[0]
        if kind in ("GetStructField", "GetArrayStructFields"):
            return self._call("get", [*children, _literal(_field_name(expression, kind))])
        if kind == "PythonUDF":
            return self._call(f"python {expression.name()}", children)
        if kind == "NamedArgumentExpression":
            return f"{expression.key()} => {children[0]}"
        # What it is besides its children only its print tells.
        return self._as_printed(kind, str(expression.sql()), children)

    # --- Spark Connect: spark.connect.Expression

    def connect(self, message: Any) -> str:
        kind = message.WhichOneof("expr_type")
        value = getattr(message, kind)
        if kind == "alias":
            return self.connect(value.expr)
        if kind == "unresolved_attribute":
            return self._column(_parts(value.unparsed_identifier))
        if kind == "literal":
            return _connect_literal(value)
        if kind == "cast":
            tried = value.eval_mode == type(value).EVAL_MODE_TRY
            return self._cast(self.connect(value.expr), _connect_type(value), tried)
        if kind == "expression_string":
            return self._sql(value.expression)
        if kind in ("unresolved_function", "call_function"):
            arguments = [self.connect(one) for one in value.arguments]
            distinct = kind == "unresolved_function" and value.is_distinct
            return self._call(value.function_name, arguments, distinct=distinct)
        if kind == "unresolved_named_lambda_variable":
            return self._variable(".".join(value.name_parts))
        if kind == "lambda_function":
            variables = [self._variable(".".join(one.name_parts)) for one in value.arguments]
            return f"({', '.join(variables)}) -> {self.connect(value.function)}"
        if kind == "unresolved_extract_value":
            return self._call("get", [self.connect(value.child), self.connect(value.extraction)])
        if kind == "common_inline_user_defined_function":
            arguments = [self.connect(one) for one in value.arguments]
            if not value.deterministic:
                self.out.unstable.add(value.function_name)
            return self._call(f"python {value.function_name}", arguments)
        if kind == "update_fields":
            below = [value.struct_expression]
            if value.HasField("value_expression"):
                below.append(value.value_expression)
            return self._update(value.field_name, [self.connect(one) for one in below])
        if kind == "named_argument_expression":
            return f"{value.key} => {self.connect(value.value)}"
        # The message itself says from which line of the program it comes.
        return self._as_printed(kind, str(self._given), [])

    # --- both

    def _column(self, parts: list[str]) -> str:
        if not self._case_sensitive:
            parts = [part.lower() for part in parts]
        name = column_text(parts)
        if name not in self.out.columns:
            self.out.columns.append(name)
        return name

    def _as_printed(self, kind: str, printed: str, below: list[str]) -> str:
        """A step that has no words of ours: as Spark prints it, and what it is made of."""
        self.out.functions.add(kind)
        for name, ours in self._variables.items():
            printed = re.sub(rf"\b{re.escape(name)}\b", ours, printed)
        return f"{kind}({', '.join(below)}): {' '.join(printed.split())}"

    def _update(self, name: str, below: list[str]) -> str:
        """A struct with a field that is added, replaced or dropped."""
        return self._call("update", [below[0], _literal(name), *below[1:]])

    def _call(self, name: str, arguments: list[str], *, distinct: bool = False) -> str:
        name = name if name.startswith("python ") else name.lower()
        name = _SAME_FUNCTION.get(name, name)
        self.out.functions.add(name)
        return f"{name}({'distinct ' if distinct else ''}{', '.join(arguments)})"

    def _cast(self, value: str, kind: str, tried: bool) -> str:
        kind = "".join(kind.lower().split()) if "(" in kind else kind.lower()
        kind = _SAME_TYPE.get(kind, kind)
        self.out.casts.add(kind)
        return f"{'try_cast' if tried else 'cast'}({value} as {kind})"

    def _sql(self, text: str) -> str:
        text = _SQL_ALIAS.sub("", text.strip())
        if _SQL_NAME.fullmatch(text):
            (name,) = _parts(text)
            if self._fold(name, self._case_sensitive) in self._known:
                return self._column([name])
        self.out.sql.append(text)
        self.out.functions.update(re.findall(r"(\w+)\s*\(", text.lower()))
        return f"sql({text})"

    def _variable(self, name: str) -> str:
        """A lambda's variable; Spark numbers them through all lambdas of a process."""
        # No column can be written like it.
        return self._variables.setdefault(name, f"${len(self._variables)}")


def column_text(parts: list[str]) -> str:
    """Write a column's name, or the path to a field of it, as `F.col` takes it."""
    return ".".join(
        part if _PLAIN_NAME.fullmatch(part) else "`" + part.replace("`", "``") + "`"
        for part in parts
    )


def mentioned(text: str, names: list[str]) -> Iterator[str]:
    """Those of the names that a fragment of SQL may read."""
    words = set(re.findall(r"`(?:[^`]|``)*`|\w+", text.lower()))
    for name in names:
        if name.lower() in words or column_text([name]).lower() in words:
            yield name


def _parts(text: str) -> list[str]:
    return [
        quoted.replace("``", "`") if quoted else plain
        for quoted, plain in _QUOTED_PART.findall(text)
    ]


def _literal(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return f"0x{bytes(value).hex()}"
    if value is None or isinstance(value, (str, bool, int, float)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Decimal):
        return f"decimal {value}"
    return f"{_class(value).lower()} {value.toString()}"


def _connect_literal(literal: Any) -> str:
    kind = literal.WhichOneof("literal_type")
    if kind in ("null", None):
        return "null"
    value = getattr(literal, kind)
    if kind == "decimal":
        return f"decimal {value.value}"
    if kind in ("string", "boolean", "binary", "byte", "short", "integer", "long", "double"):
        return _literal(value)
    return f"{kind} {' '.join(str(value).split())}"


def _connect_type(cast: Any) -> str:
    if cast.WhichOneof("cast_to_type") == "type_str":
        return str(cast.type_str)
    from pyspark.sql.connect.types import proto_schema_to_pyspark_data_type

    return str(proto_schema_to_pyspark_data_type(cast.type).simpleString())


def _path(expression: Any) -> list[str]:
    """A column, or the way to a field of one; empty for anything else."""
    kind = _class(expression)
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
    for child in _each(node.children()):
        if hasattr(child, "sql") and _class(child) not in ("Ascending$", "Descending$"):
            yield child


def _class(value: Any) -> str:
    return str(value.getClass().getSimpleName())


def _each(sequence: Any) -> Iterator[Any]:
    for position in range(sequence.size()):
        yield sequence.apply(position)
