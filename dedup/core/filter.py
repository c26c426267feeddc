"""Split-block Bloom filter over key hashes, and its serialised form.

The bitset has the layout of Apache Parquet (``BloomFilter.md`` of apache/parquet-format), so
other programs can read it. The hash is SipHash-1-3 under a secret key instead of XXH64.

Serialised form, little-endian: a header of 64 bytes, a checksum of every page, the bitset.

====== ===== ===========================================================
offset type  content
====== ===== ===========================================================
0      4s    magic ``DSBF``
4      u16   version, 1
6      u16   reserved, 0
8      u64   z, number of 32-byte blocks, 1 to 2**31 - 1
16     u64   number of hashes added, repetitions included
24     u64   hash-key ID: which key the hashes were made with
32     f64   false-positive rate that the filter was sized for
40     u32   CRC-32 (zlib) of the page checksums
44     16 x  reserved, 0
60     u32   CRC-32 (zlib) of bytes 0 to 59
64     8*p   u64 per page of 4096 bytes of the bitset, p = ceil(z / 128): `kernel.page_sums`
then   32*z  bitset: 8 u32 words per block
====== ===== ===========================================================

Header and page checksums are the **head**. A reader that has the head can read and check any page
alone. So it can probe a filter without loading the whole bitset (`FilterHead.may_contain`).

Any other bytes, and a filter made with another hash key, raise `FilterDamaged`. The caller then
asks the exact catalog. Damage never means "not seen".
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dedup import kernel
from dedup.core.sizing import MAX_BLOCKS, blocks_for
from dedup.errors import FilterDamaged
from dedup.kernel.arrays import BOOL, I64, U8, U32, U64
from dedup.values.parse import OtherVersion

BLOCK_BYTES = 32
HEADER_BYTES = 64
#: Size of a page of the bitset. Each page has its own checksum.
PAGE_BYTES = 4096
PAGE_BLOCKS = PAGE_BYTES // BLOCK_BYTES

#: Largest number of pages that `FilterHead.may_contain` reads at a time.
WINDOW_PAGES = 256
#: Function that fills a buffer with the bytes of the bitset that begin at an offset, or raises.
ReadInto = Callable[[int, memoryview], None]

_MAGIC = b"DSBF"
_VERSION = 1
_HEADER = struct.Struct("<4sHHQQQdI16sI")
_KEY_ID_INPUT = b"dedup hash-key id v1"


def hash_key_id(key16: bytes) -> int:
    """Return a number that names a hash key without revealing it: the hash of a constant."""
    data = np.frombuffer(_KEY_ID_INPUT, np.uint8)
    return int(kernel.hash64(data, np.array([0, len(data)], np.int64), key16)[0])


@dataclass(slots=True, eq=False)
class SplitBlockFilter:
    """A split-block Bloom filter.

    Only the code that creates a filter adds hashes to it. So reads need no lock.
    """

    #: The bitset of z blocks, shape (8 * z,).
    bits: U32 = field(repr=False)
    #: Number of hashes added.
    count: int
    #: False-positive rate that the filter was sized for.
    fpr: float
    #: ID of the key that the hashes were made with, see `hash_key_id` above.
    hash_key_id: int

    @classmethod
    def sized(cls, n: int, fpr: float, *, hash_key_id: int) -> SplitBlockFilter:
        bits = np.zeros(8 * blocks_for(n, fpr), np.uint32)
        return cls(bits, count=0, fpr=fpr, hash_key_id=hash_key_id)

    @classmethod
    def build(cls, hashes: U64, fpr: float, *, hash_key_id: int) -> SplitBlockFilter:
        """Return a filter that holds these hashes and has the size for their number."""
        built = cls.sized(len(hashes), fpr, hash_key_id=hash_key_id)
        built.add(hashes)
        return built

    @property
    def blocks(self) -> int:
        return len(self.bits) // 8

    @property
    def nbytes(self) -> int:
        return head_bytes(self.blocks) + self.bits.nbytes

    def add(self, hashes: U64) -> None:
        """Add hashes, or raise ValueError if the bitset is read-only."""
        kernel.filter_add(self.bits, hashes)
        self.count += len(hashes)

    def may_contain(self, hashes: U64) -> BOOL:
        """Return for each of n hashes False if it was certainly never added, else True."""
        return kernel.filter_probe([self.bits], hashes).astype(np.bool_)

    def to_bytes(self) -> bytes:
        bitset = self.bits.astype("<u4", copy=False).view(np.uint8)
        sums = kernel.page_sums(bitset, PAGE_BYTES)
        head = FilterHead(self.blocks, self.count, self.hash_key_id, self.fpr, sums)
        return b"".join((head.to_bytes(), bitset.data))

    @classmethod
    def from_bytes(
        cls, data: bytes | memoryview, *, hash_key_id: int, head_crc32: int | None = None
    ) -> SplitBlockFilter:
        """Return the filter of these bytes, with its own writable copy of the bitset.

        Raises FilterDamaged if magic, version, size, a checksum or the hash key is wrong. If
        ``head_crc32`` is given, it must also be the CRC-32 of the head.
        """
        view = memoryview(data).cast("B")
        head = FilterHead.from_bytes(view, hash_key_id=hash_key_id, head_crc32=head_crc32)
        if len(view) != head.nbytes + BLOCK_BYTES * head.blocks:
            raise damaged(f"{len(view)} bytes do not fit {head.blocks} blocks")
        bitset = np.frombuffer(view, np.uint8, offset=head.nbytes)
        head.check(bitset, np.arange(len(head.sums)))
        bits = bitset.view("<u4").astype(np.uint32, copy=True)
        return cls(bits, count=head.count, fpr=head.fpr, hash_key_id=head.hash_key_id)


@dataclass(frozen=True, slots=True, eq=False)
class FilterHead:
    """The head of a serialised filter: its header, and a checksum of every page."""

    blocks: int
    count: int
    hash_key_id: int
    fpr: float
    sums: U64

    @property
    def nbytes(self) -> int:
        return head_bytes(self.blocks)

    def to_bytes(self) -> bytes:
        sums = self.sums.astype("<u8", copy=False).tobytes()
        fields = (_MAGIC, _VERSION, 0, self.blocks, self.count, self.hash_key_id, self.fpr)
        header = _HEADER.pack(*fields, zlib.crc32(sums), bytes(16), 0)
        return b"".join((header[:60], struct.pack("<I", zlib.crc32(header[:60])), sums))

    @classmethod
    def from_bytes(
        cls, data: bytes | memoryview, *, hash_key_id: int, head_crc32: int | None = None
    ) -> FilterHead:
        """Return the head that these bytes begin with."""
        view = memoryview(data)
        if len(view) < HEADER_BYTES:
            raise damaged(f"{len(view)} bytes are less than the header of {HEADER_BYTES}")
        fields = _HEADER.unpack_from(view)
        magic, version, reserved, z, count, key_id, fpr, sums_crc, spare, header_crc = fields
        if magic != _MAGIC:
            raise damaged("it does not begin as a filter of this library")
        if zlib.crc32(view[:60]) != header_crc:
            raise damaged("the checksum of its header does not match")
        if version != _VERSION:
            raise damaged(str(OtherVersion(version, _VERSION)))
        if reserved or any(spare):
            raise damaged("its header has bits that this version leaves empty")
        if not 1 <= z <= MAX_BLOCKS or len(view) < head_bytes(z):
            raise damaged(f"{len(view)} bytes do not fit {z} blocks")
        if key_id != hash_key_id:
            raise damaged(f"it was made with hash key {key_id:016x}, not {hash_key_id:016x}")
        sums = view[HEADER_BYTES : head_bytes(z)]
        if zlib.crc32(sums) != sums_crc:
            raise damaged("the checksum of its page checksums does not match")
        if head_crc32 is not None and zlib.crc32(view[: head_bytes(z)]) != head_crc32:
            raise damaged("its head is not the one that the manifest names")
        return cls(z, count, key_id, fpr, np.frombuffer(sums, "<u8").astype(np.uint64, copy=False))

    def check(self, pages: U8, numbers: I64) -> None:
        """Raise FilterDamaged if one of ``pages``, the pages with these ``numbers``, is damaged."""
        if not np.array_equal(kernel.page_sums(pages, PAGE_BYTES), self.sums[numbers]):
            raise damaged("the checksum of a page of its bitset does not match")

    def may_contain(self, hashes: U64, read_into: ReadInto) -> BOOL:
        """Return for each of n sorted hashes False if it was certainly never added, else True.

        Reads and checks, in order, only the pages that the hashes fall into. So a buffer of 1 MiB
        is enough for a filter of any size. If the operating system has cached the file, a probe is
        as fast as memory. Every read checks its pages, because bytes on a disk can change later.
        """
        pages, starts = kernel.filter_pages(hashes, self.blocks, PAGE_BLOCKS)
        answer = np.empty(len(hashes), np.uint8)
        buffer = np.empty(min(len(pages), WINDOW_PAGES) * PAGE_BYTES, np.uint8)
        for first in range(0, len(pages), WINDOW_PAGES):
            window = pages[first : first + WINDOW_PAGES]
            last = first + len(window)
            filled = buffer[: self._read(window, read_into, buffer.data)]
            self.check(filled, window)
            bits = filled.view("<u4").astype(np.uint32, copy=False)
            span = slice(int(starts[first]), int(starts[last]))
            answer[span] = kernel.filter_probe_pages(
                bits, window, starts[first : last + 1], hashes[span], self.blocks, PAGE_BLOCKS
            )
        return answer.view(np.bool_)

    def _read(self, pages: I64, read_into: ReadInto, buffer: memoryview) -> int:
        """Read the pages into the buffer, and return the number of bytes read.

        One call of ``read_into`` reads all pages that are next to each other.
        """
        ends = np.append(np.flatnonzero(np.diff(pages) != 1) + 1, len(pages)).tolist()
        size_bytes = self.blocks * BLOCK_BYTES
        start = filled = 0
        for end in ends:
            offset = int(pages[start]) * PAGE_BYTES
            length = min((end - start) * PAGE_BYTES, size_bytes - offset)
            read_into(offset, buffer[filled : filled + length])
            filled += length
            start = end
        return filled


def head_bytes(blocks: int) -> int:
    return HEADER_BYTES + 8 * -(-blocks // PAGE_BLOCKS)


def blocks_in(filter_bytes: int) -> int:
    """Return the number of blocks of a filter of this size in bytes."""
    # Each page has a sum in the head.
    pages, rest = divmod(filter_bytes - HEADER_BYTES, 8 + PAGE_BLOCKS * BLOCK_BYTES)
    return max(1, pages * PAGE_BLOCKS + max(0, rest - 8) // BLOCK_BYTES)


def damaged(what: str) -> FilterDamaged:
    return FilterDamaged(
        f"A Bloom filter cannot be used: {what}. "
        "Read the exact catalog instead, and rebuild the filter from its segment."
    )
