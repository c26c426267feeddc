"""Files without rows by which Spark finds the columns of Parquet files that it does not know."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from dedup.files.exact_values import plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader
    from pyspark.sql import types as T  # noqa: N812


def spark_columns(
    reader: DataFrameReader,
    places: str | list[str],
    paths: Sequence[Path],
    root: Path | None = None,
) -> T.StructType:
    """Return the columns of files as Spark infers them, and as tasks read what it does not know.

    Timestamps with nanoseconds have microseconds then, UUIDs are text, half floats are floats.

    Parameters
    ----------
    reader : DataFrameReader
    places : str or list of str
        The files, as the reader takes them.
    paths : sequence of Path
        The same files.
    root : Path, optional
        Folder of the files, below which folders are columns. Default: no folder is.

    Raises
    ------
    Exception
        What Spark raises.
    """
    try:
        return reader.load(places).schema
    except Exception:
        with suppress(Exception), tempfile.TemporaryDirectory(prefix="dedup-columns-") as scratch:
            for number, path in enumerate(paths):
                if path.stat().st_size:
                    folder = Path(scratch, "" if root is None else path.parent.relative_to(root))
                    folder.mkdir(parents=True, exist_ok=True)
                    _stand_in(path, folder / f"{number}-{path.name}")
            return reader.option("basePath", scratch).load(scratch).schema
        raise


def _stand_in(path: Path, place: Path) -> None:
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        leaves = list(map(file.schema.column, range(len(file.schema))))
        known = []
        for column in file.schema_arrow:
            of_it = [leaf for leaf in leaves if f"{leaf.path}.".startswith(f"{column.name}.")]
            kinds = {leaf.logical_type.type for leaf in of_it}
            kinds |= {leaf.physical_type for leaf in of_it}
            known.append(column.with_type(_known(column.type, kinds)).remove_metadata())
        if [field.type for field in known] == file.schema_arrow.types:
            place.symlink_to(path)
        else:
            pq.write_table(pa.schema(known).empty_table(), place, store_schema=False)


def _known(found: pa.DataType, kinds: set[str]) -> pa.DataType:
    """The type that Spark knows, given what the column holds in the file."""
    is_, kind = pa.types, plain(found)
    if is_.is_list(kind):
        return pa.list_(kind.value_field.with_type(_known(kind.value_type, kinds)))
    if is_.is_map(kind):
        value = kind.item_field.with_type(_known(kind.item_type, kinds))
        return pa.map_(_known(kind.key_type, kinds), value)
    if is_.is_struct(kind):
        return pa.struct([field.with_type(_known(field.type, kinds)) for field in kind])
    if is_.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if "INT96" in kinds else kind.tz)
    if is_.is_float16(kind):
        return pa.float32()
    return pa.string() if "UUID" in kinds and kind == pa.binary(16) else kind
