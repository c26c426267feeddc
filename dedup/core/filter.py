"""Split-block Bloom filter over key hashes: sizing, and bytes that outlive the process.

The bitset has the layout of Apache Parquet (``BloomFilter.md`` of apache/parquet-format), so
others can read it; the hash is ours (SipHash-1-3 under a secret key) in place of XXH64.

Serialised form, little-endian, 64 bytes of header and then the bitset:

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
40     u32   CRC-32 (zlib) of the bitset
44     16 x  reserved, 0
60     u32   CRC-32 (zlib) of bytes 0 to 59
64     32*z  bitset: 8 u32 words per block
====== ===== ===========================================================

Bytes that are not exactly this, or made with another hash key, raise `FilterDamaged`: the caller
asks the exact catalog instead. They never mean "not seen".
"""

from __future__ import annotations

import functools
import math
import mmap
import struct
import sys
import zlib

import numpy as np
import numpy.typing as npt

from dedup import kernel
from dedup.errors import ConfigError, FilterDamaged

BLOCK_BYTES = 32
HEADER_BYTES = 64
MAX_BLOCKS = 2**31 - 1

_MAGIC = b"DSBF"
_VERSION = 1
_HEADER = struct.Struct("<4sHHQQQdI16sI")
_KEY_ID_INPUT = b"dedup hash-key id v1"
#: Above this many keys per block every bit is set: the rate is 1 in double precision.
_FULL_LOAD = 4096.0


def predicted_fpr(n: int, z: int) -> float:
    """Return the false-positive rate of a filter of ``z`` blocks that holds ``n`` distinct keys.

    Keys per block follow Poisson(n / z); a lane with j keys answers yes with 1 - (31/32)**j,
    and all eight must. (The closed form (1 - exp(-8/b))**8 that some readers use is 1.5 to 4.5
    times too low.)

    Raises
    ------
    ConfigError
        When ``n`` is negative or ``z`` is not 1 to 2**31 - 1.
    """
    if n < 0:
        raise ConfigError(f"a filter cannot hold {n} keys: give 0 or more")
    if not 1 <= z <= MAX_BLOCKS:
        raise ConfigError(f"a filter cannot have {z} blocks: give 1 to {MAX_BLOCKS}")
    return _fpr_of_load(n / z)


def blocks_for(n: int, fpr: float) -> int:
    """Return the least number of blocks that keeps ``n`` distinct keys at or below ``fpr``.

    Raises
    ------
    ConfigError
        When ``n`` is negative, ``fpr`` is not between 0 and 1, or 2**31 - 1 blocks (64 GiB) are
        not enough.
    """
    if n < 0:
        raise ConfigError(f"a filter cannot hold {n} keys: give 0 or more")
    if not 0 < fpr < 1:
        raise ConfigError(f"fpr is a rate between 0 and 1, such as 0.01; got {fpr}")
    load = _load_for(fpr)
    z = max(1, math.ceil(n / load)) if load > 0 else MAX_BLOCKS + 1
    if z > MAX_BLOCKS:
        raise ConfigError(
            f"a filter of {n} keys at fpr {fpr} passes 64 GiB: "
            "use more shards or buckets, or a higher fpr"
        )
    return z


def _fpr_of_load(load: float) -> float:
    if load == 0:
        return 0.0
    if load > _FULL_LOAD:
        return 1.0
    j = np.arange(1, int(load + 12 * math.sqrt(load)) + 64, dtype=np.float64)
    log_pmf = np.cumsum(np.log(load / j)) - load
    lane_fill = -np.expm1(j * math.log1p(-1 / 32))
    return min(float((np.exp(log_pmf) * lane_fill**8).sum()), 1.0)


@functools.lru_cache(maxsize=64)
def _load_for(fpr: float) -> float:
    """Return the most keys per block that stay at or below ``fpr``."""
    low, high = 0.0, _FULL_LOAD
    for _ in range(80):
        middle = (low + high) / 2
        if _fpr_of_load(middle) <= fpr:
            low = middle
        else:
            high = middle
    return low


def hash_key_id(key16: bytes) -> int:
    """Return the number that names a hash key without giving it away.

    It is the SipHash-1-3 of a constant under that key.
    """
    data = np.frombuffer(_KEY_ID_INPUT, np.uint8)
    return int(kernel.hash64(data, np.array([0, len(data)], np.int64), key16)[0])


class SplitBlockFilter:
    """A split-block Bloom filter. Only its creator adds to it; reading needs no lock.

    Parameters
    ----------
    bits : ndarray of uint32, shape (8 * z,)
        The bitset; used as it is, not copied.
    count : int
        Hashes added to it.
    fpr : float
        Rate it was sized for.
    hash_key_id : int
        Which key its hashes are made with, from `hash_key_id`.
    """

    __slots__ = ("bits", "count", "fpr", "hash_key_id")

    def __init__(
        self, bits: npt.NDArray[np.uint32], *, count: int, fpr: float, hash_key_id: int
    ) -> None:
        self.bits = bits
        self.count = count
        self.fpr = fpr
        self.hash_key_id = hash_key_id

    @classmethod
    def sized(cls, n: int, fpr: float, *, hash_key_id: int) -> SplitBlockFilter:
        """Return an empty filter for ``n`` keys at ``fpr``; none at all is legal (1 block)."""
        bits = np.zeros(8 * blocks_for(n, fpr), np.uint32)
        return cls(bits, count=0, fpr=fpr, hash_key_id=hash_key_id)

    @classmethod
    def build(
        cls, hashes: npt.NDArray[np.uint64], fpr: float, *, hash_key_id: int
    ) -> SplitBlockFilter:
        """Return a filter sized for exactly these hashes, and holding them."""
        made = cls.sized(len(hashes), fpr, hash_key_id=hash_key_id)
        made.add(hashes)
        return made

    @property
    def blocks(self) -> int:
        """Number of 32-byte blocks."""
        return len(self.bits) // 8

    @property
    def nbytes(self) -> int:
        """Bytes of the serialised form."""
        return HEADER_BYTES + self.bits.nbytes

    def add(self, hashes: npt.NDArray[np.uint64]) -> None:
        """Add hashes. Raises ValueError on a filter over read-only bytes."""
        kernel.filter_add(self.bits, hashes)
        self.count += len(hashes)

    def may_contain(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return False only where a hash was certainly never added. Shape (n,)."""
        return kernel.filter_probe([self.bits], hashes).astype(np.bool_)

    def to_bytes(self) -> bytes:
        """Return the serialised form that the module describes."""
        bitset = self.bits.astype("<u4", copy=False)
        fields = (_MAGIC, _VERSION, 0, self.blocks, self.count, self.hash_key_id, self.fpr)
        header = _HEADER.pack(*fields, zlib.crc32(bitset.data), bytes(16), 0)
        return b"".join((header[:60], struct.pack("<I", zlib.crc32(header[:60])), bitset.data))

    @classmethod
    def from_bytes(
        cls, data: bytes | memoryview, *, hash_key_id: int, check_bits: bool = True
    ) -> SplitBlockFilter:
        """Return the filter of these bytes with a bitset of its own, aligned and writable.

        Raises
        ------
        FilterDamaged
            As `from_buffer`.
        """
        view = cls.from_buffer(data, hash_key_id=hash_key_id, check_bits=check_bits)
        view.bits = view.bits.astype(np.uint32, copy=True)
        return view

    @classmethod
    def from_buffer(
        cls, buffer: bytes | memoryview | mmap.mmap, *, hash_key_id: int, check_bits: bool = True
    ) -> SplitBlockFilter:
        """Return the filter of these bytes without copying them, such as a memory map.

        Parameters
        ----------
        buffer
            The serialised form, and nothing after it.
        hash_key_id
            The key that hashes are made with now; a filter made with another is refused.
        check_bits
            Whether to read the whole bitset for its checksum. Leave out only for bytes that
            this process has checked before.

        Raises
        ------
        FilterDamaged
            When magic, version, size, a checksum or the hash key is not as it must be.
        """
        view = memoryview(buffer).cast("B")
        if len(view) < HEADER_BYTES:
            raise _damaged(f"{len(view)} bytes are less than the header of {HEADER_BYTES}")
        magic, version, reserved, z, count, key_id, fpr, bits_crc, spare, header_crc = (
            _HEADER.unpack_from(view)
        )
        if magic != _MAGIC:
            raise _damaged(f"it starts with {magic!r} instead of {_MAGIC!r}")
        if zlib.crc32(view[:60]) != header_crc:
            raise _damaged("the checksum of its header does not match")
        if version != _VERSION or reserved or any(spare):
            raise _damaged(f"version {version} is not one that this release reads ({_VERSION})")
        if not 1 <= z <= MAX_BLOCKS or len(view) != HEADER_BYTES + BLOCK_BYTES * z:
            raise _damaged(f"{len(view)} bytes do not fit {z} blocks")
        if key_id != hash_key_id:
            raise _damaged(f"it was made with hash key {key_id:016x}, not {hash_key_id:016x}")
        if check_bits and zlib.crc32(view[HEADER_BYTES:]) != bits_crc:
            raise _damaged("the checksum of its bitset does not match")
        bits = np.frombuffer(view, "<u4", offset=HEADER_BYTES)
        if sys.byteorder == "big":
            bits = bits.astype(np.uint32)
        return cls(bits, count=count, fpr=fpr, hash_key_id=key_id)

    def __repr__(self) -> str:
        return f"SplitBlockFilter({self.count} hashes, {self.blocks} blocks, fpr {self.fpr:g})"


def _damaged(what: str) -> FilterDamaged:
    return FilterDamaged(
        f"a Bloom filter cannot be used: {what}. "
        "Ask the exact catalog instead and rebuild the filter from its segment"
    )
