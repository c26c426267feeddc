"""Every way in which bytes come back other than they were written, and what came of it."""

from __future__ import annotations

import random
import resource
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from dedup.errors import DedupError

PAGE_BYTES, LINE_BYTES = 4096, 64


@dataclass(frozen=True)
class Harm:
    """One damage: its kind, where it is, and the bytes after it; None: the file is gone."""

    kind: str
    where: str
    data: bytes | None

    def __str__(self) -> str:
        return f"{self.kind} {self.where}"


def some(
    data: bytes, others: Mapping[str, bytes], rng: random.Random, per_kind: int | None
) -> Iterator[Harm]:
    """Yield at most so many harms of each kind that change some bytes, chosen at random; None: all.

    `others` are healthy files of the same kind.
    """
    by_kind: dict[str, list[Harm]] = {}
    for harm in _all(data, others, rng):
        if harm.data != data:
            by_kind.setdefault(harm.kind, []).append(harm)
    for listed in by_kind.values():
        yield from listed if per_kind is None else rng.sample(listed, min(per_kind, len(listed)))


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


#: No damage may make a reader take more memory than this on top.
MAX_GROWN_BYTES = 400 << 20


class Wrong(AssertionError):
    """Damage led to a wrong answer."""


@dataclass
class Outcomes:
    """Counts per file kind, damage and outcome."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    start_bytes: int = field(default_factory=lambda: _peak_bytes())

    def judge(self, kind: str, harm: Harm, read: Callable[[], str]) -> str:
        """Count what `read` says; an error of ours is "refused", any other is wrong."""
        try:
            outcome = read()
        except DedupError as exc:
            outcome = f"refused: {type(exc).__name__}"
            # The text names thing and remedy, so it takes a sentence.
            if len(str(exc).split()) < 8:
                self.wrong.append(f"{kind}, {harm}: {exc} names no remedy")
        except Exception as exc:  # any other exception is a failure
            outcome = "WRONG"
            self.wrong.append(f"{kind}, {harm}: {type(exc).__name__}: {exc}"[:600])
        self.counts[kind, harm.kind, outcome] += 1
        return outcome

    @property
    def cases(self) -> int:
        return sum(self.counts.values())

    def of(self, kind: str) -> Counter[str]:
        """Outcomes of one kind of file."""
        found: Counter[str] = Counter()
        for (each, _, outcome), count in self.counts.items():
            if each == kind:
                found[outcome] += count
        return found

    def check(self) -> None:
        """Fail where anything was wrong, or took far too much memory."""
        assert not self.wrong, f"{len(self.wrong)} wrong:\n" + "\n".join(self.wrong[:20])
        grown = _peak_bytes() - self.start_bytes
        assert grown < MAX_GROWN_BYTES, f"{grown:,} bytes"

    def table(self) -> str:
        outcomes = sorted({outcome for _, _, outcome in self.counts})
        rows = sorted({(kind, damage) for kind, damage, _ in self.counts})
        lines = [["file", "damage", *outcomes]]
        lines += [
            [*row, *(str(self.counts[(*row, outcome)] or "-") for outcome in outcomes)]
            for row in rows
        ]
        total = [sum(n for (_, _, o), n in self.counts.items() if o == each) for each in outcomes]
        lines.append([f"{self.cases} cases", "", *map(str, total)])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
