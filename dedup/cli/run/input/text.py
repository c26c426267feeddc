"""Text files of the input: how they are opened, the line of a record, and records of any length."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa

from dedup.cli.run.input.files import is_true
from dedup.errors import DataError

#: Java needs several times the size of a record.
MOST_BYTES = 64 << 20
_BLOCK_BYTES = 8 << 20
#: Best compression ratio of each format.
_RATIOS = {".gz": 1032, ".bz2": 1 << 20, ".zst": 1 << 20}
#: Formats that Hadoop unpacks, but not pyarrow.
_ONLY_HADOOP = (".deflate", ".snappy", ".lz4", ".lzo", ".lzo_deflate")
_LINE_END = re.compile(rb"\r\r\n|\r\n|\n|\r")
_SEARCHED_BYTES, _SHOWN_CHARS = 64 << 20, 200


def open_text(path: Path) -> pa.NativeFile:
    """Open a file, unpacked by its name in any case, as Hadoop does.

    Raises OSError also if only Hadoop can unpack it.
    """
    name = path.name.lower()
    if name.endswith(_ONLY_HADOOP):
        raise OSError(f"{path} is compressed in a way that pyarrow does not know")
    compression = "gzip" if name.endswith(".gz") else "detect"
    return pa.input_stream(str(path), compression=compression)


def line_of(path: Path, digest: str, key: Callable[[bytes], bytes]) -> str:
    """Return a sentence about the line whose key has this MD5, or an empty text.

    Only the first 64 MiB are searched.
    """
    try:
        with open_text(path) as stream:
            text = stream.read(_SEARCHED_BYTES)
    except (OSError, pa.ArrowException):
        return ""
    lines = _LINE_END.split(text.removeprefix(b"\xef\xbb\xbf"))
    for number, line in enumerate(lines, start=1):
        keys = (key(line), line) if len(lines) > 1 else ()
        if digest in [hashlib.md5(each, usedforsecurity=False).hexdigest() for each in keys]:
            shown = line.decode("utf-8", errors="replace")[:_SHOWN_CHARS]
            return f" It is line {number}: {shown}."
    return ""


def too_long(path: Path, what: str) -> DataError:
    """Return the error about a record of more than `MOST_BYTES`."""
    return DataError(
        f"{path} cannot be read: {what} is a record of more than {MOST_BYTES >> 20} MiB, for "
        "which Java has no room. Nothing of the file was taken. Write the file again under its "
        "name, with smaller records, and run again.",
        remedy="bad-records",
    )


def refuse_long_json(path: Path, settings: Mapping[str, str]) -> None:
    """Raise DataError for the first record of a JSON file that is longer than `MOST_BYTES`.

    `settings` are the options of Spark's reader, by name in lower case.
    """
    given, is_whole = settings.get("linesep"), is_true(settings, "multiline")
    ends = [] if is_whole else [given.encode()] if given else [b"\n", b"\r"]
    number, length = 1, 0
    try:
        if path.stat().st_size * _RATIOS.get(path.suffix.lower(), 1) <= MOST_BYTES:
            return
        with open_text(path) as stream:
            while chunk := stream.read(_BLOCK_BYTES):
                first = [at for end in ends if (at := chunk.find(end)) >= 0]
                if length + min(first, default=len(chunk)) > MOST_BYTES:
                    raise too_long(path, "the file" if is_whole else f"line {number:,}")
                number += sum(map(chunk.count, ends[:1]))
                last = max((chunk.rfind(end) for end in ends), default=-1)
                length = len(chunk) - last - 1 if first else length + len(chunk)
    except (OSError, pa.ArrowException):
        return  # Spark reports it
