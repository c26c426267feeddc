"""The lines of a text file as Spark's readers see them, block by block."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from dedup.cli.stop import StopRequest

_BLOCK_BYTES = 8 << 20
#: What Hadoop unpacks, and pyarrow does not.
_ONLY_HADOOP = (".deflate", ".snappy", ".lz4", ".lzo", ".lzo_deflate")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def open_text(path: Path) -> pa.NativeFile:
    """Open a file, unpacked as its name says; Hadoop looks at names in any case.

    Raises
    ------
    OSError
        Also where only Hadoop can unpack it.
    """
    name = path.name.lower()
    if name.endswith(_ONLY_HADOOP):
        raise OSError(f"{path} is compressed in a way that pyarrow does not know")
    compression = "gzip" if name.endswith(".gz") else "detect"
    return pa.input_stream(str(path), compression=compression)


def blocks(
    path: Path, settings: Mapping[str, str], stop: StopRequest | None = None
) -> Iterator[tuple[int, bytes]]:
    """Whole lines in UTF-8 that end in a line feed, with the number of the first.

    Parameters
    ----------
    path : Path
    settings : mapping of str to str
        Options of Spark's reader, by name in lower case.
    stop : StopRequest, optional

    Raises
    ------
    KeyboardInterrupt
        When `stop` is set.
    OSError, pyarrow.ArrowException
        Where the file cannot be read.
    LookupError, UnicodeError
        Where it cannot be decoded.
    """
    separator = settings.get("linesep", "\n").encode()
    number, rest, tail = 1, list[bytes](), b""
    for chunk in _chunks(path, settings):
        if stop is not None and stop.is_set():
            raise KeyboardInterrupt
        # It may stand across the ends of two chunks.
        if separator not in tail + chunk:
            rest.append(chunk)
            tail = (tail + chunk)[-len(separator) :]
            continue
        whole, _, last = b"".join([*rest, chunk]).rpartition(separator)
        block = _with_line_feeds(whole, separator) + b"\n"
        yield number, block
        number += block.count(b"\n")
        rest, tail = [last], last[-len(separator) :]
    if block := b"".join(rest):
        yield number, _with_line_feeds(block, separator)


def _with_line_feeds(block: bytes, separator: bytes) -> bytes:
    if separator == b"\n":
        return block
    return b"\n".join(line.replace(b"\n", b" ") for line in block.split(separator))


def _chunks(path: Path, settings: Mapping[str, str]) -> Iterator[bytes]:
    """The text in UTF-8; with line feeds alone, unless lines end in something else."""
    encoding = settings.get("encoding", settings.get("charset", "utf-8"))
    decoder = None
    if codecs.lookup(encoding).name != "utf-8":
        decoder = codecs.getincrementaldecoder(encoding)()
    is_first = True
    with open_text(path) as stream:
        while chunk := stream.read(_BLOCK_BYTES):
            if decoder is not None:
                chunk = decoder.decode(chunk).encode()
            if is_first:
                chunk, is_first = chunk.removeprefix(_BYTE_ORDER_MARK), False
            if b"\r" in chunk and "linesep" not in settings:
                chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            yield chunk


def is_true(settings: Mapping[str, str], name: str) -> bool:
    """Whether an option of Spark's reader is on."""
    return settings.get(name, "").lower() == "true"


def as_text(line: bytes) -> str:
    """Decode a line; what is no UTF-8 becomes the sign that Spark has for it."""
    return line.decode("utf-8", errors="replace")
