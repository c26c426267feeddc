"""Changing valid inputs: bytes anywhere, and JSON node by node."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

_INTS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 62,
         (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 1 << 31, 1 << 53, 1 << 62, (1 << 62) + 1, 1 << 63, -(1 << 63),
    1 << 64, 10**30, 0.0, 1.0, 1.5, float("nan"), float("inf"), "", "x", "\0", "\ud800", "1", [],
    {}, [[]], [0], [None] * 10, {"x": 1}, "0" * 5000,
)  # fmt: skip


def mutated(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """One to four changes to some bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _change(rng, changed, others)
    return bytes(changed)


def _change(rng: random.Random, data: bytearray, others: list[bytes]) -> None:
    size = len(data)
    at = rng.randrange(size) if size else 0
    length = min(rng.choice((1, 2, 4, 8, 16, 64)), size - at)
    kind = rng.randrange(9)
    if kind <= 2 and size:
        data[at] ^= 1 << rng.randrange(8) if kind else rng.randrange(1, 256)
    elif kind == 3:
        width = rng.choice((1, 2, 4, 8))
        number = rng.choice(_INTS) + rng.choice((-1, 0, 0, 1))
        data[at : at + width] = (number & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    elif kind == 4:
        del data[at : at + length]
    elif kind == 5:
        data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 64)))
    elif kind == 6:
        del data[at:]
    elif kind == 7:
        data[at:at] = data[at : at + length]
    else:
        other = rng.choice(others)
        start = rng.randrange(len(other)) if other else 0
        data[at : at + length] = other[start : start + length]


def mutated_json(rng: random.Random, text: str) -> Any:
    """The value of JSON text with one to three nodes changed."""
    value = json.loads(text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        value = _changed_node(rng, value)
    return value


def _any_value(rng: random.Random) -> Any:
    # A fresh copy each time: the next change may be to a part of it.
    return copy.deepcopy(rng.choice(_VALUES))


def _changed_node(rng: random.Random, value: Any) -> Any:
    parents = [holder for holder in _holders(value) if holder]
    if not parents or rng.random() < 0.01:
        return _any_value(rng)
    parent = rng.choice(parents)
    key = rng.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
    kind = rng.randrange(6)
    if kind <= 2:
        parent[key] = _any_value(rng)
    elif kind == 3:
        del parent[key]
    elif kind == 4 and isinstance(parent[key], int):
        parent[key] += rng.choice((-1, 1, 1 << 32, -(1 << 40)))
    elif isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]) if rng.random() < 0.5 else _any_value(rng))
    else:
        parent[rng.choice(("x", str(key) + "_", ""))] = copy.deepcopy(parent[key])
    return value


def _holders(value: Any) -> list[Any]:
    """Every list and object inside a value."""
    found, waiting = [], [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list | dict):
            found.append(each)
            waiting += each.values() if isinstance(each, dict) else each
    return found
