"""Writes expressions as text that stays the same in every release of Spark and on Connect.

Spark's own text of an expression changes with releases, and Spark numbers the variables of lambdas
differently in each process. The birth certificate keeps the text of a query's ID for years. So our
text has the calls that the user made: functions with their arguments, casts, literals, columns. One
reader is for classic sessions (`org.apache.spark.sql.internal.ColumnNode` and Catalyst), another
for Connect (`spark.connect.Expression`). Both return the same text. Spark 3.5 has only Catalyst's
expressions. Of most calls they give the same text, but not of SQL, which arrives parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pyspark.sql import Column, DataFrame

from dedup.spark.versions import IS_SPARK_3

_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
_QUOTED_PART = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")
#: Patterns of SQL that is only a column's name, and of an alias at the end of SQL.
_SQL_NAME = re.compile(r"[^\W\d]\w*|`(?:[^`]|``)*`")
_SQL_ALIAS = re.compile(r"\s+as\s+(?:[^\W\d]\w*|`(?:[^`]|``)*`)$", re.IGNORECASE)
_EPOCH_TIMES = {"timestamp_millis", "timestamp_micros", "timestamp_seconds"}
_OF_TEXTS = {
    "lower", "upper", "lcase", "ucase", "initcap", "trim", "ltrim", "rtrim", "btrim", "reverse",
    "length", "concat", "concat_ws", "md5", "sha", "sha1", "sha2", "crc32", "hash", "xxhash64",
    "hex", "unhex", "base64", "unbase64", "encode", "decode", "regexp_replace", "regexp_extract",
    "replace", "translate", "split", "split_part", "substring_index",
}  # fmt: skip
#: Functions that pass timestamps through without using the time zone.
_CARRY_TIMESTAMPS = _EPOCH_TIMES | {"coalesce", "least", "greatest"}
#: Functions that never parse or print a time.
_TIMELESS = _OF_TEXTS | {
    "lpad", "rpad", "left", "right", "substr", "substring", "repeat", "array", "array_join", "get",
    "element_at", "coalesce", "nullif", "ifnull", "nvl", "when", "if", "least", "greatest", "+",
    "-", "*", "/", "%", "negative", "abs", "floor", "ceil", "round", "in", "=", "<", ">", "<=",
    ">=", "and", "or", "not", "isnull", "isnotnull", "getbit", "transform", "filter",
}  # fmt: skip
#: Functions whose results do not depend on ``spark.sql.ansi.enabled``.
_PLAIN = _OF_TEXTS | _EPOCH_TIMES
#: SQL functions that return the current time and may be written without parentheses.
CLOCK_KEYWORDS = frozenset(
    {"current_timestamp", "current_date", "current_time", "localtimestamp", "localtime"}
)
#: Our name for functions and types that classic sessions and Connect name differently.
_SAME_FUNCTION = {"==": "=", "!": "not"}
_SAME_TYPE = {
    "long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint", "str": "string",
    "timestamp_ltz": "timestamp",
}  # fmt: skip
#: Names that Catalyst gives to operators.
_CATALYST_NAMES = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "remainder": "%", "equalto": "=",
    "equalnullsafe": "<=>", "greaterthan": ">", "greaterthanorequal": ">=", "lessthan": "<",
    "lessthanorequal": "<=", "bitwiseand": "&", "bitwiseor": "|", "bitwisexor": "^",
    "unaryminus": "negative", "casewhen": "when", "unresolvedextractvalue": "get",
}  # fmt: skip
#: What an expression of Catalyst holds besides its inputs, unless the user asks for more.
_USUAL = {"xxhash64": "42", "hash": "42", "like": "\\", "to_timestamp": "TimestampType"}
_SUBQUERIES = {"ScalarSubquery", "Exists", "ListQuery", "LateralSubquery"}
_SQL_LITERAL = re.compile(r"\w+ '(.*)'")


@dataclass(slots=True)
class Expression:
    """An expression as text, such as ``lower(order_id)``, and the parts that the text names."""

    text: str = ""
    #: Columns that the expression reads. Keys are names in the text, values are for `F.col`.
    columns: dict[str, str] = field(default_factory=dict)
    #: Functions that the expression or a fragment of SQL in it calls, in lower case.
    functions: set[str] = field(default_factory=set)
    #: Whether the expression is a sort order, not a value.
    is_order: bool = False
    #: Python functions that the user declared nondeterministic.
    unstable: set[str] = field(default_factory=set)
    #: Types that the expression casts to.
    casts: set[str] = field(default_factory=set)
    #: Fragments of SQL. We do not know which columns they read.
    sql: list[str] = field(default_factory=list)

    def depends_on_zone(self, kinds: list[str]) -> bool:
        """Return whether the zone may change the result, given the types of inputs and result."""
        if not (self.functions or self.casts or self.sql):
            return False
        if self.functions <= _CARRY_TIMESTAMPS and not (self.casts or self.sql):
            return False
        timed = any("timestamp" in kind for kind in (*kinds, *self.casts))
        return bool(timed or self.sql or self.functions - _TIMELESS)

    @property
    def depends_on_ansi(self) -> bool:
        """Return whether ``spark.sql.ansi.enabled`` may change the result."""
        return bool(self.casts or self.sql or self.functions - _PLAIN)


class _TextWriter:
    """Writes an expression part by part, and adds each function, column and cast to `out`."""

    def __init__(self, column: Column, columns: list[str], case_sensitive: bool) -> None:
        self.out = Expression()
        self.given = column
        self._case_sensitive = case_sensitive
        self._known = set(map(self._fold, columns))
        self._variables: dict[str, str] = {}
        #: Variables of the lambdas around an expression of Spark 3.5.
        self.bound: frozenset[str] = frozenset()

    def _fold(self, name: str) -> str:
        return name if self._case_sensitive else name.lower()

    def column(self, parts: list[str]) -> str:
        """Return the SQL that names a column, or a field inside it. The column comes first."""
        written = column_text(parts)
        name = column_text([self._fold(part) for part in parts])
        self.out.columns.setdefault(name, written)
        return name

    def as_printed(self, kind: str, printed: str, below: list[str]) -> str:
        """Return Spark's text of an expression of unknown kind, with our texts of its inputs."""
        self.out.functions.add(kind)
        for name, ours in self._variables.items():
            printed = re.sub(rf"\b{re.escape(name)}\b", ours, printed)
        return f"{kind}({', '.join(below)}): {' '.join(printed.split())}"

    def update(self, name: str, below: list[str]) -> str:
        return self.call("update", [below[0], literal(name), *below[1:]])

    def call(self, name: str, arguments: list[str], *, distinct: bool = False) -> str:
        name = name if name.startswith("python ") else name.lower()
        name = _SAME_FUNCTION.get(name, name)
        self.out.functions.add(name)
        return f"{name}({'distinct ' if distinct else ''}{', '.join(arguments)})"

    def cast(self, value: str, kind: str, tried: bool) -> str:
        """Return the text of a cast. If `tried`, a value that cannot be cast becomes null."""
        kind = "".join(kind.lower().split()) if "(" in kind else kind.lower()
        kind = _SAME_TYPE.get(kind, kind)
        self.out.casts.add(kind)
        return f"{'try_cast' if tried else 'cast'}({value} as {kind})"

    def sql(self, text: str) -> str:
        """Return the text of a fragment of SQL. A fragment may be only a column's name."""
        text = _SQL_ALIAS.sub("", text.strip())
        if _SQL_NAME.fullmatch(text):
            (name,) = parts(text)
            if self._fold(name) in self._known:
                return self.column([name])
        self.out.sql.append(text)
        self.out.functions.update(re.findall(r"(\w+)\s*\(", text.lower()))
        words = set(re.findall(r"\w+", text.lower()))
        self.out.functions |= (words & CLOCK_KEYWORDS) - self._known
        return f"sql({text})"

    def column_or_clock(self, parts: list[str]) -> str:
        """Return the text of a name in SQL, which may mean a clock."""
        is_clock = len(parts) == 1 and parts[0].lower() in CLOCK_KEYWORDS - self._known
        return self.call(parts[0], []) if is_clock else self.column(parts)

    def variable(self, name: str) -> str:
        """Return our name of a lambda's variable. Spark's name differs between processes."""
        # The text of a column never begins with a dollar sign.
        return self._variables.setdefault(name, f"${len(self._variables)}")


def read_expression(column: Column, df: DataFrame, *, case_sensitive: bool) -> Expression:
    """Return a Column's expression without alias, in lower case unless `case_sensitive`."""
    writer = _TextWriter(column, df.columns, case_sensitive)
    node = getattr(column, "_jc", None)
    if node is not None:
        writer.out.text = (
            _catalyst(writer, node.expr()) if IS_SPARK_3 else _classic(writer, node.node())
        )
    else:
        connect: Any = column
        writer.out.text = _connect(writer, connect.to_plan(df.sparkSession.client))
    writer.out.is_order = writer.out.text.startswith(("SortOrder(", "sort_order("))
    return writer.out


def _classic(writer: _TextWriter, node: Any) -> str:
    kind = class_name(node)
    if kind == "Alias":
        return _classic(writer, node.child())
    if kind == "UnresolvedAttribute":
        return writer.column(list(each(node.nameParts())))
    if kind == "Literal":
        return literal(node.value())
    if kind == "Cast":
        mode = node.evalMode()
        tried = mode.isDefined() and class_name(mode.get()) == "Try$"
        return writer.cast(_classic(writer, node.child()), node.dataType().simpleString(), tried)
    if kind == "SqlExpression":
        return writer.sql(node.expression())
    if kind == "UnresolvedFunction":
        arguments = [_classic(writer, child) for child in each(node.arguments())]
        return writer.call(node.functionName(), arguments, distinct=node.isDistinct())
    if kind == "UnresolvedNamedLambdaVariable":
        return writer.variable(node.name())
    if kind == "LambdaFunction":
        variables = [_classic(writer, one) for one in each(node.arguments())]
        return f"({', '.join(variables)}) -> {_classic(writer, node.function())}"
    if kind in ("CaseWhenOtherwise", "UnresolvedExtractValue"):
        name = "when" if kind == "CaseWhenOtherwise" else "get"
        return writer.call(name, [_classic(writer, child) for child in each(node.children())])
    if kind == "ExpressionColumnNode":
        return _catalyst(writer, node.expression())
    if kind == "UpdateFields":
        value = node.valueExpression()
        below = [node.structExpression(), *([value.get()] if value.isDefined() else [])]
        return writer.update(node.fieldName(), [_classic(writer, one) for one in below])
    return writer.as_printed(kind, str(node.sql()), [_classic(writer, n) for n in _below(node)])


def _catalyst(writer: _TextWriter, expression: Any) -> str:
    """Return the text of an expression of Catalyst, such as a call of a Python function."""
    kind = class_name(expression)
    if kind == "ColumnNodeExpression":
        return _classic(writer, expression.node())
    if kind == "UnresolvedAttribute":
        return writer.column_or_clock(list(each(expression.nameParts())))
    path = _path(expression)
    if path:
        return writer.column(path)
    if IS_SPARK_3 and kind == "LambdaFunction":
        return _catalyst_lambda(writer, expression)
    children = [_catalyst(writer, child) for child in each(expression.children())]
    if kind == "Alias":
        return children[0]
    if kind in ("GetStructField", "GetArrayStructFields"):
        return writer.call("get", [*children, literal(_field_name(expression, kind))])
    if kind == "PythonUDF":
        if not expression.udfDeterministic():
            writer.out.unstable.add(expression.name())
        return writer.call(f"python {expression.name()}", children)
    if kind == "NamedArgumentExpression":
        return f"{expression.key()} => {children[0]}"
    if IS_SPARK_3 and kind != "SortOrder":
        return _catalyst_call(writer, kind, expression, children)
    # Only Spark's text shows what the expression holds besides its children.
    return writer.as_printed(kind, str(expression.sql()), children)


def _catalyst_call(writer: _TextWriter, kind: str, expression: Any, children: list[str]) -> str:
    """Return the text of an expression of Spark 3.5. Later releases keep the user's call of it."""
    if kind == "Literal":
        return _catalyst_literal(expression)
    if kind in _SUBQUERIES:
        return writer.sql(f"{kind} {expression.plan().toString()}")
    if kind == "ExpressionWithUnresolvedIdentifier":
        return writer.sql(f"identifier({', '.join(children)})")
    if kind == "UnresolvedStar":
        return writer.as_printed(kind, str(expression.toString()), children)
    if kind == "Cast":
        tried = str(expression.evalMode()) == "TRY"
        return writer.cast(children[0], expression.dataType().simpleString(), tried)
    if kind == "UnresolvedFunction":
        name = ".".join(each(expression.nameParts()))
        return writer.call(name, children, distinct=expression.isDistinct())
    if kind == "UnresolvedNamedLambdaVariable":
        name, *fields = each(expression.nameParts())
        if name not in writer.bound:  # SQL calls every name in the body of a lambda a variable
            return writer.column_or_clock([name, *fields])
        text = writer.variable(name)
        for part in fields:
            text = writer.call("get", [text, literal(part)])
        return text
    if kind == "CreateNamedStruct":
        values = list(each(expression.children()))[1::2]
        named = [
            f"{text} as {column_text([value.name()])}" if class_name(value) == "Alias" else text
            for value, text in zip(values, children[1::2], strict=True)
        ]
        return writer.call("struct", named)
    name = str(expression.prettyName())
    usual = _USUAL.get(name)
    held = map(expression.productElement, range(expression.productArity()))
    others = [_held(value) for value in held if not _is_input(value) and str(value) != usual]
    if name == "regexp_replace" and children[3] == "1":
        del children[3]
    return writer.call(_CATALYST_NAMES.get(name, name), [*children, *others])


def _catalyst_lambda(writer: _TextWriter, expression: Any) -> str:
    arguments = [".".join(each(one.nameParts())) for one in each(expression.arguments())]
    variables = [writer.variable(name) for name in arguments]
    outside, writer.bound = writer.bound, writer.bound | {*arguments}
    body = _catalyst(writer, expression.function())
    writer.bound = outside
    return f"({', '.join(variables)}) -> {body}"


def _is_input(value: Any) -> bool:
    """Return whether a part of an expression is an input, or comes from the session's settings."""
    if not hasattr(value, "getClass"):
        return isinstance(value, bool)
    name = str(value.getClass().getName())
    if name.startswith(("scala.None", "scala.Enumeration")) or _is_expression(value):
        return True
    if name == "scala.Some":
        return _is_input(value.get())
    if name == "scala.Tuple2":
        return _is_input(value._1())
    # What is left are options, or texts such as the patterns of LIKE ANY.
    return name.startswith("scala.collection.") and (value.isEmpty() or _is_input(value.head()))


def _is_expression(value: Any) -> bool:
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    kind = "org.apache.spark.sql.catalyst.expressions.Expression"
    return bool(is_instance_of(SparkContext._gateway, value, kind))


def _held(value: Any) -> str:
    """Return the text of what an expression holds besides its inputs, such as options."""
    name = str(value.getClass().getName()) if hasattr(value, "getClass") else ""
    if not name.startswith("scala.collection."):
        return literal(value)
    if "Map" in name:
        entries = sorted((str(one._1()), str(one._2())) for one in each(value.toSeq()))
        return f"map({', '.join(literal(text) for entry in entries for text in entry)})"
    return f"array({', '.join(literal(str(one)) for one in each(value))})"


def _catalyst_literal(expression: Any) -> str:
    kind, value = str(expression.dataType().simpleString()), expression.value()
    if kind == "string":
        return literal(str(value))
    if kind.startswith("decimal"):
        return literal(Decimal(str(value)))
    if kind.startswith("timestamp"):
        return f"{kind} {value}"  # microseconds, because the text depends on the session's zone
    if value is None or kind in ("boolean", "int", "double", "binary"):
        return literal(value)
    if kind == "bigint" and not -(2**31) <= value < 2**31:
        return literal(value)
    typed = _SQL_LITERAL.fullmatch(str(expression.sql()))
    return f"{kind} {typed[1] if typed else expression.sql()}"


def _path(expression: Any) -> list[str]:
    """Return the path to a column or to a field inside a column, or else an empty list."""
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
    """Yield the expressions below a node, without nodes that only Spark's text shows."""
    for child in each(node.children()):
        if hasattr(child, "sql") and class_name(child) not in ("Ascending$", "Descending$"):
            yield child


def _connect(writer: _TextWriter, message: Any) -> str:
    kind = message.WhichOneof("expr_type")
    value = getattr(message, kind)
    if kind == "alias":
        return _connect(writer, value.expr)
    if kind == "unresolved_attribute":
        return writer.column(parts(value.unparsed_identifier))
    if kind == "literal":
        return _connect_literal(value)
    if kind == "cast":
        tried = value.eval_mode == type(value).EVAL_MODE_TRY
        return writer.cast(_connect(writer, value.expr), _connect_type(value), tried)
    if kind == "expression_string":
        return writer.sql(value.expression)
    if kind in ("unresolved_function", "call_function"):
        arguments = [_connect(writer, one) for one in value.arguments]
        distinct = kind == "unresolved_function" and value.is_distinct
        return writer.call(value.function_name, arguments, distinct=distinct)
    if kind == "unresolved_named_lambda_variable":
        return writer.variable(".".join(value.name_parts))
    if kind == "lambda_function":
        variables = [writer.variable(".".join(one.name_parts)) for one in value.arguments]
        return f"({', '.join(variables)}) -> {_connect(writer, value.function)}"
    if kind == "unresolved_extract_value":
        return writer.call(
            "get", [_connect(writer, value.child), _connect(writer, value.extraction)]
        )
    if kind == "common_inline_user_defined_function":
        arguments = [_connect(writer, one) for one in value.arguments]
        if not value.deterministic:
            writer.out.unstable.add(value.function_name)
        return writer.call(f"python {value.function_name}", arguments)
    if kind == "update_fields":
        below = [value.struct_expression]
        if value.HasField("value_expression"):
            below.append(value.value_expression)
        return writer.update(value.field_name, [_connect(writer, one) for one in below])
    if kind == "named_argument_expression":
        return f"{value.key} => {_connect(writer, value.value)}"
    # Do not print the message: it names the line of the user's program, which may change.
    return writer.as_printed(kind, str(writer.given), [])


def _connect_literal(message: Any) -> str:
    kind = message.WhichOneof("literal_type")
    if kind in ("null", None):
        return "null"
    value = getattr(message, kind)
    if kind == "decimal":
        return f"decimal {value.value}"
    if kind in ("string", "boolean", "binary", "byte", "short", "integer", "long", "double"):
        return literal(value)
    return f"{kind} {' '.join(str(value).split())}"


def _connect_type(cast: Any) -> str:
    if cast.WhichOneof("cast_to_type") == "type_str":
        return str(cast.type_str)
    from pyspark.sql.connect.types import proto_schema_to_pyspark_data_type

    return str(proto_schema_to_pyspark_data_type(cast.type).simpleString())


def column_text(parts: list[str]) -> str:
    """Return the text by which `F.col` finds a column, or a field inside a column."""
    return ".".join(
        part if _PLAIN_NAME.fullmatch(part) else "`" + part.replace("`", "``") + "`"
        for part in parts
    )


def mentioned(text: str, names: list[str]) -> Iterator[str]:
    """Yield the names that a fragment of SQL may read."""
    words = set(re.findall(r"`(?:[^`]|``)*`|\w+", text.lower()))
    for name in names:
        if name.lower() in words or column_text([name]).lower() in words:
            yield name


def parts(text: str) -> list[str]:
    """Split a column's name in SQL at its dots."""
    return [
        quoted.replace("``", "`") if quoted else plain
        for quoted, plain in _QUOTED_PART.findall(text)
    ]


def literal(value: Any) -> str:
    """Return the text of a constant, which is a value of Python or an object of Java."""
    if isinstance(value, (bytes, bytearray)):
        return f"0x{bytes(value).hex()}"
    if value is None or isinstance(value, (str, bool, int, float)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Decimal):
        return f"decimal {value}"
    return f"{class_name(value).lower()} {value.toString()}"


def class_name(value: Any) -> str:
    return str(value.getClass().getSimpleName())


def each(sequence: Any) -> Iterator[Any]:
    """Yield the elements of a Scala sequence."""
    for position in range(sequence.size()):
        yield sequence.apply(position)
