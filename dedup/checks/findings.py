"""What the tools advise: a rule, why it fired, the exact option to change, and when that works."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """How much a finding matters, the worst first."""

    BREAKS = "breaks the guarantee"
    COSTS = "costs speed or memory"
    UNKNOWN = "cannot be told"
    FINE = "fine"


class Takes(StrEnum):
    """From when on a changed option works."""

    RESTART = "takes effect at the next restart"
    BEGINNING = "only before a query's first start: a running one keeps it for ever"
    OUTSIDE = "set outside of the query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One piece of advice.

    Parameters
    ----------
    rule : str
        What was looked at, in kebab case; the same in every release.
    level : Level
    evidence : str
        Why, with the numbers, as a whole sentence.
    change : str or None
        The option or setting as it is to be written, such as ``fpr=0.003``; None where all is well.
    takes : Takes or None
        From when on the change works; None where there is none.
    """

    rule: str
    level: Level
    evidence: str
    change: str | None = None
    takes: Takes | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, those that matter most first, else as they came."""
    return sorted(findings, key=lambda finding: list(Level).index(finding.level))
