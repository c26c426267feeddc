"""Text files of the input: how they are opened, and the line of a record."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

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
