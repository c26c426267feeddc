"""How the columns of the input differ from those that are known, and what may follow them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import types as T  # noqa: N812

from dedup.cli.run.run_options import RunOptions
from dedup.errors import ConfigError

#: Each holds every value of those before it.
_LADDERS = ((T.ByteType, T.ShortType, T.IntegerType, T.LongType), (T.FloatType, T.DoubleType))


@dataclass(frozen=True, slots=True)
class Change:
    """One difference.

    Parameters
    ----------
    column : str
        Name; ``a.b`` is a field of a struct, ``a[].b`` of the structs in an array.
    kind : str
        What was found is ``added``, or ``removed``, or ``respelled``: known in other case; its type
        is ``narrower``, so that the known one holds its values, or another (``other``).
    was, now : DataType or None
        None where there is no such column.
    """

    column: str
    kind: Literal["added", "removed", "respelled", "narrower", "other"]
    was: T.DataType | None
    now: T.DataType | None


def changes(
    known: T.DataType, found: T.DataType, column: str = "", *, exact: bool = False
) -> Iterator[Change]:
    """Differences, in the order of the known columns, those added last; nullability is left out.

    Parameters
    ----------
    known, found : DataType
        Structs at first.
    column : str
        Where they are.
    exact : bool
        Whether names in another case are other names: so Spark reads JSON, and nothing else.
    """
    if isinstance(known, T.StructType) and isinstance(found, T.StructType):
        prefix = f"{column}." if column else ""

        def key(name: str) -> str:
            return name if exact else name.lower()

        theirs = {key(field.name): field for field in found.fields}
        folded = {field.name.lower(): field for field in known.fields}
        for field in known.fields:
            other = theirs.pop(key(field.name), None)
            if other is None:
                yield Change(prefix + field.name, "removed", field.dataType, None)
            else:
                below = prefix + field.name
                yield from changes(field.dataType, other.dataType, below, exact=exact)
        for field in theirs.values():
            alias = folded.get(field.name.lower())
            if alias is None:
                yield Change(prefix + field.name, "added", None, field.dataType)
            else:
                yield Change(prefix + field.name, "respelled", alias.dataType, field.dataType)
    elif isinstance(known, T.ArrayType) and isinstance(found, T.ArrayType):
        yield from changes(known.elementType, found.elementType, column + "[]", exact=exact)
    elif isinstance(known, T.MapType) and isinstance(found, T.MapType):
        yield from changes(known.keyType, found.keyType, column + ".key", exact=exact)
        yield from changes(known.valueType, found.valueType, column + ".value", exact=exact)
    elif known != found:
        yield Change(column, "narrower" if widens(found, known) else "other", known, found)


def joined(known: T.DataType, found: T.DataType) -> T.DataType:
    """The known columns in their types, then those that were found."""
    if isinstance(known, T.StructType) and isinstance(found, T.StructType):
        theirs = {field.name.lower(): field for field in found.fields}
        fields = []
        for field in known.fields:
            other = theirs.pop(field.name.lower(), None)
            kind = field.dataType if other is None else joined(field.dataType, other.dataType)
            fields.append(T.StructField(field.name, kind, field.nullable, field.metadata))
        fields += [T.StructField(field.name, field.dataType) for field in theirs.values()]
        return T.StructType(fields)
    if isinstance(known, T.ArrayType) and isinstance(found, T.ArrayType):
        return T.ArrayType(joined(known.elementType, found.elementType), known.containsNull)
    if isinstance(known, T.MapType) and isinstance(found, T.MapType):
        # New fields in the keys of a map would make other keys of them.
        values = joined(known.valueType, found.valueType)
        return T.MapType(known.keyType, values, known.valueContainsNull)
    return known


def widens(narrow: T.DataType, wide: T.DataType) -> bool:
    """Whether every value of one type is one of the other, which is a larger type of its kind."""
    if isinstance(narrow, T.DecimalType) and isinstance(wide, T.DecimalType):
        digits_fit = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return narrow != wide and digits_fit and wide.scale >= narrow.scale
    for ladder in _LADDERS:
        if type(narrow) in ladder and type(wide) in ladder:
            return ladder.index(type(narrow)) < ladder.index(type(wide))
    return False


def check_new_schema(known: T.StructType, given: T.StructType, options: RunOptions) -> None:
    """Refuse a --schema that the output or its query cannot go on with.

    Raises
    ------
    ConfigError
        Naming the column, both types, and why.
    """
    for change in changes(known, given):
        if change.kind in ("narrower", "other"):
            raise ConfigError(
                f"--schema makes the column {change.column!r} {type_text(change.now)}, and in "
                f"--output {options.output} it is {type_text(change.was)}. An output keeps the "
                "types of its columns: they may only be added or left out. Keep the type, or give "
                "a new --output.",
                remedy="changed-settings",
            )


def type_text(kind: T.DataType | None) -> str:
    """Return a type as Spark writes it, cut where it is long."""
    text = "" if kind is None else kind.simpleString()
    return text if len(text) <= 60 else f"{text[:57]}..."
