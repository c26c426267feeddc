"""What the tools advise: a rule, its evidence, the option to change, and when that works."""

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
    """When a changed option takes effect."""

    RESTART = "takes effect at the next restart"
    BEGINNING = "only before a query's first start: a running one keeps it for ever"
    OUTSIDE = "set outside of the query"


@dataclass(frozen=True, slots=True)
class Assessment:
    """A rule's verdict on the facts.

    Parameters
    ----------
    level : Level
    evidence : str
        Why, with the numbers, as a whole sentence.
    change : str or None
        The option or setting as it is to be written, such as ``fpr=0.003``; None where all is well.
    takes : Takes or None
        From when on the change works; None where there is none.
    """

    level: Level
    evidence: str
    change: str | None = None
    takes: Takes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Assessment):
    """One piece of advice: a rule's verdict under the rule's name.

    Parameters
    ----------
    rule : str
        What was looked at, in kebab case; the same in every release.
    level, evidence, change, takes
        As in `Assessment`.
    """

    rule: str

    def to_json(self) -> dict[str, Any]:
        """Return plain values, the rule's name first."""
        return {"rule": self.rule} | asdict(self)


#: What a rule returns; None where it does not apply.
Assessments = Assessment | Iterable[Assessment] | None


def breaks(evidence: str, change: str, takes: Takes = Takes.RESTART) -> Assessment:
    """Return the verdict that the guarantee does not hold; parameters as in `Assessment`."""
    return Assessment(Level.BREAKS, evidence, change, takes)


def costs(evidence: str, change: str, takes: Takes = Takes.RESTART) -> Assessment:
    """Return the verdict that speed or memory is wasted; parameters as in `Assessment`."""
    return Assessment(Level.COSTS, evidence, change, takes)


def unknown(evidence: str, change: str | None = None, takes: Takes | None = None) -> Assessment:
    """Return the verdict that facts are missing; parameters as in `Assessment`."""
    return Assessment(Level.UNKNOWN, evidence, change, takes)


def fine(evidence: str) -> Assessment:
    """Return the verdict that all is well."""
    return Assessment(Level.FINE, evidence)


def findings(judged: Iterable[tuple[str, Assessments]]) -> list[Finding]:
    """Return the findings of the rules, given by name, the worst first."""
    found = []
    for rule, verdicts in judged:
        for one in [verdicts] if isinstance(verdicts, Assessment) else verdicts or ():
            found.append(Finding(one.level, one.evidence, one.change, one.takes, rule=rule))
    return in_order(found)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, the worst first, otherwise in their order."""
    return sorted(findings, key=lambda finding: list(Level).index(finding.level))
