"""Columns that folders name, such as ``day=2024-05-01``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.errors import DataError

_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")
#: What Spark escapes in the name of a folder, and calls the one of rows without a value.
_TO_ESCAPE = re.compile(r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
#: Of the name of a folder, on all usual file systems.
_LONGEST_BYTES = 255


def folder_names(path: Path, root: Path) -> Iterator[str]:
    """Return the names of columns in the folders between a root and a file, as Spark reads them."""
    for part in path.relative_to(root).parts[:-1]:
        if "=" in part:
            # Spark writes %3A for a colon, each such character by itself.
            yield _ESCAPED.sub(lambda found: chr(int(found[1], 16)), part.partition("=")[0])


def parted(rows: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield rows by the folders that they belong to, without the columns that name these.

    Parameters
    ----------
    rows : RecordBatch
    columns : sequence of str
        From the outermost folder to the innermost.

    Raises
    ------
    DataError
        If a value cannot be the name of a folder.
    """
    if not rows.num_rows:
        return
    if not columns:
        yield "", rows
        return
    named = [_folders_of(rows.column(name), name) for name in columns]
    folders = pc.binary_join_element_wise(*named, "/").dictionary_encode()
    rest = rows.drop_columns(list(columns))
    numbers = folders.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(numbers, kind="stable")
    rest = rest.take(pa.array(order))
    ends = np.cumsum(np.bincount(numbers))
    for name, begin, end in zip(folders.dictionary.to_pylist(), [0, *ends], ends, strict=False):
        yield name, rest.slice(begin, end - begin)


def _folders_of(column: pa.Array, name: str) -> pa.Array:
    values = column.dictionary_encode()
    texts = values.dictionary.cast(pa.string()).to_pylist()
    begin = f"{_escaped(name)}="
    names = [begin + _escaped(text) for text in texts]
    for text, each in zip(texts, names, strict=True):
        if text in ("", _NO_VALUE):
            raise DataError(
                f"Column {name!r} names folders, and readers take a folder named by {text!r} for "
                "rows without a value. Nothing of its micro-batch was published. Let the query "
                "give it another value, or none (nullif), or partition by another column."
            )
        if "\0" in each or len(each.encode()) > _LONGEST_BYTES:
            raise DataError(
                f"Column {name!r} names folders, and none can be named by {text[:40]!r} "
                f"({len(each.encode()):,} bytes with the column; file systems take up to "
                f"{_LONGEST_BYTES}, and no NUL). Nothing of its micro-batch was published. Shorten "
                "the values in the query (substring, md5), or partition by another column."
            )
    folders = pa.array(names, pa.string())
    found = folders.take(values.indices) if len(folders) else pa.nulls(len(column), pa.string())
    return found.fill_null(begin + _NO_VALUE)


def _escaped(text: str) -> str:
    return _TO_ESCAPE.sub(lambda found: f"%{ord(found[0]):02X}", text)
