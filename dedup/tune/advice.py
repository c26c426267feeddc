"""What to change, and why: from the candidates that were tried and from what the data show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from dedup.catalog.cache import DEFAULT_CACHE_BYTES
from dedup.checks.findings import Finding, Level, Takes, in_order
from dedup.checks.memory_rules import SHARE_BYTES, workers_bytes
from dedup.checks.speed_rules import PER_CORE_MAX
from dedup.core.duration import format_ms, span
from dedup.core.sizing import interval
from dedup.tune.candidates import WORTH, Candidate, Choice, value_of, written
from dedup.tune.demand import Demand, Repeats
from dedup.tune.footprint import MAX_ROWS

#: Share of records that may be late before lateness is worth a word.
LATE_SHARE = 0.001
#: Live IDs of a running query that differ by more from what is predicted are worth a word.
SEEN_LIVE_FACTOR = 1.5
#: Lengths of time that people write.
_LENGTHS_MS = (
    60_000, 300_000, 600_000, 1_800_000, 3_600_000, 2 * 3_600_000, 6 * 3_600_000, 12 * 3_600_000,
    86_400_000,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """Peak memory of one Python worker, measured with `MAX_ROWS` records at most.

    Parameters
    ----------
    rows : int
        Records of a shard in a micro-batch.
    worker_bytes : int
        With the package loaded and those records judged, their columns apart.
    """

    rows: int
    worker_bytes: int


def advise(demand: Demand, choice: Choice, memory: WorkerMemory | None) -> list[Finding]:
    """Return what to change and what is well, those that matter most first."""
    return in_order(
        [
            *_sizing(choice),
            *_seen(demand, choice),
            *_seen_live(demand, choice),
            *_seen_segments(demand, choice),
            *_shards(demand),
            *_repeats(demand, choice),
            *_cache(choice.recommended),
            *_memory(memory),
        ]
    )


def _sizing(choice: Choice) -> Iterator[Finding]:
    today, best = choice.today, choice.recommended
    for option, value in asdict(today.sizing).items():
        rule, now = option.replace("_", "-"), written(option, value)
        if getattr(best.sizing, option) == value:
            tried = sorted(
                {value_of(getattr(c.sizing, option)) for c in choice.candidates}, key=float
            )
            evidence = (
                f"{now}: of {', '.join(tried)} none saves more than {WORTH:.0%} of time x bytes"
                " while the other options stay."
            )
            yield Finding(rule=rule, level=Level.FINE, evidence=evidence)
            continue
        wanted = getattr(best.sizing, option)
        alone = next(
            c
            for c in choice.candidates
            if getattr(c.sizing, option) == wanted
            and sum(getattr(c.sizing, n) != v for n, v in asdict(today.sizing).items()) == 1
        )
        yield Finding(
            rule=rule,
            level=Level.COSTS,
            evidence=(
                f"{now} takes {today.ms_per_million / alone.ms_per_million:.2f} times the time "
                f"and {today.total_bytes / alone.total_bytes:.2f} times the bytes of "
                f"{written(option, wanted)}: {today.ms_per_million:,.0f} instead of "
                f"{alone.ms_per_million:,.0f} ms per 1 M records, {today.reads_per_s:,.1f} instead "
                f"of {alone.reads_per_s:,.1f} catalog reads/s."
            ),
            change=written(option, wanted),
            takes=Takes.RESTART,
        )


def _seen(demand: Demand, choice: Choice) -> Iterator[Finding]:
    if demand.seen_fpr is None:
        return
    wrong, asked = demand.seen_fpr
    low, high = interval(wrong, asked)
    target = choice.today.sizing.fpr
    seen = (
        f"the running query's filters were wrong for {wrong:,} of {asked:,} unknown IDs: "
        f"{low:.3%} to {high:.3%}, at a target of {target:.3%}"
    )
    if low > target:
        yield Finding(
            rule="seen-fpr",
            level=Level.COSTS,
            evidence=f"{_capital(seen)}. Filters that were made under an earlier fpr live until "
            "their bucket goes; where there are none, verify the catalog.",
            change="dedup catalog verify ROOT --checkpoint DIR",
            takes=Takes.OUTSIDE,
        )
    else:
        yield Finding(rule="seen-fpr", level=Level.FINE, evidence=f"{_capital(seen)}.")


def _seen_live(demand: Demand, choice: Choice) -> Iterator[Finding]:
    if demand.seen_live is None:
        return
    seen, predicted = demand.seen_live, choice.today.trial.live_ids * demand.shards
    if predicted / SEEN_LIVE_FACTOR <= seen <= predicted * SEEN_LIVE_FACTOR:
        return
    why = "more IDs came a day than in the log's micro-batches, or the horizon was longer"
    give = "give --ids-per-day"
    if seen < predicted and not demand.forgets_at_late:
        why = (
            "fewer IDs came a day than in the log's micro-batches, or the query has "
            'stable_timestamps=True and late="drop", which no log tells'
        )
        give = "give --stable-timestamps --late drop, or --ids-per-day"
    elif seen < predicted:
        why = "fewer IDs came a day than in the log's micro-batches"
    yield Finding(
        rule="seen-live-ids",
        level=Level.UNKNOWN,
        evidence=(
            f"The log's last micro-batch has {seen:,} live IDs, the trial of what the query has "
            f"comes to {predicted:,.0f}: {why}. The figures here are those of the trial."
        ),
        change=give,
        takes=Takes.OUTSIDE,
    )


def _seen_segments(demand: Demand, choice: Choice) -> Iterator[Finding]:
    if not demand.seen_segments or choice.today.trial.segments:
        return
    sizing = choice.today.sizing
    yield Finding(
        rule="seen-segments",
        level=Level.UNKNOWN,
        evidence=(
            f"The query has {demand.seen_segments:,} segments, but under "
            f"{written('state_budget_bytes', sizing.state_budget_bytes)} all its IDs fit into "
            "Spark state: its budget is smaller, which no catalog tells."
        ),
        change="give --state-budget-bytes",
        takes=Takes.OUTSIDE,
    )


def _shards(demand: Demand) -> Iterator[Finding]:
    fullest = demand.fullest
    if fullest is None:
        fill = demand.fill_of_shards()
        mean = sum(fill) / len(fill)
        fullest = max(fill) / mean if mean else 1.0
    skew = f"the fullest shard holds {fullest:.2f} times the mean"
    have = f"shards={demand.shards} on {demand.cores_told}"
    few, many = demand.cores, PER_CORE_MAX * demand.cores
    if few <= demand.shards <= many:
        yield Finding(rule="shards", level=Level.FINE, evidence=f"{have}; {skew}.")
        return
    idle = demand.shards < few
    why = (
        "cores stand idle in the group function"
        if idle
        else "as many state partitions cost a Python session each in every micro-batch; where "
        "spark.sql.shuffle.partitions is already smaller, this costs nothing"
    )
    if demand.running and not idle:
        yield Finding(
            rule="shards",
            level=Level.UNKNOWN,
            evidence=f"{have}: {why}; {skew}. `dedup check` tells how many partitions there are.",
        )
        return
    yield Finding(
        rule="shards",
        level=Level.COSTS if idle and demand.cores_given else Level.UNKNOWN,
        evidence=f"{have}: {why}; {skew}.",
        change=f"spark.sql.shuffle.partitions={few}",
        takes=Takes.BEGINNING,
    )


def _repeats(demand: Demand, choice: Choice) -> Iterator[Finding]:
    repeats = demand.repeats
    if repeats is None:
        return
    yield _horizon(demand, repeats)
    yield _lateness(demand, repeats)
    count = len(repeats.apart_ms)
    if count and repeats.same_timestamp == count and not demand.stable_timestamps:
        asked = choice.today.trial.filters_asked
        yield Finding(
            rule="stable-timestamps",
            level=Level.COSTS,
            evidence=(
                f"All {count:,} repeats of the sample carry the timestamp of their first copy. If "
                "the producers promise that, one bucket is asked in place of all: now a new ID is "
                f"asked of {asked:.1f} filters."
            ),
            change="stable_timestamps=True",
            takes=Takes.BEGINNING,
        )


def _horizon(demand: Demand, repeats: Repeats) -> Finding:
    apart, horizon = repeats.apart_ms, f'horizon="{format_ms(demand.horizon_ms)}"'
    if not len(apart):
        return Finding(
            rule="horizon",
            level=Level.UNKNOWN,
            evidence=f"The sample holds no repeats, so nothing speaks for or against {horizon}.",
        )
    beyond = int((apart > demand.horizon_ms).sum())
    longest = int(apart[-1])
    most = int(apart[int(np.ceil(0.999 * len(apart))) - 1])
    spread = (
        f"of {len(apart):,} repeats 99.9 % come within {span(most)} of the first copy, the last "
        f"one {span(longest)} after it"
    )
    if beyond:
        return Finding(
            rule="horizon",
            level=Level.BREAKS,
            evidence=f"{beyond:,} repeats come later than {horizon} and go on as new: {spread}.",
            change=f'horizon="{format_ms(round_up(longest))}"',
            takes=Takes.RESTART,
        )
    if repeats.span_ms < demand.horizon_ms:
        return Finding(
            rule="horizon",
            level=Level.UNKNOWN,
            evidence=(
                f"{_capital(spread)}. The sample spans {span(repeats.span_ms)}, less than "
                f"{horizon}: repeats further apart cannot be in it."
            ),
            change="give a longer sample",
            takes=Takes.OUTSIDE,
        )
    if round_up(4 * longest) < demand.horizon_ms:
        return Finding(
            rule="horizon",
            level=Level.COSTS,
            evidence=f"{_capital(spread)}, a fraction of {horizon}; IDs are kept "
            f"{demand.horizon_ms / round_up(2 * longest):.0f} times as long as twice that.",
            change=f'horizon="{format_ms(round_up(2 * longest))}"',
            takes=Takes.RESTART,
        )
    return Finding(rule="horizon", level=Level.FINE, evidence=f"{horizon}: {spread}.")


def _lateness(demand: Demand, repeats: Repeats) -> Finding:
    behind = repeats.behind_ms
    late = int((behind > demand.lateness_ms).sum())
    lateness = f'lateness="{format_ms(demand.lateness_ms)}"'
    share = late / repeats.records
    told = f"{late:,} of {repeats.records:,} records are late under {lateness}"
    if share <= LATE_SHARE:
        return Finding(rule="lateness", level=Level.FINE, evidence=f"{_capital(told)}.")
    # So many may be behind at most.
    enough = int(behind[max(0, len(behind) - 1 - int(LATE_SHARE * repeats.records))])
    return Finding(
        rule="lateness",
        level=Level.COSTS,
        evidence=(
            f"{_capital(told)}, file by file: those that are unknown go on unjudged by what was "
            f"forgotten, or are dropped (`late=`). 99.9 % are behind by {span(enough)} at most."
        ),
        change=f'lateness="{format_ms(round_up(enough))}"',
        takes=Takes.RESTART,
    )


def _cache(best: Candidate) -> Iterator[Finding]:
    needed = best.sidecar_bytes + best.segment_bytes
    if needed > DEFAULT_CACHE_BYTES:
        yield Finding(
            rule="cache-bytes",
            level=Level.COSTS,
            evidence=(
                f"Segments and sidecars come to {needed / 2**30:,.1f} GiB, the cache of each "
                f"machine holds {DEFAULT_CACHE_BYTES >> 30} GiB. With the catalog in an object "
                "store what does not fit is fetched again; count what one machine's share of the "
                "shards needs."
            ),
            change=f"cache_bytes={round(1.25 * needed)}",
            takes=Takes.RESTART,
        )


def _memory(memory: WorkerMemory | None) -> Iterator[Finding]:
    if memory is None:
        return
    measured = "measured" if memory.rows <= MAX_ROWS else f"measured with {MAX_ROWS:,} records"
    yield Finding(
        rule="memory",
        level=Level.FINE,
        evidence=(
            f"A Python worker takes {memory.worker_bytes / 2**20:,.0f} MiB for {memory.rows:,} "
            f"records of a shard and micro-batch ({measured}), their columns apart. A share with "
            f"its columns may take {SHARE_BYTES >> 20:,} MiB (max_shard_batch_bytes, its default); "
            f"for such shares an executor needs {workers_bytes(1, SHARE_BYTES) >> 20:,} MiB for "
            "each of its cores outside of the JVM's heap (spark.executor.memoryOverhead). "
            "`dedup check` holds a query's settings against it."
        ),
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def round_up(duration_ms: int) -> int:
    """The next length that people would write."""
    for length_ms in _LENGTHS_MS:
        if duration_ms <= length_ms:
            return length_ms
    return -(-duration_ms // 86_400_000) * 86_400_000
