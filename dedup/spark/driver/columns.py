"""Resolves and checks, on the driver, the columns that a user's options name."""

from __future__ import annotations

import difflib
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from dedup.catalog.definition import Definition
from dedup.errors import ConfigError
from dedup.spark.driver.expression import Expression, column_text, mentioned, read_expression
from dedup.spark.driver.plan_steps import check_row_by_row, steps
from dedup.spark.plan import HELPER_PREFIX

#: A column of a record, as users may give it.
ColumnOrName: TypeAlias = str | Column
ColumnsOption: TypeAlias = ColumnOrName | Sequence[ColumnOrName]
_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_NESTED = (T.ArrayType, T.MapType, T.StructType)
_FIXED_WIDTH = (
    *_WHOLE, T.BooleanType, T.DateType, T.TimestampType, T.TimestampNTZType, T.DecimalType,
    T.DayTimeIntervalType, T.BinaryType,
)  # fmt: skip
#: Types that Spark's Arrow functions refuse, alone or inside another type.
_NOT_CARRIED = re.compile(r"(?:^|[<:,])(void|interval(?: year.*?| month)?)(?=[,>]|$)")


class DerivedId(ABC):
    """A way to compute a record ID, as the functions of `dedup.record_id` return."""

    @abstractmethod
    def of(self, df: DataFrame) -> Column:
        """Return the ID as a column of the DataFrame."""

    @abstractmethod
    def chosen(self, df: DataFrame) -> list[Column]:
        """Return the columns from which the ID is computed."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of this ID in the query's birth certificate."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A column that an option names, found in the DataFrame."""

    #: Name in the input of the first pass.
    column: str
    #: Name for people.
    name: str
    kind: T.DataType
    definition: Definition
    is_constant: bool = False


@dataclass
class Columns:
    """The user's columns, and the helper columns that hold the values of expressions."""

    df: DataFrame
    case_sensitive: bool
    time_zone: str = "UTC"
    ansi: str = "true"
    helpers: list[Column] = field(default_factory=list)

    @cached_property
    def steps(self) -> Counter[str]:
        """The steps of the DataFrame's plan. On Spark Connect they take a round trip."""
        return steps(self.df)

    def resolve(self, column: str | Column | DerivedId, option: str) -> Resolved:
        """Return the column that an option names.

        Raises ConfigError if the column does not exist, or if an expression does not give each row
        one value that stays the same when Spark reads the row again.
        """
        if isinstance(column, DerivedId) and option == "id":
            return self._recipe(column)
        if isinstance(column, str):
            name = self._plain(column)
            if name is not None:
                return self._column(name, name)
            if "." not in column:
                raise ConfigError(missing_column(column, self.df.columns, option))
            column = F.col(column)
        elif not isinstance(column, Column):
            raise not_a_column(column, f"{option}=")
        return self._expression(column, option)

    def each(
        self,
        columns: Iterable[str | Column | DerivedId],
        option: str,
        check: Callable[[Resolved, str], None] = lambda *_: None,
    ) -> list[Resolved]:
        """Resolve the columns that an option names, check each column, and return them."""
        resolved_columns = [self.resolve(column, option) for column in columns]
        for resolved in resolved_columns:
            check(resolved, option)
        return resolved_columns

    def _plain(self, text: str) -> str | None:
        name = text[1:-1] if text[:1] == text[-1:] == "`" and len(text) > 2 else text
        if name in self.df.columns:
            return name
        if not self.case_sensitive:
            return next((c for c in self.df.columns if c.lower() == name.lower()), None)
        return None

    def _expression(self, column: Column, option: str) -> Resolved:
        try:
            selected = self.df.select(column)
            fields = selected.schema.fields
        except Exception as error:
            raise ConfigError(
                f"{option} cannot be resolved against the columns {self.df.columns}: "
                f"{_first_line(error)}"
            ) from error
        if len(fields) != 1:
            raise ConfigError(
                f"{option} returns {len(fields)} columns; give an expression of one value."
            )
        (only,) = fields
        expression = read_expression(column, self.df, case_sensitive=self.case_sensitive)
        if expression.is_order:
            raise ConfigError(
                f"{option}={only.name!r} is a sort order, not a value. Smaller values come first; "
                "to reverse the order, negate the value, such as -F.col('n')."
            )
        check_row_by_row(selected, self.steps, expression, option)
        for name in self.df.columns:
            # An alias does not change the value.
            if expression.text == self._reference(name):
                return self._column(name, only.name)
        return self._made(column, only, expression)

    def _recipe(self, recipe: DerivedId) -> Resolved:
        made = recipe.of(self.df)
        values = F.struct(*recipe.chosen(self.df))
        selected = self.df.select(values)
        expression = read_expression(values, self.df, case_sensitive=self.case_sensitive)
        # The recipe's name replaces the struct, because the recipe's texts do not depend on
        # settings.
        expression.text = expression.text.replace("struct", recipe.name, 1)
        expression.functions.discard("struct")
        check_row_by_row(selected, self.steps, expression, "id")
        (only,) = self.df.select(made).schema.fields
        return self._made(made, only, expression)

    def _made(self, value: Column, made: T.StructField, expression: Expression) -> Resolved:
        definition = self._definition(expression, made.dataType)
        # `mentioned` misses plain names in backticks, and certificates depend on its result.
        is_constant = not definition.inputs and "`" not in "".join(expression.sql)
        column = self.add(value)
        return Resolved(column, made.name, made.dataType, definition, is_constant=is_constant)

    def _column(self, name: str, shown: str) -> Resolved:
        kind = self.df.schema[name].dataType
        definition = Definition(expression=self._reference(name), kind=kind.simpleString())
        return Resolved(self._carried(name), shown, kind, definition)

    def _reference(self, name: str) -> str:
        return column_text([name if self.case_sensitive else name.lower()])

    def _definition(self, expression: Expression, kind: T.DataType) -> Definition:
        read = self.df.select(*map(F.col, expression.columns.values())).schema.fields
        inputs = dict(
            zip(expression.columns, (f.dataType.simpleString() for f in read), strict=True)
        )
        for text in expression.sql:
            for name in mentioned(text, self.df.columns):
                inputs[self._reference(name)] = self.df.schema[name].dataType.simpleString()
        kinds = [kind.simpleString(), *inputs.values()]
        return Definition(
            expression=expression.text,
            kind=kind.simpleString(),
            inputs=tuple(sorted(inputs.items())),
            time_zone=self.time_zone if expression.depends_on_zone(kinds) else "",
            ansi=self.ansi if expression.depends_on_ansi else "",
        )

    def add(self, expression: Column) -> str:
        helper = f"{HELPER_PREFIX}{len(self.helpers)}"
        self.helpers.append(expression.alias(helper))
        return helper

    def input(self) -> DataFrame:
        """Return the input of the first pass: the user's columns, then the helper columns."""
        frame = self.df.select("*", *self.helpers)
        names = [self._carried(name) for name in self.df.columns]
        if names == self.df.columns:
            return frame
        return frame.toDF(*names, *frame.columns[len(names) :])

    def _carried(self, name: str) -> str:
        # mapInArrow looks columns up by name. A dot would mean a field of a struct, and a star
        # would mean all columns.
        if "." in name or "`" in name or name == "*":
            return f"{HELPER_PREFIX}column_{self.df.columns.index(name)}"
        return name


def named_column(name: str) -> Column:
    """Return the column with exactly this name. A dot in the name does not mean a struct field."""
    return F.col(column_text([name]))


def not_a_column(value: object, option: str = "") -> ConfigError:
    return ConfigError(
        f"{option}{value!r} is neither a column name nor a Column (it is a {type(value).__name__})."
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def missing_column(name: str, existing: Sequence[str], option: str) -> str:
    """Return the error text for a missing column. The text suggests the nearest names."""
    near = difflib.get_close_matches(name, existing, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"{option}={name!r}: there is no such column.{hint} Columns: {', '.join(existing)}."


def check_id_type(resolved: Resolved, option: str = "id") -> None:
    """Reject a type that has several byte forms for the same value, such as a float's zero."""
    what = "ID" if option == "id" else option
    if what == "ID" and resolved.is_constant:
        raise ConfigError(
            f"ID column {resolved.definition.expression} reads no column of the record, so all "
            "records would be copies. F.col('name') is a column, F.lit('name') is a text."
        )
    kind = resolved.kind
    text = kind.simpleString()
    if isinstance(kind, T.StringType):
        collation = getattr(kind, "collation", "UTF8_BINARY")
        if collation not in ("UTF8_BINARY", None):
            raise ConfigError(
                f"{what} column {resolved.name!r} has collation {collation}, in which different "
                f"bytes can be equal. Choose: F.col({resolved.name!r}).cast('string') compares "
                "bytes, F.lower(...) around it ignores case."
            )
        return
    if isinstance(kind, _FIXED_WIDTH) or text.startswith("time("):
        return
    if isinstance(kind, (T.FloatType, T.DoubleType)):
        reason = "NaN and -0.0 have several byte forms; cast it to decimal or string"
    elif isinstance(kind, _NESTED):
        reason = "it is nested; name its fields instead, or F.to_json(...) of it"
    else:
        reason = "the type has no byte identity; cast it to string or binary"
    raise ConfigError(f"{what} column {resolved.name!r} is {text}: {reason}.")


def check_whole(resolved: Resolved, option: str) -> None:
    if not isinstance(resolved.kind, _WHOLE):
        raise ConfigError(
            f"{option} column {resolved.name!r} is {resolved.kind.simpleString()}; an integer is "
            f"needed, such as F.col({resolved.name!r}).cast('bigint')."
        )
    if option == "sequence" and resolved.is_constant:
        raise ConfigError(
            f"sequence={resolved.definition.expression} reads no column of the record, so all "
            "records of a producer would be copies. F.col('name') is a column."
        )


def check_time_type(resolved: Resolved) -> None:
    if isinstance(resolved.kind, (T.TimestampType, T.TimestampNTZType)):
        return
    name = repr(resolved.name)
    if isinstance(resolved.kind, T.StringType):
        way = f"F.to_timestamp({name}) parses text, with its pattern as a second argument"
    elif isinstance(resolved.kind, T.DateType):
        way = f"F.col({name}).cast('timestamp') is the beginning of the day"
    elif isinstance(resolved.kind, T.NumericType):
        way = (
            f"F.timestamp_millis({name}) if it counts milliseconds since 1970, "
            f"F.timestamp_seconds({name}) if it counts seconds"
        )
    else:
        way = "give a column that holds the record's time"
    raise ConfigError(
        f"timestamp column {resolved.name!r} is {resolved.kind.simpleString()}; a timestamp is "
        f"needed: {way}."
    )


def check_order_type(resolved: Resolved, option: str) -> None:
    if isinstance(resolved.kind, _NESTED) or resolved.kind.simpleString() == "variant":
        raise ConfigError(
            f"{option} column {resolved.name!r} is {resolved.kind.simpleString()}, which has no "
            "order; name the fields to order by."
        )


def check_carried(schema: T.StructType) -> None:
    """Reject columns that Spark cannot pass to Python, and columns named like helper columns."""
    for column in schema.fields:
        if column.name.lower().startswith(HELPER_PREFIX):
            raise ConfigError(
                f"Column {column.name!r}: names beginning {HELPER_PREFIX!r} are reserved."
            )
        text = column.dataType.simpleString()
        if _NOT_CARRIED.search(text):
            raise ConfigError(
                f"Column {column.name!r} is {text}, which Spark cannot pass to Python. Drop it, or "
                "cast it in the query to a type without interval and void, such as string."
            )
