"""Try choices of options, and recommend the best.

The cost of a choice is its time times its bytes. Another value of an option is worth a change only
if the value alone saves more than the share `WORTH` of the cost. Worthy values are tried alone and
together, and the cheapest choice is recommended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dedup.core.filter_choice import room_bytes
from dedup.core.policy import Policy
from dedup.core.sizing import interval, least_bits_per_id
from dedup.tools.tuning.costs import Costs
from dedup.tools.tuning.demand import BUSY_ROWS, Demand, Sizing
from dedup.tools.tuning.trial import Trial, run, scaled
from dedup.values.duration import format_ms

#: Kinds of choices, the most important first.
KINDS = ["recommended", "today", "other", "dominated"]
#: Values that are tried for each option, besides the query's own.
FPRS = (0.1, 0.03, 0.01, 0.003, 0.001)
BUCKETS_TRIED = (4, 8, 16, 32)
BUDGETS = (1 << 18, 1 << 20, 1 << 22)
FILTER_BOUNDS = (None, 0, 1 << 24)
#: Share of the cost that a change must save to be worth a restart. Only half of the saving remains
#: in practice, because Spark's passes, which are not measured here, double the time.
WORTH = 0.15
#: A smaller number of bytes counts as this number, because it is not worth saving more.
LEAST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A choice of options and the figures of its trial.

    Bytes are sums over all shards. `reads_per_s` counts blocks read from the catalog.
    `ms_per_million` is the time that one core takes to judge 1 M records.
    """

    sizing: Sizing
    bucket_ms: int
    trial: Trial
    state_bytes: float
    sidecar_bytes: float
    segment_bytes: float
    reads_per_s: float
    ms_per_million: float

    @property
    def total_bytes(self) -> float:
        return self.state_bytes + self.sidecar_bytes + self.segment_bytes

    @property
    def cost(self) -> float:
        """The time for 1 M records, multiplied by the bytes of all shards."""
        return max(self.total_bytes, LEAST_BYTES) * self.ms_per_million

    @property
    def measured_fpr(self) -> float:
        return self.trial.false_positives / self.trial.asked

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the false-positive rate."""
        return interval(self.trial.false_positives, self.trial.asked, spread=self.trial.spread)

    @property
    def bits_per_id(self) -> float:
        """Number of filter bits for every live ID in segments."""
        sealed = self.trial.live_ids - self.trial.tail_ids
        return 8 * self.trial.filter_bytes / sealed if sealed else 0.0

    @property
    def wasted(self) -> float | None:
        """Share of the filters' bits that a single ideal filter for all IDs would save.

        The share is None if the filters have no false positives, for example without segments.
        """
        rate = self.trial.predicted_fpr
        if not self.bits_per_id or not 0 < rate < 1:
            return None
        return 1 - least_bits_per_id(rate) / self.bits_per_id

    def to_json(self) -> dict[str, Any]:
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
    """All candidates, and the recommended candidate. The query's own options come first."""

    candidates: tuple[Candidate, ...]
    recommended: Candidate

    @property
    def today(self) -> Candidate:
        """The candidate with the query's own options, or with the defaults."""
        return self.candidates[0]

    def dominated(self, candidate: Candidate) -> bool:
        """Return whether another candidate is better in bytes or time, and in neither worse."""
        own = candidate.total_bytes, candidate.ms_per_million
        return any(
            other.total_bytes <= own[0]
            and other.ms_per_million <= own[1]
            and (other.total_bytes, other.ms_per_million) != own
            for other in self.candidates
        )

    def kind(self, candidate: Candidate) -> str:
        if candidate is self.recommended:
            return "recommended"
        if candidate is self.today:
            return "today"
        return "dominated" if self.dominated(candidate) else "other"

    @property
    def trials(self) -> Collection[Trial]:
        """The trials of the candidates. Some candidates share one."""
        return {id(candidate.trial): candidate.trial for candidate in self.candidates}.values()


def choices(demand: Demand) -> list[Sizing]:
    """Return today's options, then variants that change the value of one of them."""
    base = demand.today
    lengths = [format_ms(demand.length_of(buckets)) for buckets in BUCKETS_TRIED]
    sizings = [base]
    sizings += [replace(base, fpr=fpr) for fpr in FPRS]
    sizings += [replace(base, bucket_length=length) for length in lengths]
    sizings += [replace(base, state_budget_bytes=size) for size in BUDGETS]
    sizings += [replace(base, filter_state_bytes=size) for size in FILTER_BOUNDS]
    first: dict[Policy, Sizing] = {}
    for sizing in sizings:
        first.setdefault(demand.policy(sizing), sizing)
    return list(first.values())


def explore(demand: Demand, costs: Costs, progress: Callable[[float, str], None]) -> Choice:
    """Try every choice that changes one option, then the best values of all options together.

    Calls `progress` with the finished share and a description of the current choice.
    """
    base = demand.today
    planned = choices(demand)
    tried: list[Candidate] = []

    def attempt(sizing: Sizing) -> None:
        begun, share = len(tried), 1 / (len(planned) + 1)

        def tell(done: float) -> None:
            progress(min(1.0, share * (begun + done)), named(sizing, base))

        tried.append(try_out(demand, sizing, costs, tell, tried))

    for sizing in planned:
        attempt(sizing)
    best = best_of_each(tried, base)
    worth = [c for c in tried if changed(c.sizing, base) <= changed(best, base)]
    if best not in planned:
        attempt(best)
        worth.append(tried[-1])
    return Choice(tuple(tried), min(worth, key=lambda c: c.cost) if best != base else tried[0])


def best_of_each(tried: Sequence[Candidate], base: Sizing) -> Sizing:
    """Return the base with the best value of every option whose change is worth it alone."""
    today, best = tried[0], base
    for option in asdict(base):
        axis = [c for c in tried if replace(c.sizing, **{option: getattr(base, option)}) == base]
        winner = min(axis, key=lambda c: c.cost)
        if winner.cost < (1 - WORTH) * today.cost:
            best = replace(best, **{option: getattr(winner.sizing, option)})
    return best


def try_out(
    demand: Demand,
    sizing: Sizing,
    costs: Costs,
    progress: Callable[[float], None],
    tried: Sequence[Candidate] = (),
) -> Candidate:
    """Return the figures of one choice. Calls `progress` with the finished share of its trial.

    `filter_state_bytes` changes nothing in a trial. So a choice takes over the trial of a choice in
    `tried` that differs only in this option.
    """
    policy, filter_bound = demand.policy(sizing), sizing.filter_state_bytes
    alike = (c.trial for c in tried if replace(c.sizing, filter_state_bytes=filter_bound) == sizing)
    trial = next(alike, None)
    if trial is None:
        load, scale = scaled(
            policy,
            new_per_ms=demand.ids_per_day / 86_400_000 / demand.shards,
            rows=demand.rows_per_shard,
            duplicates=demand.duplicates,
            key_bytes=demand.key_bytes,
        )
        trial = run(load, scale, demand.keys_of(), progress)
    budget_bytes = max(sizing.state_budget_bytes, trial.head_bytes)
    room = room_bytes(
        round(demand.rows_per_shard),
        0,
        policy.max_filter_state_bytes,
        by_load=policy.filters_by_load,
    )
    row_bytes = min(budget_bytes, trial.head_bytes + trial.tail_bytes)
    row_bytes += min(room, trial.filter_bytes)
    busy_rows = max(demand.rows_per_shard, BUSY_ROWS)
    return Candidate(
        sizing=sizing,
        bucket_ms=policy.bucket_ms,
        trial=trial,
        state_bytes=demand.shards * row_bytes,
        sidecar_bytes=demand.shards * trial.filter_bytes,
        segment_bytes=demand.shards * trial.sst_bytes,
        reads_per_s=trial.blocks_read * demand.records_per_s,
        ms_per_million=costs.ms_per_million(trial, row_bytes, busy_rows),
    )


def changed(sizing: Sizing, base: Sizing) -> set[tuple[str, object]]:
    """Return the options that differ from the base, with their values."""
    return set(asdict(sizing).items()) - set(asdict(base).items())


def named(sizing: Sizing, base: Sizing) -> str:
    """Return the options that differ from the base as text, such as ``fpr=0.003``."""
    different = changed(sizing, base)
    texts = [written(*pair) for pair in asdict(sizing).items() if pair in different]
    return ", ".join(texts) or "no change"


def written(option: str, value: object) -> str:
    return f"{option}={value_of(value)}"


def value_of(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value)
