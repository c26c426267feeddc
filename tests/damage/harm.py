"""Every way in which bytes come back other than they were written."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

PAGE_BYTES, LINE_BYTES = 4096, 64


@dataclass(frozen=True)
class Harm:
    """One damage: its kind, where it is, and the bytes after it; None: the file is gone."""

    kind: str
    where: str
    data: bytes | None

    def __str__(self) -> str:
        return f"{self.kind} {self.where}"


def harms(data: bytes, others: Mapping[str, bytes], rng: random.Random) -> Iterator[Harm]:
    """Yield every harm of some bytes that changes them; `others` are healthy files of the kind."""
    for harm in _all(data, others, rng):
        if harm.data != data:
            yield harm


def some(
    data: bytes, others: Mapping[str, bytes], rng: random.Random, per_kind: int
) -> Iterator[Harm]:
    """Yield at most so many harms of each kind, chosen at random."""
    by_kind: dict[str, list[Harm]] = {}
    for harm in harms(data, others, rng):
        by_kind.setdefault(harm.kind, []).append(harm)
    for listed in by_kind.values():
        yield from rng.sample(listed, min(per_kind, len(listed)))


def _all(data: bytes, others: Mapping[str, bytes], rng: random.Random) -> Iterator[Harm]:
    for at, byte in enumerate(data):
        flipped = bytes([byte ^ rng.choice((1 << rng.randrange(8), 0xFF))])
        yield Harm("flipped byte", f"at {at}", data[:at] + flipped + data[at + 1 :])
    for size in range(len(data)):
        yield Harm("truncated", f"to {size}", data[:size])
    for kind, step in (("zeroed page", PAGE_BYTES), ("zeroed line", LINE_BYTES)):
        for at in range(0, len(data), step):
            piece = bytes(len(data[at : at + step]))
            yield Harm(kind, f"at {at}", data[:at] + piece + data[at + len(piece) :])
    for at in range(0, len(data), max(1, len(data) // 40)):
        length = min(rng.choice((1, 4, LINE_BYTES)), len(data) - at)
        yield Harm("cut out", f"{length} at {at}", data[:at] + data[at + length :])
    for length in (1, 2, 8, LINE_BYTES, PAGE_BYTES):
        yield Harm("appended", f"{length} zeros", data + bytes(length))
        yield Harm("appended", f"{length} random", data + rng.randbytes(length))
    yield Harm("duplicated", "whole", data + data)
    for at in range(0, len(data) - LINE_BYTES, max(LINE_BYTES, len(data) // 20)):
        line = data[at : at + LINE_BYTES]
        to = rng.randrange(len(data) - len(line))
        copied = data[:to] + line + data[to + len(line) :]
        yield Harm("duplicated", f"{at} over {to}", copied)
        yield Harm("duplicated", f"{at} twice", data[:at] + line + data[at:])
    for name, other in others.items():
        yield Harm("swapped", f"for {name}", other)
    for name, other in (("nothing", b""), ("zeros", bytes(len(data)))):
        yield Harm("replaced", f"by {name}", other)
    yield Harm("replaced", "by noise", rng.randbytes(len(data)))
    yield Harm("removed", "", None)
