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
#: No text is packed better.
_RATIOS = {".gz": 1032, ".bz2": 1 << 20, ".zst": 1 << 20}


def too_long(path: Path, what: str) -> DataError:
    """Return the error about a record of more than `MOST_BYTES`."""
    return DataError(
        f"{path} cannot be read: {what} is a record of more than {MOST_BYTES >> 20} MiB, for "
        "which Java has no room. Nothing of the file was taken. Write the file again under its "
        "name, with smaller records, and run again.",
        remedy="bad-records",
    )


def refuse_long_json(path: Path, settings: Mapping[str, str]) -> None:
    """Refuse a JSON file with a record of more than `MOST_BYTES`.

    Parameters
    ----------
    path : Path
    settings : mapping of str to str
        Options of Spark's reader, by name in lower case.

    Raises
    ------
    DataError
        With the file, the line, and what to do.
    """
    given, is_whole = settings.get("linesep"), is_true(settings, "multiline")
    ends = [] if is_whole else [given.encode()] if given else [b"\n", b"\r"]
    number, length = 1, 0
    try:
        if path.stat().st_size * _RATIOS.get(path.suffix.lower(), 1) <= MOST_BYTES:
            return
        with open_text(path) as stream:
            while chunk := stream.read(_BLOCK_BYTES):
                found = [at for end in ends if (at := chunk.find(end)) >= 0]
                if length + min(found, default=len(chunk)) > MOST_BYTES:
                    raise too_long(path, "the file" if is_whole else f"line {number:,}")
                number += sum(map(chunk.count, ends[:1]))
                last = max((chunk.rfind(end) for end in ends), default=-1)
                length = len(chunk) - last - 1 if found else length + len(chunk)
    except (OSError, pa.ArrowException):
        # Spark reports it.
        return
