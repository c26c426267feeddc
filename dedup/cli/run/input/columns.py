"""Compare the columns of new files with known columns, and read columns of Parquet and ORC."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
from pyspark.sql import types as T  # noqa: N812

from dedup.cli.run.options import COLUMNAR, RunOptions
from dedup.errors import ConfigError
from dedup.sources.files.parquet_input import ParquetInput

_NO_FAULT = "Spark does not know its columns"
#: Types by size. A type holds every value of the types before it in the same tuple.
_LADDERS = ((T.ByteType, T.ShortType, T.IntegerType, T.LongType), (T.FloatType, T.DoubleType))


@dataclass(frozen=True, slots=True)
class Change:
    """How a column of new files differs from the known columns."""

    #: Path of the column. ``a.b`` is a field of a struct, ``a[].b`` a field of structs in an array.
    column: str
    #: ``respelled`` means added with a name that differs from a known name only in case.
    #: ``narrower`` means that the known type holds all values of the new type. ``other`` means that
    #: the known type does not.
    kind: Literal["added", "removed", "respelled", "narrower", "other"]
    #: The known type, or None if the column is new.
    was: T.DataType | None
    now: T.DataType | None


def changes(
    known: T.DataType, new: T.DataType, column: str = "", *, exact: bool = False
) -> Iterator[Change]:
    """Yield the changes from `known` to `new`, in the order of the known columns. Added are last.

    Nullability does not count. With `exact`, names that differ in case are different. Only Spark's
    JSON reader compares names in this way.
    """
    if isinstance(known, T.StructType) and isinstance(new, T.StructType):
        prefix = f"{column}." if column else ""
        theirs = {f.name if exact else f.name.lower(): f for f in new.fields}
        folded = {field.name.lower(): field for field in known.fields}
        for field in known.fields:
            name = prefix + field.name
            other = theirs.pop(field.name if exact else field.name.lower(), None)
            if other is None:
                yield Change(name, "removed", field.dataType, None)
            else:
                yield from changes(field.dataType, other.dataType, name, exact=exact)
        for field in theirs.values():
            alias = folded.get(field.name.lower())
            was, kind = (None, "added") if alias is None else (alias.dataType, "respelled")
            yield Change(prefix + field.name, kind, was, field.dataType)  # type: ignore[arg-type]
    elif isinstance(known, T.ArrayType) and isinstance(new, T.ArrayType):
        yield from changes(known.elementType, new.elementType, column + "[]", exact=exact)
    elif isinstance(known, T.MapType) and isinstance(new, T.MapType):
        yield from changes(known.keyType, new.keyType, column + ".key", exact=exact)
        yield from changes(known.valueType, new.valueType, column + ".value", exact=exact)
    elif known != new:
        yield Change(column, "narrower" if widens(new, known) else "other", known, new)


def joined(known: T.DataType, new: T.DataType) -> T.DataType:
    """Return the known columns with their known types, then the columns that only `new` has."""
    if isinstance(known, T.StructType) and isinstance(new, T.StructType):
        theirs = {field.name.lower(): field for field in new.fields}
        fields = []
        for field in known.fields:
            other = theirs.pop(field.name.lower(), None)
            kind = field.dataType if other is None else joined(field.dataType, other.dataType)
            fields.append(T.StructField(field.name, kind, field.nullable, field.metadata))
        fields += [T.StructField(field.name, field.dataType) for field in theirs.values()]
        return T.StructType(fields)
    if isinstance(known, T.ArrayType) and isinstance(new, T.ArrayType):
        return T.ArrayType(joined(known.elementType, new.elementType), known.containsNull)
    if isinstance(known, T.MapType) and isinstance(new, T.MapType):
        # Add no fields to the keys of a map, because the keys would then be different keys.
        values = joined(known.valueType, new.valueType)
        return T.MapType(known.keyType, values, known.valueContainsNull)
    return known


def widens(narrow: T.DataType, wide: T.DataType) -> bool:
    """Return whether `wide` is another type than `narrow` and holds all its values."""
    if isinstance(narrow, T.DecimalType) and isinstance(wide, T.DecimalType):
        digits_fit = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return narrow != wide and digits_fit and wide.scale >= narrow.scale
    for ladder in _LADDERS:
        if type(narrow) in ladder and type(wide) in ladder:
            return ladder.index(type(narrow)) < ladder.index(type(wide))
    return False


def check_new_schema(known: T.StructType, new: T.StructType, options: RunOptions) -> None:
    for change in changes(known, new):
        if change.kind in ("narrower", "other"):
            raise ConfigError(
                f"--schema makes the column {change.column!r} {type_text(change.now)}, and in "
                f"--output {options.output} it is {type_text(change.was)}. An output keeps the "
                "types of its columns: they may only be added or left out. Keep the type, or give "
                "a new --output.",
                remedy="changed-settings",
            )


def type_text(kind: T.DataType | None) -> str:
    """Return a type as Spark spells it, in at most 60 characters."""
    text = "" if kind is None else kind.simpleString()
    return text if len(text) <= 60 else f"{text[:57]}..."


def fault(path: Path, file_format: str) -> str:
    try:
        schema = _schema(path, file_format)
    except (OSError, pa.ArrowException) as error:
        if "encrypted" in str(error):
            return "it is encrypted"
        return f"it is not {COLUMNAR[file_format]} ({str(error).rstrip('.')})"
    is_ = pa.types
    for field in schema:
        if is_.is_time(field.type) or is_.is_duration(field.type) or is_.is_decimal256(field.type):
            return (
                f"its column {field.name!r} is {field.type}, which Spark does not read. Have it "
                "written as text"
            )
    return _NO_FAULT


def first_fault(paths: Sequence[Path], file_format: str) -> str | None:
    """Return a text about the first file that Spark cannot read, or None if there is none.

    A Parquet file also counts if one of its columns has another type in an earlier file.
    """
    first: dict[str, tuple[Path, pa.DataType]] = {}
    for path in paths:
        if (why := fault(path, file_format)) != _NO_FAULT:
            return f"{path}: {why}"
        if file_format != "parquet":
            continue
        # Ignore a failure: the columns may be encrypted, and Spark may have the keys.
        with suppress(OSError, pa.ArrowException), ParquetInput(str(path)) as file:
            for column in file.spark_schema:
                where, kind = first.setdefault(column.name, (path, column.type))
                if kind != column.type and not pa.types.is_nested(kind):
                    return (
                        f"{path}: its column {column.name!r} is {column.type}, and {kind} in "
                        f"{where}. --schema may give the wider type for both"
                    )
    return None


def schema_bytes(path: Path, file_format: str) -> bytes | None:
    """Return bytes that are equal for files with the same columns, or None if there are no rows.

    Empty files have no rows. ORC files without columns, which old releases of Hive wrote, have no
    rows either. A file that pyarrow cannot read has other bytes than all others.
    """
    try:
        if not path.stat().st_size:
            return None
        schema = _schema(path, file_format)
    except (OSError, pa.ArrowException):
        return os.fsencode(path)
    if file_format == "orc" and not schema.names:
        return None
    return bytes(schema.remove_metadata().serialize().to_pybytes())


def _schema(path: Path, file_format: str) -> pa.Schema:
    if file_format == "parquet":
        return pyarrow.parquet.read_schema(path)
    with pa.OSFile(str(path)) as file:
        return pyarrow.orc.ORCFile(file).schema
