"""Partition columns, whose values are in names of folders such as ``day=2024-05-01``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.errors import DataError

_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")
#: Characters that Spark escapes in a folder's name, and the name for rows without a value.
_TO_ESCAPE = re.compile(r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
#: Longest name of a folder that every usual file system allows.
_LONGEST_BYTES = 255


def folder_names(path: Path, root: Path) -> Iterator[str]:
    """Yield the names of partition columns in the folders between a root and a file."""
    for name, _ in folder_values(path, root):
        yield name


def folder_values(path: Path, root: Path) -> Iterator[tuple[str, str | None]]:
    """Yield the names and values of partition columns in the folders from a root to a file."""
    for part in path.relative_to(root).parts[:-1]:
        if "=" in part:
            # Spark writes %3A for a colon, character by character.
            name, _, value = (
                _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
                for text in part.partition("=")
            )
            yield name, None if value == _NO_VALUE else value


def parted(rows: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Split rows by partition columns, and yield each folder with its rows.

    The rows no longer have the partition columns. The first column names the outermost folder.
    Raises DataError for a value that cannot be a folder's name.
    """
    if not rows.num_rows:
        return
    if not columns:
        yield "", rows
        return
    levels = [_folder_names(rows.column(name), name) for name in columns]
    folders = pc.binary_join_element_wise(*levels, "/").dictionary_encode()
    rest = rows.drop_columns(list(columns))
    numbers = folders.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(numbers, kind="stable")
    rest = rest.take(pa.array(order))
    ends = np.cumsum(np.bincount(numbers))
    for name, begin, end in zip(folders.dictionary.to_pylist(), [0, *ends], ends, strict=False):
        yield name, rest.slice(begin, end - begin)


def _folder_names(column: pa.Array, name: str) -> pa.Array:
    values = column.dictionary_encode()
    texts = values.dictionary.cast(pa.string()).to_pylist()
    begin = f"{_escaped(name)}="
    names = [begin + _escaped(text) for text in texts]
    for text, each in zip(texts, names, strict=True):
        # An empty text, or the text `_NO_VALUE`, would be read back as a missing value.
        has_name = text not in ("", _NO_VALUE) and "\0" not in each
        if not has_name or len(each.encode()) > _LONGEST_BYTES:
            raise DataError(
                f"Column {name!r} names folders, and {text[:40]!r} cannot be a folder's name: it "
                f"is empty or {_NO_VALUE!r}, which stand for no value, has a NUL, or needs more "
                f"than {_LONGEST_BYTES} bytes with the column's name. No row of its micro-batch "
                "was published. Change such values in the query (nullif, substring, md5), or "
                "partition by another column."
            )
    folders = pa.array(names, pa.string())
    of_rows = folders.take(values.indices) if len(folders) else pa.nulls(len(column), pa.string())
    return of_rows.fill_null(begin + _NO_VALUE)


def _escaped(text: str) -> str:
    return _TO_ESCAPE.sub(lambda match: f"%{ord(match[0]):02X}", text)
