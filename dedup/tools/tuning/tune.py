"""`tune`: find out what is asked for, measure choices of options here, recommend one."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from dedup.kernel import PATH
from dedup.spark.machine import machine_cores
from dedup.tools.check.findings import Finding
from dedup.tools.tuning import format as words
from dedup.tools.tuning import report
from dedup.tools.tuning.advice import WorkerMemory, advise
from dedup.tools.tuning.candidates import Choice, explore
from dedup.tools.tuning.charts import charts
from dedup.tools.tuning.costs import Costs, measure
from dedup.tools.tuning.demand import Demand, check
from dedup.tools.tuning.footprint import worker_bytes
from dedup.tools.tuning.options import TuneOptions, demand_of

#: Told how far the work is, from 0 to 1, and what is being done.
Progress = Callable[[float, str], None]
#: How far the work is after costs of this machine and memory; the rest are trials.
_COSTS, _MEMORY = 0.15, 0.25


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was asked for, measured and advised.

    Parameters
    ----------
    demand : Demand
        The load.
    choice : Choice
        What was tried: `choice.recommended` is best, `choice.today` is what the query has.
    costs : Costs
        Of this machine.
    findings : tuple of Finding
        What to change, and why.
    """

    demand: Demand
    choice: Choice
    costs: Costs
    findings: tuple[Finding, ...]

    @property
    def false_negatives(self) -> int:
        """Known IDs that a filter did not know, and wrong verdicts: always 0."""
        return self.choice.false_negatives

    def to_json(self) -> dict[str, Any]:
        """What `dedup tune --json` prints."""
        demand, choice = self.demand, self.choice
        return {
            "status": "false negatives" if self.false_negatives else "ok",
            "verdict": words.verdict(demand, choice),
            "origin": demand.origin,
            "ids_per_day": demand.ids_per_day,
            "live_ids": round(words.live_ids(demand, choice)),
            "expected_live_ids": demand.live_ids,
            "duplicates": demand.duplicates,
            "horizon_ms": demand.horizon_ms,
            "lateness_ms": demand.lateness_ms,
            "batch_ms": demand.batch_ms,
            "batch_known": demand.batch_known,
            "shards": demand.shards,
            "cores": demand.cores,
            "cores_given": demand.cores_given,
            "key_bytes": demand.key_bytes,
            "machine": machine(),
            "costs_ns": asdict(self.costs),
            "candidates": [
                c.to_json()
                | {
                    "recommended": c is choice.recommended,
                    "today": c is choice.today,
                    "dominated": choice.dominated(c),
                }
                for c in choice.candidates
            ],
            "findings": [finding.to_json() for finding in self.findings],
            "shard_ids": list(demand.fill_of_shards(words.live_ids(demand, choice))),
            "false_negatives": self.false_negatives,
        }

    def page(self) -> str:
        """Return the report as HTML; MissingExtraError without vl-convert-python."""
        demand, choice = self.demand, self.choice
        return report.page(
            title=f"dedup tune: {words.title(demand)}",
            verdict=words.verdict(demand, choice),
            header=[name for name, _, _ in words.COLUMNS],
            rows=[(words.kind(choice, c), words.cells(c)) for c in choice.candidates],
            findings=self.findings,
            legend=words.legend(),
            charts=charts(choice),
            foot=self.measured,
        )

    @property
    def measured(self) -> str:
        """What the figures rest on, in a line or two."""
        costs = self.costs
        asked = sum(c.trial.asked for c in self.choice.candidates)
        known = sum(c.trial.known for c in self.choice.candidates)
        return (
            f"Measured on {machine()}: {costs.row_ns:.0f} ns a record, {costs.filter_ns:.1f} ns a "
            f"filter asked, {costs.read_ns / 1000:.1f} us a catalog block read, "
            f"{costs.written_ns:.0f} ns an ID written. {asked:,} unknown and "
            f"{known:,} known IDs were asked for: "
            f"{self.false_negatives} false negatives."
        )


def tune(options: TuneOptions, progress: Progress = lambda done, what: None) -> Tuning:
    """Measure what choices of filter sizing cost for a load, and recommend one.

    Parameters
    ----------
    options : TuneOptions
        The load, and what the query has now.
    progress : callable, optional
        Told how far the work is, from 0 to 1, and what is being done.

    Raises
    ------
    ConfigError
        If what was asked cannot be found out or sized, naming the option.
    DataError, CatalogError, StateError
        If a sample, a catalog or a checkpoint cannot be read.
    FilterDamaged
        If a filter does not know an ID that was added to it.
    """
    progress(0.0, "reading")
    demand = check(demand_of(options))
    keys = demand.keys_of()
    costs = measure(keys, lambda done: progress(done * _COSTS, "costs of this machine"))
    progress(_COSTS, "memory of a worker")
    rows = round(demand.rows_per_shard)
    memory = WorkerMemory(rows, worker_bytes(rows, demand.key_bytes))
    choice = explore(
        demand, costs, lambda done, what: progress(_MEMORY + done * (1 - _MEMORY), what)
    )
    progress(1.0, "done")
    return Tuning(demand, choice, costs, tuple(advise(demand, choice, memory)))


def machine() -> str:
    """The machine, as far as times depend on it."""
    return f"{machine_cores()} cores, {platform.machine()}, {PATH} kernel"
