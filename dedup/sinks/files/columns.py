"""Check before the start that files can hold a stream's columns."""

from __future__ import annotations

import pyarrow as pa
import pyspark
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import ConfigError
from dedup.sinks.columns import refuse_twins
from dedup.sinks.files.options import FilesOptions
from dedup.sinks.files.output_files import with_spark_metadata
from dedup.sinks.files.slice_files import FileShape
from dedup.sources.files.bypass import LeftToSpark, arrow_schema

#: Types whose values may name folders.
_FOLDERS = (
    T.StringType, T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DateType,
)  # fmt: skip


def file_shape(options: FilesOptions, schema: T.StructType) -> FileShape:
    """Return the shape of the files of a stream, or raise ConfigError naming a column."""
    refuse_twins(schema.fieldNames())
    by_name = {field.name: field for field in schema.fields}
    if "batch" in {name.lower() for name in by_name}:
        raise ConfigError(
            "The stream has a column 'batch'. Readers give that name to the number in the folder "
            "batch=<number> of a micro-batch. Rename it with withColumnRenamed."
        )
    for name in options.partition_by:
        _check_folder_column(name, by_name)
    in_files = T.StructType([f for f in schema.fields if f.name not in options.partition_by])
    if not in_files.fields:
        raise ConfigError("Option partition.by names all columns; leave one for the files.")
    for field in in_files.fields:
        if options.file_format != "parquet":
            _check_text(field.name, field.dataType, options.file_format)
    columns = _columns(in_files)
    if options.file_format == "parquet":
        version = pyspark.__version__.partition(".dev")[0]
        columns = with_spark_metadata(columns, in_files.json(), version)
    return FileShape(
        columns=columns,
        compression=options.compression,
        split_by=options.partition_by,
        file_format=options.file_format,
        header=options.header,
        target_bytes=options.target_bytes,
    )


def _columns(schema: T.StructType) -> pa.Schema:
    # Metadata of columns is for Spark's own readers and writers.
    plain = T.StructType([T.StructField(f.name, f.dataType, True) for f in schema.fields])
    try:
        return arrow_schema(plain, "UTC")
    except LeftToSpark as error:
        raise ConfigError(
            f"The sink cannot write the stream: {error}. Cast it, or write it with Spark's own "
            "format."
        ) from None


def _check_folder_column(name: str, by_name: dict[str, T.StructField]) -> None:
    if name not in by_name:
        raise ConfigError(
            f"Option partition.by names {name!r}, which the stream lacks; it has "
            f"{', '.join(by_name)}."
        )
    kind = by_name[name].dataType
    if not isinstance(kind, _FOLDERS):
        raise ConfigError(
            f"Option partition.by names {name!r}, of type {kind.simpleString()}. Only texts, "
            "booleans, whole numbers and dates name folders. Cast it in the query."
        )
    if name.startswith(("_", ".")):
        raise ConfigError(
            f"Option partition.by names {name!r}: readers skip folders whose names begin with an "
            "underscore or a dot. Rename it with withColumnRenamed."
        )


def _check_text(path: str, kind: T.DataType, file_format: str) -> None:
    nested = isinstance(kind, (T.ArrayType, T.MapType, T.StructType))
    if file_format == "csv":
        if nested or isinstance(kind, T.BinaryType):
            raise ConfigError(
                f"Column {path!r} is {kind.simpleString()}, which CSV cannot hold. Drop it, make "
                "it a text (to_json, base64), or write json or parquet."
            )
        return
    if isinstance(kind, T.ArrayType):
        _check_text(f"{path}[]", kind.elementType, file_format)
    elif isinstance(kind, T.MapType):
        if not isinstance(kind.keyType, T.StringType):
            raise ConfigError(
                f"Column {path!r} is {kind.simpleString()}, but keys of JSON are texts. Make them "
                "texts (transform_keys), or write parquet."
            )
        _check_text(f"{path}.value", kind.valueType, file_format)
    elif isinstance(kind, T.StructType):
        for field in kind.fields:
            _check_text(f"{path}.{field.name}", field.dataType, file_format)
