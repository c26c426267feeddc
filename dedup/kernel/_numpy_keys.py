"""Compare, join, sort and copy keys, encode UUIDs, and judge records, all in numpy."""

from __future__ import annotations

import binascii
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dedup.kernel._numpy_hash import FEW, WORD_BYTES, words_of
from dedup.kernel.arrays import I64, U8, U64, offsets_of

Bools = npt.NDArray[np.bool_]

#: Number of pairs of keys that a join compares at a time, which bounds its memory.
_PAIRS = 1 << 20
_INT64_MAX = np.iinfo(np.int64).max


class Column:
    """A column of keys, with the 64-bit words that comparisons of keys need."""

    def __init__(self, data: U8, offsets: I64) -> None:
        self.data, self.starts, self.lengths = data, offsets[:-1], np.diff(offsets)
        self.words = words_of(data)

    def key(self, i: int) -> bytes:
        start = int(self.starts[i])
        return self.data[start : start + int(self.lengths[i])].tobytes()


def equal(a: Column, ai: I64, b: Column, bi: I64) -> Bools:
    """Return for each i whether key ``ai[i]`` of ``a`` equals key ``bi[i]`` of ``b``."""
    answer: Bools = a.lengths[ai] == b.lengths[bi]
    alive = np.flatnonzero(answer)
    position = 0
    while len(alive):
        if len(alive) <= FEW:
            for i in alive.tolist():
                answer[i] = a.key(int(ai[i])) == b.key(int(bi[i]))
            break
        left = a.lengths[ai[alive]] - position
        alive, left = alive[left > 0], left[left > 0]
        x = a.words[a.starts[ai[alive]] + position] ^ b.words[b.starts[bi[alive]] + position]
        # The last word may reach into the next key.
        spare = np.uint64(8) * (8 - np.minimum(left, 8)).astype(np.uint64)
        same = (x << spare) == 0
        answer[alive[~same]] = False
        alive = alive[same]
        position += WORD_BYTES
    return answer


def first_occurrence(data: U8, offsets: I64, hashes: U64) -> I64:
    n = len(hashes)
    if n == 0:
        return np.empty(0, np.int64)
    order = np.argsort(hashes, kind="stable")
    sorted_hashes = hashes[order]
    new_run = np.r_[True, sorted_hashes[1:] != sorted_hashes[:-1]]
    run = np.cumsum(new_run) - 1
    heads = order[new_run][run]
    out = np.empty(n, np.int64)
    out[order] = heads
    column = Column(data, offsets)
    repeated = np.flatnonzero(heads != order)
    same = equal(column, order[repeated], column, heads[repeated])
    # Decide key by key if different keys share a hash.
    bounds = np.r_[np.flatnonzero(new_run), n]
    for r in np.unique(run[repeated[~same]]).tolist():
        first: dict[bytes, int] = {}
        for i in order[bounds[r] : bounds[r + 1]].tolist():
            out[i] = first.setdefault(column.key(i), i)
    return out


def spread(counts: I64) -> tuple[I64, I64]:
    """Number the items of several lists: return each item's list and its position in that list.

    ``counts`` are the lengths of the lists.
    """
    rows = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    return rows, np.arange(len(rows)) - starts[rows]


def chunks(counts: I64) -> Iterator[slice]:
    """Yield slices of lists that together have about ``_PAIRS`` items, and at least one list.

    ``counts`` are the lengths of the lists.
    """
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
    build, probe = Column(b_data, b_offsets), Column(p_data, p_offsets)
    order = np.argsort(b_hashes, kind="stable")
    sorted_hashes = b_hashes[order]
    low = np.searchsorted(sorted_hashes, p_hashes, side="left")
    counts = np.searchsorted(sorted_hashes, p_hashes, side="right") - low
    pairs: list[tuple[I64, I64]] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for rows in chunks(counts):
        row, position = spread(counts[rows])
        pi = row + rows.start
        bi = order[low[pi] + position]
        same = equal(probe, pi, build, bi)
        pairs.append((pi[same], bi[same]))
    return np.concatenate([f[0] for f in pairs]), np.concatenate([f[1] for f in pairs])


def sort_keys(data: U8, offsets: I64, hashes: U64) -> I64:
    order = np.argsort(hashes, kind="stable").astype(np.int64, copy=False)
    sorted_hashes = hashes[order]
    bounds = np.flatnonzero(np.r_[True, sorted_hashes[1:] != sorted_hashes[:-1], True])
    column = Column(data, offsets)
    for r in np.flatnonzero(np.diff(bounds) > 1).tolist():
        part = slice(int(bounds[r]), int(bounds[r + 1]))
        order[part] = sorted(order[part].tolist(), key=column.key)
    return order


def take_keys(data: U8, offsets: I64, index: I64) -> tuple[U8, I64]:
    lengths = np.diff(offsets)[index]
    row, position = spread(lengths)
    return data[offsets[index][row] + position], offsets_of(lengths)


# ---- UUID text ----

_DASHES = np.array([8, 13, 18, 23])
_DIGITS = np.array([i for i in range(36) if i not in (8, 13, 18, 23)])
_NIBBLE = np.full(256, 255, np.uint8)
_NIBBLE[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


def encode_uuid(data: U8, offsets: I64) -> tuple[U8, I64]:
    n, lengths = len(offsets) - 1, np.diff(offsets)
    candidates = np.flatnonzero(lengths == 36)
    text = data[offsets[candidates][:, None] + np.arange(36)]
    nibbles = _NIBBLE[text[:, _DIGITS]]
    good = (nibbles < 16).all(axis=1) & (text[:, _DASHES] == ord("-")).all(axis=1)
    uuids, nibbles = candidates[good], nibbles[good]
    sizes = lengths + 1
    sizes[uuids] = 17
    out_offsets = offsets_of(sizes)
    out = np.zeros(int(out_offsets[-1]), np.uint8)
    at = out_offsets[uuids]
    out[at] = 1
    out[at[:, None] + np.arange(1, 17)] = (nibbles[:, 0::2] << 4) | nibbles[:, 1::2]
    plain = np.ones(n, bool)
    plain[uuids] = False
    others = np.flatnonzero(plain)
    row, position = spread(lengths[others])
    out[out_offsets[others][row] + 1 + position] = data[offsets[others][row] + position]
    return out, out_offsets


#: Groups of a UUID's digits: position in its text, in its key's digits (tag included), width.
_GROUPS = ((0, 2, 8), (9, 10, 4), (14, 14, 4), (19, 18, 4), (24, 22, 4), (28, 26, 8))


def decode_uuid(data: U8, offsets: I64) -> tuple[U8, I64]:
    data, offsets = data[offsets[0] : offsets[-1]], offsets - offsets[0]
    lengths = np.diff(offsets)
    filled = lengths > 0
    first = offsets[:-1][filled]
    tags = np.zeros(len(lengths), np.uint8)
    tags[filled] = data[first]
    uuid = (tags == 1) & (lengths == 17)
    bad = np.flatnonzero(filled & ~uuid & (tags != 0))
    if len(bad):
        raise ValueError(f"key {bad[0]} is none that encode_uuid makes")
    widths = np.where(uuid, 36, lengths - filled)
    out_offsets = offsets_of(widths)
    values = np.ones(len(data), np.bool_)
    values[first] = False  # tags
    from_uuid, to_uuid = np.repeat(uuid, lengths), np.repeat(uuid, widths)
    out = np.empty(int(out_offsets[-1]), np.uint8)
    out[to_uuid] = _uuid_text(data[from_uuid])
    out[~to_uuid] = data[values & ~from_uuid]
    return out, out_offsets


def _uuid_text(data: U8) -> U8:
    count = len(data) // 17
    if not count:
        return np.empty(0, np.uint8)
    digits = binascii.hexlify(data.tobytes())
    text = np.full(count * 36, ord("-"), np.uint8)
    for to, start, width in _GROUPS:
        # Items are as wide as a group, so that each row is one strided copy of 4 or 8 bytes.
        group: np.ndarray[Any, Any] = np.ndarray((count,), f"V{width}", digits, start, (34,))
        np.ndarray((count,), f"V{width}", text.data, to, (36,))[:] = group
    return text


# ---- verdicts ----


def scan_verdicts(group: I64, time_ms: I64, known: U8, droppable: U8, horizon_ms: int) -> U8:
    same = group[1:] == group[:-1]
    verdict = np.where(droppable != 0, 2, 0).astype(np.uint8)
    verdict[known != 0] = 1
    # Only candidates can be taken.
    candidates = np.flatnonzero(verdict == 0)
    if not len(candidates):
        return verdict
    group_number = np.cumsum(np.r_[False, ~same])
    chosen = candidates[_taken(group_number[candidates], time_ms[candidates], horizon_ms)]
    # A record that is not taken, but within the horizon of the last taken record of its group, is a
    # duplicate.
    last = np.full(len(group), -1, np.int64)
    last[chosen] = chosen
    last = np.maximum.accumulate(last)
    near = (last >= 0) & (group_number[last] == group_number)
    age = time_ms.astype(np.uint64) - time_ms[last].astype(np.uint64)
    near &= age <= np.uint64(horizon_ms)
    near[chosen] = False
    verdict[near] = 1
    return verdict


def _taken(group: I64, time_ms: I64, horizon_ms: int) -> Bools:
    """Return which candidates are taken. The first candidate of each group always is.

    After a candidate is taken, the group's next candidate beyond the horizon of it is taken.
    """
    times = np.unique(time_ms)
    # If the sum would overflow, use the largest integer instead.
    limit = np.where(time_ms > _INT64_MAX - horizon_ms, _INT64_MAX, time_ms + np.int64(horizon_ms))
    span = len(times) + 1
    place = group * span + np.searchsorted(times, time_ms)
    following = np.searchsorted(place, group * span + np.searchsorted(times, limit, side="right"))
    end = len(group)
    following = np.where(np.r_[group, -1][following] == group, following, end)
    taken = np.zeros(end + 1, bool)
    taken[:end] = np.r_[True, group[1:] != group[:-1]]
    jump = np.r_[following, end]
    while True:
        reached = taken.copy()
        reached[jump[taken]] = True
        if (jump == end).all():
            return reached[:end]
        taken, jump = reached, jump[jump]
