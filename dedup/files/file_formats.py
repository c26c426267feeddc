"""The formats of files that tasks read themselves."""

from __future__ import annotations

from collections.abc import Callable

from dedup.files.input_file import InputFile
from dedup.files.orc_input import OrcInput
from dedup.files.parquet_input import ParquetInput

_READERS: dict[str, Callable[[str], InputFile]] = {"parquet": ParquetInput, "orc": OrcInput}
#: As people write them, by what Spark calls them.
NAMES = {"parquet": "Parquet", "orc": "ORC"}


def opened(file_format: str, path: str) -> InputFile:
    """Return a file, ready to be compared and read.

    Raises
    ------
    OSError, pyarrow.ArrowException
        Where it is not there, or not of that format.
    """
    return _READERS[file_format](path)
