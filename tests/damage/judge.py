"""Outcomes of reading damaged bytes, and their table."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from dedup.errors import DedupError

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

    def judge(self, kind: str, harm: object, damage: str, read: Callable[[], str]) -> str:
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
        self.counts[kind, damage, outcome] += 1
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
