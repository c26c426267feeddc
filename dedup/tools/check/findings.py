"""Findings of the tools: a rule, its evidence, what to change, and when the change takes effect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from dedup.values.html import for_notebook, table


class Level(StrEnum):
    """The severity of a finding, the worst first."""

    STOPS = "stops queries"
    BREAKS = "breaks the guarantee"
    COSTS = "costs speed or memory"
    UNKNOWN = "cannot be told"
    FINE = "fine"


class Takes(StrEnum):
    """When a changed option takes effect."""

    RESTART = "takes effect at the next restart"
    BEGINNING = "only before a query's first start: a running one keeps it"
    OUTSIDE = "set outside the query"


@dataclass(frozen=True, slots=True)
class Assessment:
    """A rule's verdict on the facts."""

    level: Level
    #: The reason for the verdict, with numbers, in whole sentences.
    evidence: str
    #: The new option or setting, such as ``fpr=0.003``, or None if nothing should change.
    change: str | None = None
    #: When the change takes effect.
    takes: Takes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Assessment):
    """A rule's verdict with the rule's name. Names are in kebab case and never change."""

    rule: str

    def to_json(self) -> dict[str, Any]:
        return {"rule": self.rule} | asdict(self)


class Findings(list[Finding]):
    """Findings, the worst first. A notebook shows them as a table."""

    def _repr_html_(self) -> str:
        return for_notebook(self.to_html())

    def to_html(self) -> str:
        """Return the findings as a table of HTML."""
        head = ("level", "rule", "evidence", "change", "takes")
        rows = (
            (one.level.name, one.rule, one.evidence, one.change and f"`{one.change}`", one.takes)
            for one in self
        )
        return table(head, rows, (one.level.name.lower() for one in self))


#: Result of a rule: one or several verdicts, or None if the rule does not apply.
Assessments = Assessment | Iterable[Assessment] | None


def breaks(evidence: str, change: str, takes: Takes = Takes.RESTART) -> Assessment:
    return Assessment(Level.BREAKS, evidence, change, takes)


def costs(evidence: str, change: str, takes: Takes = Takes.RESTART) -> Assessment:
    return Assessment(Level.COSTS, evidence, change, takes)


def unknown(evidence: str, change: str | None = None, takes: Takes | None = None) -> Assessment:
    return Assessment(Level.UNKNOWN, evidence, change, takes)


def fine(evidence: str) -> Assessment:
    return Assessment(Level.FINE, evidence)


def findings_of(judged: Iterable[tuple[str, Assessments]]) -> Findings:
    return in_order(
        Finding(verdict.level, verdict.evidence, verdict.change, verdict.takes, rule=rule)
        for rule, verdicts in judged
        for verdict in ([verdicts] if isinstance(verdicts, Assessment) else verdicts or ())
    )


def in_order(findings: Iterable[Finding]) -> Findings:
    return Findings(sorted(findings, key=lambda finding: list(Level).index(finding.level)))
