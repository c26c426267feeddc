"""What the end of an ORC file tells of its types, values, stripes and writer.

pyarrow hands out the bytes and keeps their content to itself. Messages and numbers are those of
``orc_proto.proto`` (apache/orc-format); fields that nobody asks for are passed over.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

#: By the numbers of its fields, in the order of the file.
_Message: TypeAlias = "defaultdict[int, list[int | bytes]]"

#: Kinds of columns (``Type.Kind``).
STRING, BINARY, TIMESTAMP, MAP, STRUCT, DECIMAL = 7, 8, 9, 11, 12, 14
DATE, VARCHAR, CHAR, INSTANT = 15, 16, 17, 18
#: Bytes of a value in memory, by its kind; what is not named has offsets of 4 bytes.
_WIDTHS = {0: 1, 1: 1, 2: 2, 4: 8, 6: 8, DECIMAL: 16, INSTANT: 8, TIMESTAMP: 8, STRUCT: 0}
#: What writers before HIVE-8732 tell of the largest values is wrong.
_FIRST_TRUE_STATISTICS = 1
_NO_CODEC, _ZLIB, _SNAPPY, _ZSTD = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class OrcColumn:
    """A column at any depth.

    Parameters
    ----------
    kind : int
        Of the file, such as `DATE`.
    below : tuple of int
        The columns in it, by their numbers.
    values : int
        How many there are, without nulls.
    has_nulls : bool
        Also where the file does not tell.
    least, most : int or None
        Of dates in days, of times in milliseconds; None where the file does not tell.
    nbytes : int or None
        Of all values in memory; None where the file does not tell.
    """

    kind: int
    below: tuple[int, ...]
    values: int
    has_nulls: bool
    least: int | None
    most: int | None
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class Stripe:
    """Rows that were written together.

    Parameters
    ----------
    begin : int
        Its first byte in the file.
    rows : int
    footer : int
        First byte of its footer.
    footer_bytes : int
    """

    begin: int
    rows: int
    footer: int
    footer_bytes: int


@dataclass(frozen=True, slots=True)
class OrcTail:
    """What the end of a file tells.

    Parameters
    ----------
    columns : tuple of OrcColumn
        All of them by their numbers; 0 is the row.
    stripes : tuple of Stripe
    codec : int
        Of the bytes in the file.
    is_encrypted : bool
        Whether some columns are.
    """

    columns: tuple[OrcColumn, ...]
    stripes: tuple[Stripe, ...]
    codec: int
    is_encrypted: bool

    @classmethod
    def of(cls, serialized: bytes) -> OrcTail:
        """Return what the bytes say that pyarrow calls the serialized file tail.

        Raises
        ------
        pyarrow.ArrowInvalid
            If they are damaged.
        """
        with _damaged("the file's footer"):
            whole = _message(serialized)
            postscript, footer = _message(_bytes(whole, 1)), _message(_bytes(whole, 2))
            told = _number(postscript, 6) >= _FIRST_TRUE_STATISTICS
            statistics = [_message(m) for m in footer[7]] if told else []
            kinds = [_message(m) for m in footer[4]]
            statistics += [defaultdict(list)] * (len(kinds) - len(statistics))
            columns = tuple(map(_column, kinds, statistics))
            if not columns or any(b >= len(columns) for c in columns for b in c.below):
                raise ValueError("a column is not there")
            stripes = tuple(_stripe(_message(m)) for m in footer[3])
            if any(s.footer + s.footer_bytes > _number(whole, 3) for s in stripes):
                raise ValueError("a stripe is not there")
            return cls(columns, stripes, _number(postscript, 2), is_encrypted=10 in footer)

    def within(self, number: int) -> Iterator[OrcColumn]:
        """Yield a column and all that are in it."""
        waiting, seen = [number], set[int]()
        while waiting:
            at = waiting.pop()
            # In a damaged file a column may be in itself.
            if at not in seen:
                seen.add(at)
                yield self.columns[at]
                waiting += self.columns[at].below

    def stripe_bytes(self, columns: Sequence[OrcColumn]) -> int | None:
        """Return how large about these columns of a stripe are in memory; None: nobody knows."""
        sizes = [column.nbytes for column in columns]
        rows = sum(stripe.rows for stripe in self.stripes)
        if None in sizes:
            return None
        total = sum(size for size in sizes if size is not None)
        return total * max((s.rows for s in self.stripes), default=0) // max(1, rows)

    def zone(self, stripe_footer: bytes) -> str | None:
        """Return the time zone of a stripe's writer; None where it cannot be told.

        Raises
        ------
        pyarrow.ArrowException, OSError
            If the footer is damaged.
        """
        with _damaged("a stripe's footer"):
            plain = self._plain(stripe_footer)
            zones = [] if plain is None else _message(plain)[3]
            return zones[-1].decode() if zones and isinstance(zones[-1], bytes) else None

    def _plain(self, data: bytes) -> bytes | None:
        """Undo the compression, which is chunk by chunk; None where only ORC itself can."""
        if self.codec == _NO_CODEC:
            return data
        plain, at = bytearray(), 0
        while at < len(data):
            about = int.from_bytes(data[at : at + 3], "little")
            chunk = data[at + 3 : at + 3 + (about >> 1)]
            at += 3 + (about >> 1)
            if about & 1:
                plain += chunk
            elif self.codec == _ZLIB:
                plain += zlib.decompress(chunk, wbits=-zlib.MAX_WBITS)
            elif self.codec == _SNAPPY:
                size, _ = _varint(chunk, 0)
                plain += pa.decompress(chunk, decompressed_size=size, codec="snappy")
            elif self.codec == _ZSTD:
                with pa.CompressedInputStream(pa.BufferReader(chunk), "zstd") as stream:
                    plain += stream.read()
            else:
                # The others do not tell how large what they hold is.
                return None
        return bytes(plain)


@contextmanager
def _damaged(what: str) -> Iterator[None]:
    """Say that something is damaged, as pyarrow does."""
    try:
        yield
    except (ValueError, TypeError, IndexError, OverflowError, zlib.error) as error:
        raise pa.ArrowInvalid(f"{what} is damaged: {error}") from None


def _column(kind: _Message, told: _Message) -> OrcColumn:
    number, values = _number(kind, 1), _number(told, 1)
    extremes = _message(_bytes(told, 9 if number in (TIMESTAMP, INSTANT) else 7))
    # In UTC where the writer was careful (ORC-135), else in its own zone.
    at = 3 if number in (TIMESTAMP, INSTANT) and 3 in extremes else 1
    least, most = (_signed(extremes, n) if n in extremes else None for n in (at, at + 1))
    width = _WIDTHS.get(number, 4)
    nbytes: int | None = values * width if told else None
    if number in (STRING, VARCHAR, CHAR, BINARY) and values:
        field, total = (8, 1) if number == BINARY else (4, 3)
        texts = _message(_bytes(told, field))
        nbytes = values * width + _signed(texts, total) if total in texts else None
    has_nulls = 10 not in told or bool(_number(told, 10))
    return OrcColumn(number, tuple(_packed(kind[2])), values, has_nulls, least, most, nbytes)


def _stripe(told: _Message) -> Stripe:
    begin = _number(told, 1)
    footer = begin + _number(told, 2) + _number(told, 3)
    return Stripe(begin, _number(told, 5), footer, _number(told, 4))


def _message(data: int | bytes) -> _Message:
    """Take a message apart."""
    if isinstance(data, int):
        raise TypeError("a number where a message belongs")
    found: _Message = defaultdict(list)
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value: int | bytes
        if key & 7 == 0:
            value, at = _varint(data, at)
        else:
            size, at = {1: (8, at), 5: (4, at)}.get(key & 7) or _varint(data, at)
            value, at = data[at : at + size], at + size
        if at > len(data):
            raise ValueError("it ends too early")
        found[key >> 3].append(value)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _number(message: _Message, field: int) -> int:
    value = message[field][-1] if field in message else 0
    if isinstance(value, bytes):
        raise TypeError("bytes where a number belongs")
    return value


def _signed(message: _Message, field: int) -> int:
    value = _number(message, field)
    return (value >> 1) ^ -(value & 1)


def _bytes(message: _Message, field: int) -> int | bytes:
    return message[field][-1] if field in message else b""


def _packed(values: Sequence[int | bytes]) -> Iterator[int]:
    """Yield numbers, which writers may send one by one or together."""
    for value in values:
        if isinstance(value, int):
            yield value
            continue
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            yield number
