"""The names of the columns in one file, found without Spark: cheap enough for every new file."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.json
import pyarrow.orc
import pyarrow.parquet
from pyspark.sql import types as T  # noqa: N812

from dedup.cli.run.run_options import COLUMNAR
from dedup.sources.files.parquet_input import ParquetInput

#: Name to the names of the fields in it; arrays are passed through.
Names: TypeAlias = dict[str, "Names"]

_EMPTY_OBJECT = re.compile(rb"\{\s*\}")
#: Blanks within an empty object that stands across two blocks.
_LONGEST_BLANKS = 64
NO_FAULT = "Spark does not know its columns"
_BLOCK_BYTES = 8 << 20
_LINE_END = re.compile(rb"\r\r\n|\r\n|\n|\r")
_SEARCHED_BYTES, _SHOWN_CHARS = 64 << 20, 200
#: What Hadoop unpacks, and pyarrow does not.
_ONLY_HADOOP = (".deflate", ".snappy", ".lz4", ".lzo", ".lzo_deflate")


def open_text(path: Path) -> pa.NativeFile:
    """Open a file, unpacked as its name says; Hadoop looks at names in any case.

    Raises
    ------
    OSError
        Also if only Hadoop can unpack it.
    """
    name = path.name.lower()
    if name.endswith(_ONLY_HADOOP):
        raise OSError(f"{path} is compressed in a way that pyarrow does not know")
    compression = "gzip" if name.endswith(".gz") else "detect"
    return pa.input_stream(str(path), compression=compression)


def line_of(path: Path, digest: str, key: Callable[[bytes], bytes]) -> str:
    """Return which line's key has that MD5, or nothing if it is not near the beginning."""
    lines = _first_lines(path)
    for number, line in enumerate(lines, start=1):
        keys = (key(line), line) if len(lines) > 1 else ()
        if digest in [hashlib.md5(one, usedforsecurity=False).hexdigest() for one in keys]:
            shown = line.decode("utf-8", errors="replace")[:_SHOWN_CHARS]
            return f" It is line {number}: {shown}."
    return ""


def _first_lines(path: Path) -> list[bytes]:
    try:
        with open_text(path) as stream:
            text = stream.read(_SEARCHED_BYTES)
    except (OSError, pa.ArrowException):
        return []
    return _LINE_END.split(text.removeprefix(b"\xef\xbb\xbf"))


def with_empty_objects(
    columns: T.StructType, paths: Iterable[Path], *, is_whole: bool
) -> T.StructType:
    """Return the columns with those that hold only ``{}``, as texts.

    Spark's inference leaves them out.

    Parameters
    ----------
    columns : StructType
        As Spark inferred them.
    paths : iterable of Path
        JSON files.
    is_whole : bool
        Each file is one JSON value, rather than one a line.
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
    """Names in a JSON file, or None if only Spark can tell.

    Lines that are no JSON are passed over: reading them is what fails later.
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
        # Values of several types in a column, or a line that is no JSON.
        found: Names = {}
        for line in block.split(b"\n"):
            try:
                _add(found, _names_of_value(json.loads(line)))
            except ValueError:
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


def csv_names(header: str, separator: str, quote: str) -> list[str] | None:
    """Return the names in a header, or None if only Spark can tell.

    Raises
    ------
    ValueError
        If a column has no name of its own, with what is wrong.
    """
    if len(separator) != 1 or len(quote) != 1:
        return None
    try:
        (names,) = csv.reader([header], delimiter=separator, quotechar=quote)
    except (ValueError, csv.Error):
        return None
    if "" in names:
        raise ValueError(f"has no name for column {names.index('') + 1}")
    folded = [name.lower() for name in names]
    repeated = [name for at, name in enumerate(names) if name.lower() in folded[:at]]
    if repeated:
        raise ValueError(f"has two columns named {repeated[0]!r}")
    return names


def fault(path: Path, file_format: str) -> str:
    """Say why Spark cannot read the columns of a Parquet or ORC file."""
    try:
        schema = _schema(path, file_format)
    except (OSError, pa.ArrowException) as error:
        if "encrypted" in str(error):
            return "it is encrypted"
        return f"it is no {COLUMNAR[file_format]} file ({str(error).rstrip('.')})"
    is_ = pa.types
    for field in schema:
        if is_.is_time(field.type) or is_.is_duration(field.type) or is_.is_decimal256(field.type):
            return (
                f"its column {field.name!r} is {field.type}, which Spark does not read. Have it "
                "written as text"
            )
    return NO_FAULT


def unlike(paths: Sequence[Path]) -> str | None:
    """Say which column has another type in one Parquet file than in another."""
    first: dict[str, tuple[Path, pa.DataType]] = {}
    for path in paths:
        with suppress(OSError, pa.ArrowException), ParquetInput(str(path)) as file:
            for column in file.spark_schema:
                where, kind = first.setdefault(column.name, (path, column.type))
                if kind != column.type and not pa.types.is_nested(kind):
                    return (
                        f"{path}: its column {column.name!r} is {column.type}, and {kind} in "
                        f"{where}. --schema may give the wider type for both"
                    )
    return None


def kind(path: Path, file_format: str) -> bytes | None:
    """Bytes that are equal for files with the same columns; None where Spark reads no rows.

    So it is with a file that is empty, and one of ORC without columns, as old releases of Hive
    left for no rows.

    Raises
    ------
    OSError, pyarrow.ArrowException
        Where the footer cannot be read.
    """
    if not path.stat().st_size:
        return None
    schema = _schema(path, file_format)
    if file_format == "orc" and not schema.names:
        return None
    return bytes(schema.remove_metadata().serialize().to_pybytes())


def _schema(path: Path, file_format: str) -> pa.Schema:
    if file_format == "parquet":
        return pyarrow.parquet.read_schema(path)
    with pa.OSFile(str(path)) as file:
        return pyarrow.orc.ORCFile(file).schema
