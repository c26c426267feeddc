"""The kernel in numpy alone: the reference for the C extension, and its stand-in.

Whole-array operations throughout. Python loops run over word positions inside keys, over the
rounds of a doubling, and over the rare keys that share a 64-bit hash without being equal.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dedup.kernel import _checks
from dedup.kernel._types import I64, U8, U32, U64

Bools = npt.NDArray[np.bool_]

name = "numpy"

#: Odd constants of the Parquet split-block Bloom filter, one per 32-bit lane.
SALTS = np.array(
    [
        0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D,
        0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31,
    ],
    np.uint32,
)  # fmt: skip

_WORD = 8
_MASK = 2**64 - 1
_INT64_MAX = np.iinfo(np.int64).max
#: Below this many keys a Python loop over words beats numpy's call overhead.
_FEW = 3
#: Pairs of keys compared at a time: bounds the memory of a join.
_PAIRS = 1 << 20


def _words(data: U8) -> U64:
    """Return the little-endian 64-bit word that starts at each byte, zeros past the end."""
    padded = np.zeros(len(data) + _WORD, np.uint8)
    padded[: len(data)] = data
    return np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))


# ---- hashing ----


def _rotate(x: U64, bits: int) -> U64:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


def _sip_round(v0: U64, v1: U64, v2: U64, v3: U64) -> tuple[U64, U64, U64, U64]:
    v0 = v0 + v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 = v2 + v3
    v3 = _rotate(v3, 16) ^ v2
    v0 = v0 + v3
    v3 = _rotate(v3, 21) ^ v0
    v2 = v2 + v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


def _sip_words(v: list[int], words: Sequence[int]) -> list[int]:
    """Absorb words into one state in plain Python, one round each."""
    v0, v1, v2, v3 = v
    for m in words:
        v3 ^= m
        v0 = (v0 + v1) & _MASK
        v1 = ((v1 << 13) & _MASK | v1 >> 51) ^ v0
        v0 = (v0 << 32) & _MASK | v0 >> 32
        v2 = (v2 + v3) & _MASK
        v3 = ((v3 << 16) & _MASK | v3 >> 48) ^ v2
        v0 = (v0 + v3) & _MASK
        v3 = ((v3 << 21) & _MASK | v3 >> 43) ^ v0
        v2 = (v2 + v1) & _MASK
        v1 = ((v1 << 17) & _MASK | v1 >> 47) ^ v2
        v2 = (v2 << 32) & _MASK | v2 >> 32
        v0 ^= m
    return [v0, v1, v2, v3]


def hash64(data: U8, offsets: I64, key: bytes) -> U64:
    n = _checks.keys(data, offsets)
    _checks.key16(key)
    k0, k1 = struct.unpack("<QQ", key)
    starts, lengths = offsets[:-1], np.diff(offsets)
    words = _words(data)
    # Longest first, so that the keys that still have words are always a prefix.
    full = lengths // _WORD
    order = np.argsort(-full, kind="stable")
    counts, at = full[order], starts[order]
    state = np.empty((4, n), np.uint64)
    initial = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    for lane, (constant, half) in enumerate(zip(initial, (k0, k1, k0, k1), strict=True)):
        state[lane] = constant ^ half
    position = 0
    while (active := int(np.searchsorted(-counts, -position, side="left"))) > _FEW:
        m = words[at[:active] + _WORD * position]
        v0, v1, v2, v3 = (state[lane, :active] for lane in range(4))
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3 ^ m)
        state[0, :active] = v0 ^ m
        state[1, :active], state[2, :active], state[3, :active] = v1, v2, v3
        position += 1
    for i in range(active):
        low, high = int(at[i]) + _WORD * position, int(at[i]) + _WORD * int(counts[i])
        rest = np.frombuffer(data[low:high].tobytes(), "<u8").tolist()
        state[:, i] = _sip_words(state[:, i].tolist(), rest)
    tail_bytes = (lengths[order] % _WORD).astype(np.uint64)
    tail = words[at + _WORD * counts] & (
        (np.uint64(1) << (tail_bytes * np.uint64(8))) - np.uint64(1)
    )
    m = tail | (lengths[order].astype(np.uint64) << np.uint64(56))
    v0, v1, v2, v3 = state
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3 ^ m)
    v0, v2 = v0 ^ m, v2 ^ np.uint64(0xFF)
    for _ in range(3):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    out = np.empty(n, np.uint64)
    out[order] = v0 ^ v1 ^ v2 ^ v3
    return out


# ---- split-block Bloom filter ----


def _block_index(hashes: U64, blocks: int) -> I64:
    return (((hashes >> np.uint64(32)) * np.uint64(blocks)) >> np.uint64(32)).astype(np.int64)


def _lane_masks(hashes: U64) -> U32:
    low = (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    return np.uint32(1) << ((low[:, None] * SALTS) >> np.uint32(27))


def filter_add(bits: U32, hashes: U64) -> None:
    blocks = _checks.filter_bits(bits, "bits")
    _checks.array(hashes, np.uint64, "hashes")
    if not bits.flags.writeable:
        raise ValueError("bits must be writable")
    words = _block_index(hashes, blocks)[:, None] * 8 + np.arange(8)
    np.bitwise_or.at(bits, words.ravel(), _lane_masks(hashes).ravel())


def filter_probe(filters: Sequence[U32], hashes: U64) -> U64:
    if not isinstance(filters, list):
        raise TypeError(f"filters must be a list, not {type(filters).__name__}")
    if len(filters) > 64:
        raise ValueError(f"at most 64 filters at a time, not {len(filters)}")
    _checks.array(hashes, np.uint64, "hashes")
    blocks = [_checks.filter_bits(bits, f"filters[{i}]") for i, bits in enumerate(filters)]
    out = np.zeros(len(hashes), np.uint64)
    masks = _lane_masks(hashes)
    for i, bits in enumerate(filters):
        found = bits.reshape(-1, 8)[_block_index(hashes, blocks[i])]
        hit = ((found & masks) == masks).all(axis=1)
        out |= hit.astype(np.uint64) << np.uint64(i)
    return out


# ---- equality and order of keys ----


class _Column:
    """Keys with what comparing them needs."""

    def __init__(self, data: U8, offsets: I64) -> None:
        self.data, self.starts, self.lengths = data, offsets[:-1], np.diff(offsets)
        self.words = _words(data)

    def key(self, i: int) -> bytes:
        start = int(self.starts[i])
        return self.data[start : start + int(self.lengths[i])].tobytes()


def _equal(a: _Column, ai: I64, b: _Column, bi: I64) -> Bools:
    """Return whether key ``ai[i]`` of ``a`` and key ``bi[i]`` of ``b`` have the same bytes."""
    equal: Bools = a.lengths[ai] == b.lengths[bi]
    alive = np.flatnonzero(equal)
    position = 0
    while len(alive):
        if len(alive) <= _FEW:
            for i in alive.tolist():
                equal[i] = a.key(int(ai[i])) == b.key(int(bi[i]))
            break
        left = a.lengths[ai[alive]] - position
        alive, left = alive[left > 0], left[left > 0]
        x = a.words[a.starts[ai[alive]] + position] ^ b.words[b.starts[bi[alive]] + position]
        # The last word may reach into the next key.
        spare = np.uint64(8) * (8 - np.minimum(left, 8)).astype(np.uint64)
        same = (x << spare) == 0
        equal[alive[~same]] = False
        alive = alive[same]
        position += _WORD
    return equal


def first_occurrence(data: U8, offsets: I64, hashes: U64) -> I64:
    n = _checks.keys(data, offsets)
    _checks.sized(hashes, np.uint64, n, "hashes")
    if n == 0:
        return np.empty(0, np.int64)
    order = np.argsort(hashes, kind="stable")
    sorted_hashes = hashes[order]
    new_run = np.r_[True, sorted_hashes[1:] != sorted_hashes[:-1]]
    run = np.cumsum(new_run) - 1
    heads = order[new_run][run]
    out = np.empty(n, np.int64)
    out[order] = heads
    column = _Column(data, offsets)
    repeated = np.flatnonzero(heads != order)
    same = _equal(column, order[repeated], column, heads[repeated])
    # Runs in which different keys share a hash: decided key by key.
    bounds = np.r_[np.flatnonzero(new_run), n]
    for r in np.unique(run[repeated[~same]]).tolist():
        first: dict[bytes, int] = {}
        for i in order[bounds[r] : bounds[r + 1]].tolist():
            out[i] = first.setdefault(column.key(i), i)
    return out


def _spread(counts: I64) -> tuple[I64, I64]:
    """Return (row, position in row) of every cell of rows with these lengths."""
    rows = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    return rows, np.arange(len(rows)) - starts[rows]


def _chunks(counts: I64) -> Iterator[slice]:
    """Cut rows with these lengths into slices of about ``_PAIRS`` cells, at least a row each."""
    ends = np.cumsum(counts)
    row = 0
    while row < len(counts):
        done = int(ends[row - 1]) if row else 0
        stop = max(row + 1, int(np.searchsorted(ends, done + _PAIRS, side="right")))
        yield slice(row, stop)
        row = stop


def match(
    b_data: U8, b_offsets: I64, b_hashes: U64, p_data: U8, p_offsets: I64, p_hashes: U64
) -> tuple[I64, I64]:
    n = _checks.keys(b_data, b_offsets, "b_")
    _checks.sized(b_hashes, np.uint64, n, "b_hashes")
    m = _checks.keys(p_data, p_offsets, "p_")
    _checks.sized(p_hashes, np.uint64, m, "p_hashes")
    build, probe = _Column(b_data, b_offsets), _Column(p_data, p_offsets)
    order = np.argsort(b_hashes, kind="stable")
    sorted_hashes = b_hashes[order]
    low = np.searchsorted(sorted_hashes, p_hashes, side="left")
    counts = np.searchsorted(sorted_hashes, p_hashes, side="right") - low
    found: list[tuple[I64, I64]] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for rows in _chunks(counts):
        row, position = _spread(counts[rows])
        pi = row + rows.start
        bi = order[low[pi] + position]
        same = _equal(probe, pi, build, bi)
        found.append((pi[same], bi[same]))
    return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])


def sort_keys(data: U8, offsets: I64, hashes: U64) -> I64:
    n = _checks.keys(data, offsets)
    _checks.sized(hashes, np.uint64, n, "hashes")
    order = np.argsort(hashes, kind="stable").astype(np.int64, copy=False)
    sorted_hashes = hashes[order]
    bounds = np.r_[np.flatnonzero(np.r_[True, sorted_hashes[1:] != sorted_hashes[:-1]]), n]
    column = _Column(data, offsets)
    for r in np.flatnonzero(np.diff(bounds) > 1).tolist():
        part = slice(int(bounds[r]), int(bounds[r + 1]))
        order[part] = sorted(order[part].tolist(), key=column.key)
    return order


# ---- segment blocks ----


def _damaged(block: int) -> ValueError:
    return ValueError(f"block {block} is damaged")


def _gather(data: U8, dtype: str, at: I64) -> npt.NDArray[np.generic]:
    """Return the unaligned little-endian numbers that start at these bytes."""
    width = np.dtype(dtype).itemsize
    if len(data) < width or len(at) == 0:
        return np.empty(0, dtype)
    return np.ndarray((len(data) - width + 1,), dtype, data, strides=(1,))[at]


class _Blocks:
    """Every entry of every block, flat. Raises ValueError on the first damaged block."""

    def __init__(self, data: U8, offsets: I64) -> None:
        starts, sizes = offsets[:-1], np.diff(offsets)
        self.bad = np.zeros(len(sizes), bool)
        self._need(sizes >= 8)
        at = np.where(self.bad, 0, starts)
        n, flags = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
        first = np.zeros(len(sizes), np.int64)
        ok = np.flatnonzero(~self.bad)
        n[ok] = _gather(data, "<u2", at[ok] + 2)
        flags[ok] = data[at[ok] + 1]
        first[ok] = _gather(data, "<u4", at[ok] + 4)
        self._need((self.bad) | ((data[at] if len(data) else 0) == 1))
        self._need((flags & ~3 == 0) & (n > 0))
        fixed = (flags & 1) == 1
        width = np.where(flags & 2, 8, 4)
        head = np.where(fixed, 8, 4 + 4 * n)
        self._need(head + n * width <= sizes)
        n[self.bad] = 0
        self.counts = n
        block, k = _spread(n)
        length_at = starts[block] + 4 + 4 * np.where(fixed[block], 0, k)
        self.lengths = _gather(data, "<u4", length_at).astype(np.int64)
        ends = np.cumsum(self.lengths)
        self.first = np.cumsum(n) - n
        before = np.r_[0, ends][self.first]
        total = np.r_[0, ends][self.first + n] - before
        self._need(head + n * width + total == sizes)
        self.starts = (starts + head + n * width - before)[block] + ends - self.lengths
        wide = width[block] == 8
        time_at = starts[block] + head[block] + width[block] * k
        self.times = np.zeros(len(block), np.uint64)
        self.times[~wide] = _gather(data, "<u4", time_at[~wide])
        self.times[wide] = _gather(data, "<u8", time_at[wide])
        self.bad[block[self.times > _INT64_MAX]] = True
        if self.bad.any():
            raise _damaged(int(np.argmax(self.bad)))

    def _need(self, good: Bools) -> None:
        self.bad |= ~good


def blocks_find(data: U8, block_offsets: I64, query_block: I64, q_data: U8, q_offsets: I64) -> I64:
    b = _checks.keys(data, block_offsets, "block_")
    q = _checks.keys(q_data, q_offsets, "q_")
    _checks.sized(query_block, np.int64, q, "query_block")
    if q and (query_block.min() < 0 or query_block.max() >= b):
        raise ValueError(f"query_block must be 0 to {b - 1}")
    blocks = _Blocks(data, block_offsets)
    out = np.full(q, -1, np.int64)
    entries, queries = _Column(data, block_offsets), _Column(q_data, q_offsets)
    entries.starts, entries.lengths = blocks.starts, blocks.lengths
    counts = blocks.counts[query_block]
    for rows in _chunks(counts):
        row, position = _spread(counts[rows])
        qi = row + rows.start
        ei = blocks.first[query_block[qi]] + position
        hit = np.flatnonzero(_equal(queries, qi, entries, ei))
        # Backwards, so that the first of several equal entries stays.
        out[qi[hit[::-1]]] = blocks.times[ei[hit[::-1]]].astype(np.int64)
    return out


# ---- verdicts ----


def scan_verdicts(group: I64, time_ms: I64, known: U8, droppable: U8, horizon_ms: int) -> U8:
    _checks.array(group, np.int64, "group")
    n = len(group)
    _checks.sized(time_ms, np.int64, n, "time_ms")
    _checks.sized(known, np.uint8, n, "known")
    _checks.sized(droppable, np.uint8, n, "droppable")
    if not isinstance(horizon_ms, int):
        raise TypeError(f"horizon_ms must be an int, not {type(horizon_ms).__name__}")
    if not 0 <= horizon_ms <= _INT64_MAX:
        raise ValueError(f"horizon_ms must be 0 to 2**63 - 1, not {horizon_ms}")
    same = group[1:] == group[:-1]
    if bool((group[1:] < group[:-1]).any()) or bool((same & (time_ms[1:] < time_ms[:-1])).any()):
        raise ValueError("records must be sorted by group, and by time within a group")
    verdict = np.where(droppable != 0, 2, 0).astype(np.uint8)
    verdict[known != 0] = 1
    # Only candidates can be taken; the next one taken is the first beyond the horizon, so the
    # taken are those that the first candidate of a group leads to.
    candidates = np.flatnonzero(verdict == 0)
    if not len(candidates):
        return verdict
    g = np.cumsum(np.r_[False, ~same])[candidates]
    t = time_ms[candidates]
    times = np.unique(t)
    # The sum may wrap round, and is then not used.
    limit = np.where(t > _INT64_MAX - horizon_ms, _INT64_MAX, t + np.int64(horizon_ms))
    span = len(times) + 1
    place = g * span + np.searchsorted(times, t)
    following = np.searchsorted(place, g * span + np.searchsorted(times, limit, side="right"))
    end = len(candidates)
    following = np.where(np.r_[g, -1][following] == g, following, end)
    taken = np.zeros(end + 1, bool)
    taken[:end] = np.r_[True, g[1:] != g[:-1]]
    jump = np.r_[following, end]
    for _ in itertools.repeat(None):
        reached = taken.copy()
        reached[jump[taken]] = True
        if (jump == end).all():
            taken = reached
            break
        taken, jump = reached, jump[jump]
    chosen = candidates[taken[:end]]
    # Everything else within the horizon of the last taken one of its group is a duplicate.
    last = np.full(n, -1, np.int64)
    last[chosen] = chosen
    last = np.maximum.accumulate(last)
    group_number = np.cumsum(np.r_[False, ~same])
    near = (last >= 0) & (group_number[last] == group_number)
    age = time_ms.astype(np.uint64) - time_ms[last].astype(np.uint64)
    near &= age <= np.uint64(horizon_ms)
    near[chosen] = False
    verdict[near] = 1
    return verdict


# ---- UUID text ----

_DASHES = np.array([8, 13, 18, 23])
_DIGITS = np.array([i for i in range(36) if i not in (8, 13, 18, 23)])
_NIBBLE = np.full(256, 255, np.uint8)
_NIBBLE[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


def encode_uuid(data: U8, offsets: I64) -> tuple[U8, I64]:
    n = _checks.keys(data, offsets)
    lengths = np.diff(offsets)
    candidates = np.flatnonzero(lengths == 36)
    text = data[offsets[candidates][:, None] + np.arange(36)]
    nibbles = _NIBBLE[text[:, _DIGITS]]
    good = (nibbles < 16).all(axis=1) & (text[:, _DASHES] == ord("-")).all(axis=1)
    uuids, nibbles = candidates[good], nibbles[good]
    sizes = lengths + 1
    sizes[uuids] = 17
    out_offsets = np.zeros(n + 1, np.int64)
    np.cumsum(sizes, out=out_offsets[1:])
    out = np.zeros(int(out_offsets[-1]), np.uint8)
    at = out_offsets[uuids]
    out[at] = 1
    out[at[:, None] + np.arange(1, 17)] = (nibbles[:, 0::2] << 4) | nibbles[:, 1::2]
    plain = np.ones(n, bool)
    plain[uuids] = False
    others = np.flatnonzero(plain)
    row, position = _spread(lengths[others])
    out[out_offsets[others][row] + 1 + position] = data[offsets[others][row] + position]
    return out, out_offsets
