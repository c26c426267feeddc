"""Expressions of Spark Connect: the message `spark.connect.Expression`."""

from __future__ import annotations

from typing import Any

from dedup.spark.driver.expression import Words, literal, parts


def read_connect(words: Words, message: Any) -> str:
    """Write down a message that a Column is sent as."""
    kind = message.WhichOneof("expr_type")
    value = getattr(message, kind)
    if kind == "alias":
        return read_connect(words, value.expr)
    if kind == "unresolved_attribute":
        return words.column(parts(value.unparsed_identifier))
    if kind == "literal":
        return _literal(value)
    if kind == "cast":
        tried = value.eval_mode == type(value).EVAL_MODE_TRY
        return words.cast(read_connect(words, value.expr), _type(value), tried)
    if kind == "expression_string":
        return words.sql(value.expression)
    if kind in ("unresolved_function", "call_function"):
        arguments = [read_connect(words, one) for one in value.arguments]
        distinct = kind == "unresolved_function" and value.is_distinct
        return words.call(value.function_name, arguments, distinct=distinct)
    if kind == "unresolved_named_lambda_variable":
        return words.variable(".".join(value.name_parts))
    if kind == "lambda_function":
        variables = [words.variable(".".join(one.name_parts)) for one in value.arguments]
        return f"({', '.join(variables)}) -> {read_connect(words, value.function)}"
    if kind == "unresolved_extract_value":
        return words.call(
            "get", [read_connect(words, value.child), read_connect(words, value.extraction)]
        )
    if kind == "common_inline_user_defined_function":
        arguments = [read_connect(words, one) for one in value.arguments]
        if not value.deterministic:
            words.out.unstable.add(value.function_name)
        return words.call(f"python {value.function_name}", arguments)
    if kind == "update_fields":
        below = [value.struct_expression]
        if value.HasField("value_expression"):
            below.append(value.value_expression)
        return words.update(value.field_name, [read_connect(words, one) for one in below])
    if kind == "named_argument_expression":
        return f"{value.key} => {read_connect(words, value.value)}"
    # The message itself says from which line of the program it comes.
    return words.as_printed(kind, str(words.given), [])


def _literal(message: Any) -> str:
    kind = message.WhichOneof("literal_type")
    if kind in ("null", None):
        return "null"
    value = getattr(message, kind)
    if kind == "decimal":
        return f"decimal {value.value}"
    if kind in ("string", "boolean", "binary", "byte", "short", "integer", "long", "double"):
        return literal(value)
    return f"{kind} {' '.join(str(value).split())}"


def _type(cast: Any) -> str:
    if cast.WhichOneof("cast_to_type") == "type_str":
        return str(cast.type_str)
    from pyspark.sql.connect.types import proto_schema_to_pyspark_data_type

    return str(proto_schema_to_pyspark_data_type(cast.type).simpleString())
