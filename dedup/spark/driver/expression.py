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

from pyspark.sql import Column

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
#: Functions of SQL that return the current time, and need no parentheses.
CLOCK_KEYWORDS = frozenset(
    {"current_timestamp", "current_date", "current_time", "localtimestamp", "localtime"}
)
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
    columns : dict of str to str
        What it reads: its name in the text, and as `pyspark.sql.functions.col` takes it.
    functions : set of str
        Names of the functions that it calls, in lower case; those of SQL among them.
    is_order : bool
        It is a sort order, not a value.
    unstable : set of str
        Python functions that their author calls nondeterministic.
    casts : set of str
        Types that it casts to.
    sql : list of str
        Fragments of SQL that it holds; which columns they read is not known.
    """

    text: str = ""
    columns: dict[str, str] = field(default_factory=dict)
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


class Words:
    """Writes an expression down, part by part, and notes in `out` what it is made of."""

    def __init__(self, given: Column, columns: list[str], case_sensitive: bool) -> None:
        self.out = Expression()
        self.given = given
        self._known = {self._fold(name, case_sensitive) for name in columns}
        self._case_sensitive = case_sensitive
        self._variables: dict[str, str] = {}

    @staticmethod
    def _fold(name: str, case_sensitive: bool) -> str:
        return name if case_sensitive else name.lower()

    def column(self, parts: list[str]) -> str:
        """A column, or the way to a field of one, that the expression reads."""
        written = column_text(parts)
        name = written if self._case_sensitive else column_text([part.lower() for part in parts])
        self.out.columns.setdefault(name, written)
        return name

    def as_printed(self, kind: str, printed: str, below: list[str]) -> str:
        """A step that has no words of ours: as Spark prints it, and what it is made of."""
        self.out.functions.add(kind)
        for name, ours in self._variables.items():
            printed = re.sub(rf"\b{re.escape(name)}\b", ours, printed)
        return f"{kind}({', '.join(below)}): {' '.join(printed.split())}"

    def update(self, name: str, below: list[str]) -> str:
        """A struct with a field that is added, replaced or dropped."""
        return self.call("update", [below[0], literal(name), *below[1:]])

    def call(self, name: str, arguments: list[str], *, distinct: bool = False) -> str:
        """A function with its arguments."""
        name = name if name.startswith("python ") else name.lower()
        name = _SAME_FUNCTION.get(name, name)
        self.out.functions.add(name)
        return f"{name}({'distinct ' if distinct else ''}{', '.join(arguments)})"

    def cast(self, value: str, kind: str, tried: bool) -> str:
        """A value as another type; null where that fails, if it is only tried."""
        kind = "".join(kind.lower().split()) if "(" in kind else kind.lower()
        kind = _SAME_TYPE.get(kind, kind)
        self.out.casts.add(kind)
        return f"{'try_cast' if tried else 'cast'}({value} as {kind})"

    def sql(self, text: str) -> str:
        """A fragment of SQL, or the column that it only names."""
        text = _SQL_ALIAS.sub("", text.strip())
        if _SQL_NAME.fullmatch(text):
            (name,) = parts(text)
            if self._fold(name, self._case_sensitive) in self._known:
                return self.column([name])
        self.out.sql.append(text)
        self.out.functions.update(re.findall(r"(\w+)\s*\(", text.lower()))
        words = set(re.findall(r"\w+", text.lower()))
        self.out.functions |= (words & CLOCK_KEYWORDS) - self._known
        return f"sql({text})"

    def variable(self, name: str) -> str:
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


def parts(text: str) -> list[str]:
    """Split the name of a column as SQL writes it."""
    return [
        quoted.replace("``", "`") if quoted else plain
        for quoted, plain in _QUOTED_PART.findall(text)
    ]


def literal(value: Any) -> str:
    """A constant; of Python or, where that has no such type, of Java."""
    if isinstance(value, (bytes, bytearray)):
        return f"0x{bytes(value).hex()}"
    if value is None or isinstance(value, (str, bool, int, float)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Decimal):
        return f"decimal {value}"
    return f"{class_name(value).lower()} {value.toString()}"


def class_name(value: Any) -> str:
    """Simple name of the class of an object of Java's."""
    return str(value.getClass().getSimpleName())


def each(sequence: Any) -> Iterator[Any]:
    """Yield the elements of a sequence of Scala."""
    for position in range(sequence.size()):
        yield sequence.apply(position)
