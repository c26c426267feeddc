"""Choices of options side by side: each is tried, and the one that pays best is recommended.

What a choice costs is its time times its bytes: the knee of the curve of one against the other is
where that is least. Options change only where another value alone saves more than `WORTH` of it;
recommended is the cheapest of such changes, one by one and together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dedup.core.sizing import interval, least_bits_per_id
from dedup.tools.tuning.costs import Costs
from dedup.tools.tuning.demand import Demand, Sizing
from dedup.tools.tuning.trial import Trial, run, scaled

#: What is tried along each option, beside what the query has.
FPRS = (0.1, 0.03, 0.01, 0.003, 0.001)
BUCKETS = (4, 8, 16, 32)
BUDGETS = (1 << 18, 1 << 20, 1 << 22)
#: A change that saves less is not worth a restart: Spark's passes, which are not counted here, take
#: as long again, so half of it is left.
WORTH = 0.15
#: Bytes in all below which none are worth saving.
LEAST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A choice of options and what it comes to; bytes are those of all shards.

    Parameters
    ----------
    sizing : Sizing
    trial : Trial
    state_bytes, sidecar_bytes, segment_bytes : float
    reads_per_s : float
        Blocks read from the catalog.
    ms_per_million : float
        Time of one core in the group function for 1 M records.
    """

    sizing: Sizing
    trial: Trial
    state_bytes: float
    sidecar_bytes: float
    segment_bytes: float
    reads_per_s: float
    ms_per_million: float

    @property
    def total_bytes(self) -> float:
        """State, sidecars and segments."""
        return self.state_bytes + self.sidecar_bytes + self.segment_bytes

    @property
    def cost(self) -> float:
        """Time times bytes."""
        return max(self.total_bytes, LEAST_BYTES) * self.ms_per_million

    @property
    def measured_fpr(self) -> float:
        """False positives among the unknown IDs that were asked for."""
        return self.trial.false_positives / self.trial.asked

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true rate lies, with 95 % confidence."""
        return interval(self.trial.false_positives, self.trial.asked, spread=self.trial.spread)

    @property
    def bits_per_id(self) -> float:
        """Filter bits per live ID in segments."""
        sealed = self.trial.live_ids - self.trial.tail_ids
        return 8 * self.trial.filter_bytes / sealed if sealed else 0.0

    @property
    def wasted(self) -> float | None:
        """Share of the filters' bits that one best possible filter of all IDs would not need.

        None where the filters are never wrong, as with nothing sealed.
        """
        rate = self.trial.predicted_fpr
        if not self.bits_per_id or not 0 < rate < 1:
            return None
        return 1 - least_bits_per_id(rate) / self.bits_per_id

    def to_json(self) -> dict[str, Any]:
        """Return all figures, for scripts."""
        low, high = self.interval
        return asdict(self.sizing) | {
            "bits_per_id": self.bits_per_id,
            "predicted_fpr": self.trial.predicted_fpr,
            "measured_fpr": self.measured_fpr,
            "measured_fpr_low": low,
            "measured_fpr_high": high,
            "unknown_ids_asked": self.trial.asked,
            "known_ids_asked": self.trial.known,
            "false_negatives": self.trial.false_negatives,
            "state_bytes": self.state_bytes,
            "sidecar_bytes": self.sidecar_bytes,
            "segment_bytes": self.segment_bytes,
            "segments_per_shard": self.trial.segments,
            "filters_asked_per_id": self.trial.filters_asked,
            "times_an_id_is_written": self.trial.ids_written,
            "catalog_reads_per_s": self.reads_per_s,
            "ms_per_million": self.ms_per_million,
            "wasted": self.wasted,
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """All candidates in the order in which they were tried: first what the query has today.

    Parameters
    ----------
    candidates : tuple of Candidate
    recommended : Candidate
        One of them.
    """

    candidates: tuple[Candidate, ...]
    recommended: Candidate

    @property
    def today(self) -> Candidate:
        """What the query has, or the defaults."""
        return self.candidates[0]

    def dominated(self, candidate: Candidate) -> bool:
        """Return whether another takes no more bytes and no more time, and less of one."""
        own = candidate.total_bytes, candidate.ms_per_million
        return any(
            other.total_bytes <= own[0]
            and other.ms_per_million <= own[1]
            and (other.total_bytes, other.ms_per_million) != own
            for other in self.candidates
        )

    @property
    def false_negatives(self) -> int:
        """Over all trials: always 0."""
        return sum(candidate.trial.false_negatives for candidate in self.candidates)


def choices(base: Sizing) -> list[Sizing]:
    """Return the base, then every other value of one option at a time."""
    found = [base]
    found += [replace(base, fpr=fpr) for fpr in FPRS]
    found += [replace(base, buckets=buckets) for buckets in BUCKETS]
    found += [replace(base, state_budget_bytes=size) for size in BUDGETS]
    return list(dict.fromkeys(found))


def explore(demand: Demand, costs: Costs, progress: Callable[[float, str], None]) -> Choice:
    """Try the choices one by one, then the best value of each option together.

    Parameters
    ----------
    demand : Demand
    costs : Costs
        Of this machine.
    progress : callable
        Told the share that is done, and what is being tried.
    """
    base = demand.today or Sizing()
    wanted = choices(base)
    tried: list[Candidate] = []

    def attempt(sizing: Sizing) -> None:
        begun, share = len(tried), 1 / (len(wanted) + 1)

        def tell(done: float) -> None:
            progress(min(1.0, share * (begun + done)), named(sizing, base))

        tried.append(try_out(demand, sizing, costs, tell))

    for sizing in wanted:
        attempt(sizing)
    best = best_of_each(tried, base)
    worth = [c for c in tried if changed(c.sizing, base) <= changed(best, base)]
    if best not in wanted:
        attempt(best)
        worth.append(tried[-1])
    return Choice(tuple(tried), min(worth, key=lambda c: c.cost) if best != base else tried[0])


def best_of_each(tried: Sequence[Candidate], base: Sizing) -> Sizing:
    """Return the base, with every option changed of which another value alone is worth it."""
    today, best = tried[0], base
    for option in asdict(base):
        axis = [c for c in tried if replace(c.sizing, **{option: getattr(base, option)}) == base]
        winner = min(axis, key=lambda c: c.cost)
        if winner.cost < (1 - WORTH) * today.cost:
            best = replace(best, **{option: getattr(winner.sizing, option)})
    return best


def try_out(
    demand: Demand, sizing: Sizing, costs: Costs, progress: Callable[[float], None]
) -> Candidate:
    """Run one choice through a trial and work out what it comes to.

    Parameters
    ----------
    demand : Demand
    sizing : Sizing
    costs : Costs
        Of this machine.
    progress : callable
        Told the share that is done.
    """
    load, scale = scaled(
        demand.policy(sizing),
        new_per_ms=demand.ids_per_day / 86_400_000 / demand.shards,
        rows=demand.rows_per_shard,
        duplicates=demand.duplicates,
        key_bytes=demand.key_bytes,
    )
    trial = run(load, scale, demand.keys_of(), progress)
    row_bytes = min(
        max(sizing.state_budget_bytes, trial.head_bytes),
        trial.head_bytes + trial.tail_bytes + trial.filter_bytes,
    )
    return Candidate(
        sizing=sizing,
        trial=trial,
        state_bytes=demand.shards * row_bytes,
        sidecar_bytes=demand.shards * trial.filter_bytes,
        segment_bytes=demand.shards * trial.sst_bytes,
        reads_per_s=trial.blocks_read * demand.records_per_s,
        ms_per_million=costs.ms_per_million(trial, row_bytes, demand.busy_rows),
    )


def changed(sizing: Sizing, base: Sizing) -> set[tuple[str, float]]:
    """Return the options in which a choice differs from the base, with their values."""
    return set(asdict(sizing).items()) - set(asdict(base).items())


def named(sizing: Sizing, base: Sizing) -> str:
    """Return what tells a choice from the base, as it is written in a call."""
    different = changed(sizing, base)
    texts = [written(*pair) for pair in asdict(sizing).items() if pair in different]
    return ", ".join(texts) or "as it is"


def written(option: str, value: float) -> str:
    """Return an option as it is written in a call."""
    return f"{option}={value_of(value)}"


def value_of(value: float) -> str:
    """Return an option's value as it is written in a call."""
    return f"{value:g}" if isinstance(value, float) else str(value)
