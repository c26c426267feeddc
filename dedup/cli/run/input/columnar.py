"""Schemas of Parquet and ORC files, read without Spark: cheap enough for every new file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet

from dedup.cli.run.options import COLUMNAR
from dedup.sources.files.parquet_input import ParquetInput

NO_FAULT = "Spark does not know its columns"


def fault(path: Path, file_format: str) -> str:
    """Return why Spark cannot read the columns of a file."""
    if file_format not in COLUMNAR:
        return "it is damaged, or compressed in another way than named"
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
    return NO_FAULT


def different_types(paths: Sequence[Path]) -> str | None:
    """Return which column has another type in one Parquet file than in another."""
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


def schema_bytes(path: Path, file_format: str) -> bytes | None:
    """Return bytes that are equal for files with the same columns, or None if there are no rows.

    There are none in an empty file, nor in ORC without columns, which old releases of Hive wrote.
    Raises OSError or pyarrow.ArrowException if the footer cannot be read.
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
