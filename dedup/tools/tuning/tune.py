"""`tune`: find the load of a query, measure choices of options on this machine, recommend one."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from dedup.kernel import PATH
from dedup.spark.machine import machine_cores
from dedup.tools.check.findings import Finding
from dedup.tools.tuning import format as texts
from dedup.tools.tuning import report
from dedup.tools.tuning.advice import WorkerMemory, advise
from dedup.tools.tuning.candidates import Choice, explore
from dedup.tools.tuning.costs import Costs, measure, worker_bytes
from dedup.tools.tuning.demand import Demand, check
from dedup.tools.tuning.options import TuneOptions, demand_of

#: Called with the finished share of the work, from 0 to 1, and the current step.
Progress = Callable[[float, str], None]
#: Finished shares of the work after the costs of this machine, and after memory.
_COSTS, _MEMORY = 0.15, 0.25


@dataclass(frozen=True, slots=True)
class Tuning:
    """The load, the measured choices of options, the costs of this machine, and the advice.

    `choice.recommended` is the best choice, and `choice.today` is the query's own.
    """

    demand: Demand
    choice: Choice
    costs: Costs
    findings: tuple[Finding, ...]

    @property
    def false_negatives(self) -> int:
        """Known IDs that filters or segments lacked, and wrong verdicts: always 0."""
        return self.choice.false_negatives

    def to_json(self) -> dict[str, Any]:
        """Return what `dedup tune --json` prints."""
        demand, choice = self.demand, self.choice
        return {
            "status": "false negatives" if self.false_negatives else "ok",
            "verdict": texts.verdict(demand, choice),
            "origin": demand.origin,
            "ids_per_day": demand.ids_per_day,
            "live_ids": round(texts.live_ids(demand, choice)),
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
            "shard_ids": list(demand.fill_of_shards(texts.live_ids(demand, choice))),
            "false_negatives": self.false_negatives,
        }

    def page(self) -> str:
        """Return the report as HTML; MissingExtraError without vl-convert-python."""
        demand, choice = self.demand, self.choice
        return report.page(
            title=f"dedup tune: {texts.title(demand)}",
            verdict=texts.verdict(demand, choice),
            header=[name for name, _, _ in texts.COLUMNS],
            rows=[(texts.kind(choice, c), texts.cells(c)) for c in choice.candidates],
            findings=self.findings,
            legend=texts.legend(),
            charts=report.charts(choice),
            foot=self.measured,
        )

    @property
    def measured(self) -> str:
        """The measurements behind the figures, in one or two lines."""
        costs = self.costs
        new = sum(c.trial.asked for c in self.choice.candidates)
        known = sum(c.trial.known for c in self.choice.candidates)
        return (
            f"Measured on {machine()}: {costs.row_ns:.0f} ns per record, {costs.filter_ns:.1f} ns "
            f"per filter probed, {costs.read_ns / 1000:.1f} us per catalog block read, "
            f"{costs.written_ns:.0f} ns per ID written. {new:,} new and {known:,} known IDs were "
            f"looked up: {self.false_negatives} false negatives."
        )


def tune(options: TuneOptions, progress: Progress = lambda done, what: None) -> Tuning:
    """Measure the cost of choices of filter sizing for a load, and recommend one.

    Parameters
    ----------
    options : TuneOptions
        The load, and the query's own options.
    progress : callable, optional
        Called with the finished share of the work, from 0 to 1, and the current step.

    Raises
    ------
    ConfigError
        If the load is not known or cannot be measured. The error names the option.
    DataError, CatalogError, StateError
        If a sample, a catalog or a checkpoint cannot be read.
    FilterDamaged
        If a filter lacks an ID that was added to it.
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
    """Return the properties of this machine that affect times."""
    return f"{machine_cores()} cores, {platform.machine()}, {PATH} kernel"
