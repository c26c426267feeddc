"""Independent models of the kernel in plain Python, and inputs for its tests.

Nothing here uses the package's own arithmetic: the models follow the papers and formats.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from dedup import kernel
from dedup.kernel._kernel import Kernel

KEY = bytes(range(16))
MASK = 2**64 - 1
SANITIZED = bool(os.environ.get("DEDUP_SANITIZED"))

settings.register_profile("kernel", deadline=None, max_examples=60)
kernel_settings = settings.get_profile("kernel")


def load(name: str) -> Kernel:
    try:
        return kernel.implementation(name)
    except ImportError as error:
        pytest.skip(
            "the C extension is not built: install a C compiler, then pip install --editable . "
            f"({error})"
        )


#: Every path of the kernel; on a machine without AVX2 the first two are the same.
PATHS = ("native", "scalar", "numpy")


def rotate(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & MASK


def siphash(data: bytes, key: bytes, compressions: int = 1, finalisations: int = 3) -> int:
    """SipHash-c-d after figure 2.1 of the paper."""
    k0, k1 = struct.unpack("<QQ", key)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D]
    v += [k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def sip_round() -> None:
        v[0] = (v[0] + v[1]) & MASK
        v[2] = (v[2] + v[3]) & MASK
        v[1] = rotate(v[1], 13) ^ v[0]
        v[3] = rotate(v[3], 16) ^ v[2]
        v[0] = rotate(v[0], 32)
        v[2] = (v[2] + v[1]) & MASK
        v[0] = (v[0] + v[3]) & MASK
        v[1] = rotate(v[1], 17) ^ v[2]
        v[3] = rotate(v[3], 21) ^ v[0]
        v[2] = rotate(v[2], 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for (m,) in struct.iter_unpack("<Q", padded):
        v[3] ^= m
        for _ in range(compressions):
            sip_round()
        v[0] ^= m
    v[2] ^= 0xFF
    for _ in range(finalisations):
        sip_round()
    return int(v[0] ^ v[1] ^ v[2] ^ v[3])


#: From BloomFilter.md of apache/parquet-format.
PARQUET_SALT = (
    0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31,
)  # fmt: skip


def sbbf_add(bits: list[int], h: int) -> None:
    """``filter_insert`` of the Parquet specification."""
    block = ((h >> 32) * (len(bits) // 8)) >> 32
    for lane, salt in enumerate(PARQUET_SALT):
        bits[8 * block + lane] |= 1 << (((h & 0xFFFFFFFF) * salt & 0xFFFFFFFF) >> 27)


def sbbf_check(bits: Sequence[int], h: int) -> bool:
    """``filter_check`` of the Parquet specification."""
    block = ((h >> 32) * (len(bits) // 8)) >> 32
    return all(
        bits[8 * block + lane] >> (((h & 0xFFFFFFFF) * salt & 0xFFFFFFFF) >> 27) & 1
        for lane, salt in enumerate(PARQUET_SALT)
    )


def splitmix(seed: int, count: int) -> list[int]:
    """``nextLong`` of figure 17 of "Fast splittable pseudorandom number generators"."""
    made = []
    for i in range(1, count + 1):
        z = (seed + i * 0x9E3779B97F4A7C15) & MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        made.append(z ^ z >> 31)
    return made


#: Seeded with the first 16 hexadecimal digits of pi after the point.
MULTIPLIERS = splitmix(0x243F6A8885A308D3, 65536 // 8 + 1)


def page_sum(page: bytes) -> int:
    """The multilinear hash of the paper's section 2, with odd multipliers."""
    padded = page + bytes(-len(page) % 8)
    words = [word ^ word >> 32 for (word,) in struct.iter_unpack("<Q", padded)]
    products = ((MULTIPLIERS[i + 1] | 1) * w for i, w in enumerate(words))
    return int(MULTIPLIERS[0] + sum(products)) & MASK


def pages_of(hashes: Sequence[int], blocks: int, page_blocks: int) -> dict[int, list[int]]:
    """Hashes by their page of the filter."""
    pages: dict[int, list[int]] = {}
    for h in hashes:
        pages.setdefault(((h >> 32) * blocks >> 32) // page_blocks, []).append(h)
    return pages


def scan(
    group: list[int], time_ms: list[int], known: list[int], droppable: list[int], horizon_ms: int
) -> list[int]:
    """The sequential rule as the design states it."""
    last: dict[int, int] = {}
    verdicts = []
    for g, t, k, d in zip(group, time_ms, known, droppable, strict=True):
        if k or (g in last and t - last[g] <= horizon_ms):
            verdicts.append(1)
        elif d:
            verdicts.append(2)
        else:
            last[g] = t
            verdicts.append(0)
    return verdicts


UUID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def encode_uuid(value: bytes) -> bytes:
    if UUID.fullmatch(value):
        return b"\x01" + bytes.fromhex(value.replace(b"-", b"").decode())
    return b"\x00" + value


def encode_block(
    entries: Sequence[tuple[bytes, int]],
    *,
    wide: bool,
    one_length: bool,
    digests: Sequence[int] | None = None,
) -> bytes:
    keys = [key for key, _ in entries]
    lengths = [len(key) for key in keys[:1] if one_length] or [len(key) for key in keys]
    flags = one_length | wide << 1 | (digests is not None) << 2
    head = struct.pack("<BBH", 1, flags, len(entries))
    head += struct.pack(f"<{len(lengths)}I", *lengths)
    times = struct.pack(f"<{len(entries)}{'Q' if wide else 'I'}", *(t for _, t in entries))
    beside = struct.pack(f"<{len(digests)}Q", *digests) if digests is not None else b""
    return head + times + beside + b"".join(keys)


def array(values: Sequence[int], dtype: str) -> np.ndarray:
    return np.array(list(values), dtype)


def column(keys: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Data and offsets in blocks of exactly their size, so that a sanitizer sees an overrun."""
    offsets = np.zeros(len(keys) + 1, np.int64)
    np.cumsum([len(key) for key in keys], out=offsets[1:])
    return np.array(list(b"".join(keys)), np.uint8), offsets


def as_list(data: np.ndarray, offsets: np.ndarray) -> list[bytes]:
    raw, ends = data.tobytes(), offsets.tolist()
    assert ends[0] == 0
    assert ends[-1] == len(raw)
    return [raw[ends[i] : ends[i + 1]] for i in range(len(ends) - 1)]


def misaligned(values: np.ndarray) -> np.ndarray:
    """The same array one byte off any alignment."""
    raw = np.empty(values.nbytes + 1, np.uint8)
    raw[1:] = values.view(np.uint8)
    return raw[1:].view(values.dtype)


def hashes_of(keys: Sequence[bytes], mask: int = MASK) -> np.ndarray:
    return array([siphash(key, KEY) & mask for key in keys], "u8")


#: Few different bytes and lengths, so that equal keys, prefixes and word borders are common.
some_key = st.one_of(
    st.binary(max_size=40),
    st.text("ab", max_size=18).map(str.encode),
    st.sampled_from([b"", b"\0", b"\0\0", b"a" * 7, b"a" * 8, b"a" * 9, b"a" * 16, b"a" * 17]),
)
some_keys = st.lists(some_key, max_size=60)
#: Bits of the hash that are kept: all, few (many keys share a hash), none (all do).
hash_masks = st.sampled_from([MASK, 0xF << 60, 0x3, 1 << 32, 0])
u64s = st.integers(0, MASK)
