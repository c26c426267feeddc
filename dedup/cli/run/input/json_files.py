"""Reads JSON files as text, parses them as strictly as Kafka's records, and lists their fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.json
from pyspark.sql import types as T  # noqa: N812

from dedup.sources.files.text_input import open_text

_EMPTY_OBJECT = re.compile(rb"\{\s*\}")
#: Largest number of blanks in an empty object. Two blocks of a file overlap by this many bytes.
_LONGEST_BLANKS = 64
_BLOCK_BYTES = 8 << 20

#: Names of fields, each with the names of the fields inside it. An array has the names of its
#: elements.
Names: TypeAlias = dict[str, "Names"]


def with_empty_objects(
    columns: T.StructType, paths: Iterable[Path], *, is_whole: bool
) -> T.StructType:
    """Add columns that hold only ``{}``, as text, because Spark's inference omits such columns.

    With `is_whole` every file is one JSON value. Without it, every line is a JSON value.
    """
    for path in paths:
        if _has_empty_object(path) and (names := json_names(path, is_whole=is_whole)):
            completed = _completed(columns, names)
            assert isinstance(completed, T.StructType)
            columns = completed
    return columns


def _has_empty_object(path: Path) -> bool:
    tail = b""
    try:
        with open_text(path) as stream:
            while chunk := stream.read(_BLOCK_BYTES):
                if _EMPTY_OBJECT.search(tail + chunk):
                    return True
                tail = chunk[-_LONGEST_BLANKS:]
    except (OSError, pa.ArrowException):
        pass
    return False


def _completed(kind: T.DataType, names: Names) -> T.DataType:
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_completed(kind.elementType, names))
    if not isinstance(kind, T.StructType):
        return kind
    fields = [
        T.StructField(f.name, _completed(f.dataType, names.get(f.name, {}))) for f in kind.fields
    ]
    missing = sorted(set(names) - set(kind.names))
    return T.StructType([*fields, *(T.StructField(name, T.StringType()) for name in missing)])


def json_names(path: Path, *, is_whole: bool = False) -> Names | None:
    """Return the names of all fields in a JSON file, or None if only Spark can read the file.

    Lines that are not JSON are skipped, because they fail later, when Spark reads them.
    """
    names: Names = {}
    rest = b""
    try:
        with open_text(path) as stream:
            if is_whole:
                return _names_of_value(json.loads(stream.read()))
            while chunk := stream.read(_BLOCK_BYTES):
                block, _, rest = (rest + chunk).rpartition(b"\n")
                _add(names, _names_of_lines(block))
        _add(names, _names_of_lines(rest))
    except (OSError, pa.ArrowException, ValueError, RecursionError):
        return None
    return names


def _names_of_lines(block: bytes) -> Names:
    if not block.strip():
        return {}
    options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    try:
        schema = pyarrow.json.read_json(pa.BufferReader(block), read_options=options).schema
    except pa.ArrowException:
        # pyarrow fails if a column has values of several types, or a line is not JSON.
        names: Names = {}
        for line in block.split(b"\n"):
            try:
                _add(names, _names_of_value(json.loads(line)))
            except ValueError:
                continue
        return names
    return {field.name: _names_of_type(field.type) for field in schema}


def _names_of_type(kind: pa.DataType) -> Names:
    if pa.types.is_list(kind):
        return _names_of_type(kind.value_type)
    if pa.types.is_struct(kind):
        return {field.name: _names_of_type(field.type) for field in kind}
    return {}


def _names_of_value(value: Any) -> Names:
    names: Names = {}
    if isinstance(value, dict):
        for name, inner in value.items():
            _add(names, {name: _names_of_value(inner)})
    elif isinstance(value, list):
        for inner in value:
            _add(names, _names_of_value(inner))
    return names


def _add(names: Names, more: Names) -> None:
    for name, inner in more.items():
        _add(names.setdefault(name, {}), inner)


def are_known(names: Names, known: T.DataType) -> bool:
    """Return whether a type has a field for every name. Upper and lower case differ in names."""
    if isinstance(known, T.ArrayType):
        return are_known(names, known.elementType)
    if not isinstance(known, T.StructType):
        # A string can hold any JSON value, and the keys of a map are data.
        return True
    fields = {field.name: field.dataType for field in known.fields}
    return all(name in fields and are_known(inner, fields[name]) for name, inner in names.items())
