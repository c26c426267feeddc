"""`dedup tune`: find out what is asked for, measure choices of options here, recommend one."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dedup.checks.findings import Finding
from dedup.cli.failures import DAMAGE, OK
from dedup.cli.tune import screen as words
from dedup.core.duration import duration_ms
from dedup.core.policy import MIN_BUDGET_BYTES, MIN_FPR, default_lateness_ms, late_rule
from dedup.errors import ConfigError, FilterDamaged
from dedup.kernel import PATH
from dedup.machine import machine_cores
from dedup.tune import report
from dedup.tune.advice import WorkerMemory, advise
from dedup.tune.candidates import FPRS, Choice, explore
from dedup.tune.charts import charts
from dedup.tune.costs import Costs, measure
from dedup.tune.curves import Point, fill_points
from dedup.tune.demand import Demand, Sizing, check
from dedup.tune.drive import UUID_BYTES
from dedup.tune.footprint import worker_bytes
from dedup.tune.running import of_batches, of_states
from dedup.tune.sample import of_sample

#: Told how far the work is, from 0 to 1, and what is being done.
Progress = Callable[[float, str], None]
_COUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmbt]?)", re.IGNORECASE)
_TIMES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
#: How far the work is after filters by fill, costs of this machine, memory; the rest are trials.
_CURVES, _COSTS, _MEMORY = 0.05, 0.2, 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What `dedup tune` was asked.

    Parameters
    ----------
    ids_per_day : str or None
        Such as ``20M``.
    sample, log, catalog : str or None
        Where the load is to be read from, at most one of them.
    checkpoint : str or None
        Of `catalog`.
    query : str or None
        Which of the log's.
    horizon, lateness, batch : str or None
        Durations.
    duplicate_share : float or None
        Share of records that repeat an ID.
    id_bytes, shards, cores : int or None
    buckets, fpr, state_budget_bytes
        What the query has now; None: the operator's default.
    stable_timestamps : bool
    late : str or None
        ``"emit"`` or ``"drop"``; None: what a catalog tells, else ``"emit"``.
    read : dict
        How a sample is read, as `RunOptions` has it.
    html : Path or None
        File for the report.
    """

    ids_per_day: str | None = None
    sample: str | None = None
    log: str | None = None
    catalog: str | None = None
    checkpoint: str | None = None
    query: str | None = None
    horizon: str | None = None
    lateness: str | None = None
    batch: str | None = None
    duplicate_share: float | None = None
    id_bytes: int | None = None
    shards: int | None = None
    cores: int | None = None
    buckets: int | None = None
    fpr: float | None = None
    state_budget_bytes: int | None = None
    stable_timestamps: bool = False
    late: str | None = None
    read: dict[str, Any]
    html: Path | None = None

    def __post_init__(self) -> None:
        given = [n for n in ("sample", "log", "catalog") if getattr(self, n) is not None]
        if len(given) > 1:
            raise ConfigError(f"--{given[0]} and --{given[1]} exclude each other; give one.")
        if not given and self.ids_per_day is None:
            raise ConfigError(
                "Say what is asked of the query: --ids-per-day 20M, or --sample FILES --id COL, or "
                "--log DIR, or --catalog ROOT --checkpoint DIR."
            )
        if self.catalog is not None and self.checkpoint is None:
            raise ConfigError("--catalog needs --checkpoint: only it knows the query's state.")
        if self.sample is not None and not self.read.get("id"):
            raise ConfigError("--sample needs --id: the column of the record ID.")
        if self.horizon is None and self.log is None and self.catalog is None:
            raise ConfigError("--horizon is missing: how long an ID is remembered, '7 days'.")
        for fixed in ("log", "catalog"):
            if getattr(self, fixed) is not None and self.shards is not None:
                raise ConfigError(
                    f"--shards and --{fixed} exclude each other: the {fixed} tells the shards, "
                    "which are fixed from the query's beginning."
                )
        late_rule(self.late, option="--late")
        for option, least in (
            ("id_bytes", 1), ("shards", 1), ("cores", 1), ("buckets", 1),
            ("state_budget_bytes", MIN_BUDGET_BYTES),
        ):  # fmt: skip
            value = getattr(self, option)
            if value is not None and value < least:
                raise ConfigError(f"--{option.replace('_', '-')} {value} is below {least}.")
        if self.fpr is not None and not MIN_FPR <= self.fpr < 1:
            raise ConfigError(
                f"--fpr {self.fpr} does not lie between 0 and 1, from {MIN_FPR:g} on."
            )
        if self.html is not None and os.path.isdir(self.html):
            raise ConfigError(f"--html {self.html} is a folder; give a file.")
        if self.html is not None and not os.path.isdir(self.html.parent):
            raise ConfigError(f"--html {self.html}: there is no folder {self.html.parent}.")

    def sizing(self) -> dict[str, Any]:
        """Options of `Sizing` that were given."""
        given = {name: getattr(self, name) for name in asdict(Sizing())}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Result:
    """What was asked for, measured and advised."""

    demand: Demand
    choice: Choice
    costs: Costs
    points: tuple[Point, ...]
    findings: tuple[Finding, ...]

    @property
    def false_negatives(self) -> int:
        """Known IDs that a filter did not know, and wrong verdicts: always 0."""
        return self.choice.false_negatives + sum(point.forgotten for point in self.points)

    @property
    def exit_code(self) -> int:
        """3 where anything known was not recognised."""
        return DAMAGE if self.false_negatives else OK

    def to_json(self) -> dict[str, Any]:
        """All of it, for scripts."""
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
            "shard_ids": demand.fill_of_shards(words.live_ids(demand, choice)),
            "false_negatives": self.false_negatives,
        }


def tune(asked: Asked, progress: Progress) -> Result:
    """Measure and recommend.

    Raises
    ------
    ConfigError
        If what was asked cannot be found out or sized, naming the option, or the report cannot be
        written.
    DataError, CatalogError, StateError
        If a sample, a catalog or a checkpoint cannot be read.
    FilterDamaged
        If a filter does not know an ID that was added to it.
    MissingExtraError
        If a report was asked for that cannot be drawn.
    """
    if asked.html is not None:
        report.check_extra()
        check_writable(asked.html)
    progress(0.0, "reading")
    demand = check(demand_of(asked))
    keys = demand.keys_of()
    progress(0.0, "filters by fill")
    points = tuple(fill_points(FPRS, keys))
    _check_filters(points)
    costs = measure(
        keys, lambda done: progress(_CURVES + done * (_COSTS - _CURVES), "costs of this machine")
    )
    progress(_COSTS, "memory of a worker")
    rows = round(demand.rows_per_shard)
    memory = WorkerMemory(rows, worker_bytes(rows, demand.key_bytes))
    choice = explore(
        demand, costs, lambda done, what: progress(_MEMORY + done * (1 - _MEMORY), what)
    )
    progress(1.0, "done")
    return Result(demand, choice, costs, points, tuple(advise(demand, choice, memory)))


def check_writable(place: Path) -> None:
    """Refuse a file that cannot be written; a file that is there stays as it is.

    Raises
    ------
    ConfigError
        Naming the reason.
    """
    there = os.path.exists(place)
    try:
        with place.open("ab"):
            pass
        if not there:
            place.unlink()
    except OSError as error:
        raise ConfigError(f"--html {place} cannot be written: {error.strerror}.") from None


def _check_filters(points: tuple[Point, ...]) -> None:
    forgotten = sum(point.forgotten for point in points)
    if forgotten:
        raise FilterDamaged(
            f"The filters of this installation ({machine()}) did not know {forgotten:,} IDs that "
            "were added to them: duplicates would pass. Run no query with it, and report this as a "
            "defect of dedup."
        )


def demand_of(asked: Asked) -> Demand:
    """What the query is asked for: from where the user said, overruled by what they gave."""
    horizon_ms = _duration(asked.horizon, "--horizon", 1)
    lateness_ms = _duration(asked.lateness, "--lateness", 0)
    batch_ms = _duration(asked.batch, "--batch", 1)
    base = Demand(
        origin="as given",
        ids_per_day=0.0 if asked.ids_per_day is None else count(asked.ids_per_day, "--ids-per-day"),
        horizon_ms=horizon_ms or 1,
        lateness_ms=0,
        shards=asked.shards or asked.cores or machine_cores(),
        cores=asked.cores or machine_cores(),
        cores_given=asked.cores is not None,
        key_bytes=asked.id_bytes or UUID_BYTES,
        stable_timestamps=asked.stable_timestamps,
        today=Sizing(**asked.sizing()),
    )
    base = replace(base, lateness_ms=_lateness_ms(lateness_ms, base))
    found = _found(base, asked)
    given: dict[str, Any] = {
        "horizon_ms": horizon_ms,
        "lateness_ms": lateness_ms,
        "batch_ms": batch_ms,
        "batch_known": True if batch_ms else None,
        "duplicates": asked.duplicate_share,
        "key_bytes": asked.id_bytes,
        "late": asked.late,
        "ids_per_day": base.ids_per_day or None,
        "today": replace(found.today or Sizing(), **asked.sizing()),
    }
    if horizon_ms or lateness_ms is not None or base.ids_per_day:
        # Of another load than the query's own: nothing to hold against the trial.
        found = replace(found, seen_live=None, seen_segments=None)
    return replace(found, **{name: value for name, value in given.items() if value is not None})


def _found(base: Demand, asked: Asked) -> Demand:
    """The demand as the sample, the log or the catalog shows it."""
    if asked.sample is not None:
        from dedup.cli.tune.sample_files import read_sample

        return of_sample(
            base, asked.sample, read_sample(input=asked.sample, **asked.read),
            base.ids_per_day or None,
        )  # fmt: skip
    if asked.log is not None:
        from dedup.monitor.log_folder import read_logs

        logs = read_logs(asked.log)
        chosen = [log for log in logs if asked.query in (None, log.query_id, log.name)]
        if len(chosen) != 1:
            told = ", ".join(sorted(log.name or log.query_id for log in logs)) or "no query"
            which = f"not of {asked.query}" if asked.query and not chosen else "say which: --query"
            raise ConfigError(f"--log {asked.log} tells of {told}; {which}.")
        return of_batches(base, chosen[0].name or chosen[0].query_id, chosen[0].batches)
    if asked.catalog is not None and asked.checkpoint is not None:
        from dedup.catalog.certificate import certificate_of
        from dedup.catalog.repair.contents import open_root
        from dedup.cli.catalog.work import snapshot

        root = open_root(asked.catalog)
        known = snapshot(root, asked.checkpoint)
        fixed = certificate_of(root, known.query_id)
        base = replace(
            base,
            event_time=fixed.timestamp_source != "processing time",
            stable_timestamps=fixed.stable_timestamps,
        )
        return of_states(base, known.query_id, known.states)
    return base


def page(result: Result) -> str:
    """The report."""
    demand, choice = result.demand, result.choice
    return report.page(
        title=f"dedup tune: {words.title(demand)}",
        verdict=words.verdict(demand, choice),
        header=[name for name, _, _ in words.COLUMNS],
        rows=[(words.kind(choice, c), words.cells(c)) for c in choice.candidates],
        findings=result.findings,
        legend=words.legend(),
        charts=charts(demand, choice, result.points),
        foot=measured(result),
    )


def measured(result: Result) -> str:
    """What the figures rest on, in a line or two."""
    costs = result.costs
    asked = sum(c.trial.asked for c in result.choice.candidates)
    known = sum(c.trial.known for c in result.choice.candidates)
    return (
        f"Measured on {machine()}: {costs.row_ns:.0f} ns a record, {costs.filter_ns:.1f} ns a "
        f"filter asked, {costs.read_ns / 1000:.1f} us a catalog block read, {costs.written_ns:.0f} "
        f"ns an ID written. {asked:,} unknown and {known:,} known IDs were asked for: "
        f"{result.false_negatives} false negatives."
    )


def machine() -> str:
    """The machine, as far as times depend on it."""
    return f"{machine_cores()} cores, {platform.machine()}, {PATH} kernel"


def count(text: str, option: str) -> float:
    """A number such as ``20M``, ``1.5b`` or ``2000000``.

    Raises
    ------
    ConfigError
        When it is none.
    """
    found = _COUNT.fullmatch(text.strip().replace(",", "").replace("_", ""))
    if found is None:
        raise ConfigError(f"{option} {text} is not a number such as 20M, 1.5B or 300000.")
    return float(found.group(1)) * _TIMES[found.group(2).lower()]


def _duration(text: str | None, option: str, least_ms: int) -> int | None:
    if text is None:
        return None
    found_ms = duration_ms(text, option=option)
    if found_ms < least_ms:
        raise ConfigError(f"{option} {text} is no time at all; give {least_ms} ms or more.")
    return found_ms


def _lateness_ms(given_ms: int | None, base: Demand) -> int:
    if given_ms is not None:
        return given_ms
    return default_lateness_ms(base.horizon_ms, stable_timestamps=base.stable_timestamps)
