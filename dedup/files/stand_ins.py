"""Files without rows by which Spark finds the columns of Parquet files that it does not know."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from dedup.files.parquet_input import ParquetInput

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
    with ParquetInput(str(path)) as file:
        known = file.spark_schema
        if known.types == file.schema.types:
            place.symlink_to(path)
        else:
            pq.write_table(known.empty_table(), place, store_schema=False)
