"""Records that Java has no room for, found before Spark is given their file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from dedup.cli.run.input.file_columns import open_text
from dedup.cli.run.input.input_files import is_true
from dedup.errors import DataError

#: A record takes Java several times its size.
MOST_BYTES = 64 << 20
_BLOCK_BYTES = 8 << 20
#: No text is packed better by gzip.
_GZIP_RATIO = 1032


def refuse_long_records(path: Path, file_format: str, settings: Mapping[str, str]) -> None:
    """Refuse a text file with a record of more than `MOST_BYTES`.

    Parameters
    ----------
    path : Path
    file_format : str
        ``csv`` or ``json``; others have no lines. A CSV record of several lines may be longer.
    settings : mapping of str to str
        Options of Spark's reader, by name in lower case.

    Raises
    ------
    DataError
        With the file, the line, and what to do.
    """
    is_whole = is_true(settings, "multiline")
    if file_format not in ("csv", "json") or (is_whole and file_format == "csv"):
        return
    try:
        size = path.stat().st_size * (_GZIP_RATIO if path.suffix.lower() == ".gz" else 1)
        line = _long_line(path, settings) if size > MOST_BYTES else None
    except (OSError, pa.ArrowException):
        # Spark reports it.
        return
    if line is not None:
        what = "the file" if is_whole else f"line {line:,}"
        raise DataError(
            f"{path} cannot be read: {what} is a record of more than {MOST_BYTES >> 20} MiB, for "
            "which Java has no room. Nothing of the file was taken. Write the file again under its "
            "name, with smaller records, and run again.",
            remedy="bad-records",
        )


def _long_line(path: Path, settings: Mapping[str, str]) -> int | None:
    """Return the number of the first line that is too long, or None if there is none."""
    given = settings.get("linesep")
    ends = [given.encode()] if given else [b"\n", b"\r"]
    if is_true(settings, "multiline"):
        ends = []
    number, length = 1, 0
    with open_text(path) as stream:
        while chunk := stream.read(_BLOCK_BYTES):
            found = [at for end in ends if (at := chunk.find(end)) >= 0]
            if length + min(found, default=len(chunk)) > MOST_BYTES:
                return number
            number += sum(map(chunk.count, ends[:1]))
            last = max((chunk.rfind(end) for end in ends), default=-1)
            length = len(chunk) - last - 1 if found else length + len(chunk)
    return None
