"""Check, before the query starts, that output files can hold the columns of the stream."""

from __future__ import annotations

from collections.abc import Iterator

import pyspark
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import ConfigError
from dedup.sinks.columns import refuse_twins
from dedup.sinks.files.options import FilesOptions
from dedup.sinks.files.output_files import with_spark_metadata
from dedup.sinks.files.slice_files import FileShape
from dedup.sinks.files.text_lines import Dialect
from dedup.sources.files.bypass import LeftToSpark, arrow_schema, text_schema

#: Column types whose values may name partition folders.
_FOLDERS = (
    T.StringType, T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DateType,
)  # fmt: skip
#: Column types whose values are not a single text.
_NO_TEXT = (T.ArrayType, T.MapType, T.StructType, T.BinaryType)


def file_shape(options: FilesOptions, schema: T.StructType) -> FileShape:
    """Return how to write a stream's files, or raise ConfigError that names an unfit column."""
    refuse_twins(schema.fieldNames())
    by_name = {field.name: field for field in schema.fields}
    if "batch" in {name.lower() for name in by_name}:
        raise ConfigError(
            "The stream has a column 'batch'. Readers give that name to the number in the folder "
            "batch=<number> of a micro-batch. Rename it with withColumnRenamed."
        )
    for name in options.partition_by:
        if why := _unfit_for_folders(name, by_name.get(name)):
            raise ConfigError(f"Option partition.by names {name!r}, {why}")
    in_files = T.StructType([f for f in schema.fields if f.name not in options.partition_by])
    if not in_files.fields:
        raise ConfigError("Option partition.by names all columns; leave one for the files.")
    for field in in_files.fields:
        if why := _unfit_for_files(field.dataType, options.file_format):
            raise ConfigError(f"Column {field.name!r} {why}")
    # Drop the metadata of columns, which only Spark's own readers and writers use.
    plain = T.StructType([T.StructField(f.name, f.dataType, True) for f in in_files.fields])
    try:
        columns = arrow_schema(plain, "UTC")
    except LeftToSpark as error:
        raise ConfigError(
            f"The sink cannot write the stream: {error}. Cast it, or write it with Spark's own "
            "format."
        ) from None
    if options.file_format == "parquet":
        version = pyspark.__version__.partition(".dev")[0]
        columns = with_spark_metadata(columns, in_files.json(), version)
    return FileShape(
        columns=columns,
        compression=options.compression,
        split_by=options.partition_by,
        file_format=options.file_format,
        dialect=Dialect(header=options.header),
        target_bytes=options.target_bytes,
    )


def _unfit_for_folders(name: str, field: T.StructField | None) -> str:
    """Return why the values of a column cannot name folders, or an empty text if they can."""
    if field is None:
        return "which the stream lacks."
    if not isinstance(field.dataType, _FOLDERS):
        return (
            f"of type {field.dataType.simpleString()}. Only texts, booleans, whole numbers and "
            "dates name folders. Cast it in the query."
        )
    hidden = "but readers skip folders whose names begin with an underscore or a dot. Rename it."
    return hidden if name.startswith(("_", ".")) else ""


def _unfit_for_files(kind: T.DataType, file_format: str) -> str:
    """Return why files cannot hold the values of a column, or an empty text if they can."""
    if file_format == "csv" and isinstance(kind, _NO_TEXT):
        return (
            f"is {kind.simpleString()}, which CSV cannot hold. Drop it, make it a text (to_json, "
            "base64), or write json or parquet."
        )
    for each in _maps_in(kind) if file_format == "json" else ():
        if not isinstance(each.keyType, T.StringType):
            return (
                f"has {each.simpleString()}, but keys of JSON are texts. Make them texts "
                "(transform_keys), or write parquet."
            )
    return ""


def can_write(kind: T.DataType, file_format: str) -> bool:
    """Return whether `dedup_folder` and ``dedup run`` can read back what files hold of a type.

    They read any text back as the key of a map, which other readers do not.
    """
    if file_format == "parquet":
        return True
    try:
        text_schema(T.StructType([T.StructField("_", kind)]))
    except LeftToSpark:
        return False
    if file_format == "csv":
        return not isinstance(kind, _NO_TEXT)
    return not any(isinstance(each.keyType, _NO_TEXT) for each in _maps_in(kind))


def _maps_in(kind: T.DataType) -> Iterator[T.MapType]:
    """Yield the types of the maps in a type, except of maps in keys."""
    if isinstance(kind, T.MapType):
        yield kind
        yield from _maps_in(kind.valueType)
    elif isinstance(kind, T.ArrayType):
        yield from _maps_in(kind.elementType)
    elif isinstance(kind, T.StructType):
        for field in kind.fields:
            yield from _maps_in(field.dataType)
