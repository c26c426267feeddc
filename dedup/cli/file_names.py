"""The names of the columns in one file, found without Spark: cheap enough for every new file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet
from pyspark.sql import types as T  # noqa: N812

#: Name to the names of the fields in it; arrays are passed through.
Names: TypeAlias = dict[str, "Names"]

_BLOCK_BYTES = 8 << 20
_HEADER_BYTES = 64 << 10
_LONGEST_HEADER_BYTES = 1 << 20


def json_names(path: Path) -> Names | None:
    """Names in a file of JSON lines, None where only Spark can tell.

    Lines that are no JSON are passed over: reading them is what fails later.
    """
    names: Names = {}
    rest = b""
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            while chunk := stream.read(_BLOCK_BYTES):
                block, _, rest = (rest + chunk).rpartition(b"\n")
                _add(names, _names_of_lines(block))
        _add(names, _names_of_lines(rest))
    except (OSError, pa.ArrowException):
        return None
    return names


def _names_of_lines(block: bytes) -> Names:
    if not block.strip():
        return {}
    options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    try:
        schema = pyarrow.json.read_json(pa.BufferReader(block), read_options=options).schema
    except pa.ArrowException:
        # A line that is no JSON, or values of several types in a column.
        found: Names = {}
        for line in block.splitlines():
            try:
                _add(found, _names_of_value(json.loads(line)))
            except (ValueError, RecursionError):
                continue
        return found
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
    """Whether columns of that type have a place for all the names, which Spark takes as written."""
    if isinstance(known, T.ArrayType):
        return are_known(names, known.elementType)
    if not isinstance(known, T.StructType):
        # A text holds all of the value, and the keys of a map are data.
        return True
    fields = {field.name: field.dataType for field in known.fields}
    return all(name in fields and are_known(inner, fields[name]) for name, inner in names.items())


def csv_header(path: Path, comment: str | None) -> bytes | None:
    """First line of a file that is neither blank nor a comment; None where there is none."""
    text = b""
    mark = comment.encode() if comment else None
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            while len(text) < _LONGEST_HEADER_BYTES:
                chunk = stream.read(_HEADER_BYTES)
                text += chunk
                *lines, last = text.split(b"\n")
                for line in lines if chunk else [*lines, last]:
                    if line.strip() and not (mark and line.startswith(mark)):
                        return bytes(line.rstrip(b"\r"))
                if not chunk:
                    return None
    except (OSError, pa.ArrowException):
        return None
    return text


def plain_names(header: bytes, separator: str) -> list[str] | None:
    """Names in a header that needs no CSV reader, None where it does."""
    try:
        text = header.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if '"' in text or "'" in text or "\\" in text else text.split(separator)


def parquet_kind(path: Path) -> bytes | None:
    """Bytes that are equal for files with the same columns; None for a file that is empty.

    Raises
    ------
    OSError, pyarrow.ArrowException
        Where the footer cannot be read.
    """
    if not path.stat().st_size:
        return None
    schema = pyarrow.parquet.read_schema(path).remove_metadata()
    return bytes(schema.serialize().to_pybytes())
