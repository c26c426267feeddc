"""Advice on options, from the measured candidates and from the data."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np

from dedup.catalog.cache import DEFAULT_CACHE_BYTES
from dedup.core.sizing import interval
from dedup.tools.check.cost_rules import PER_CORE_MAX, arrow_batches, workers_bytes
from dedup.tools.check.facts import SHARE_BYTES, Facts
from dedup.tools.check.findings import (
    Assessment,
    Findings,
    Level,
    Takes,
    breaks,
    costs,
    findings_of,
    fine,
    unknown,
)
from dedup.tools.tuning.candidates import WORTH, Candidate, Choice, value_of, written
from dedup.tools.tuning.demand import Demand, Repeats, Sizing
from dedup.values.duration import format_ms, span

#: Largest share of late records that needs no advice.
LATE_SHARE = 0.001
#: Largest factor between the measured and the predicted number of live IDs that needs no advice.
SEEN_LIVE_FACTOR = 1.5
#: Round durations that advice recommends.
_LENGTHS_MS = (
    60_000, 300_000, 600_000, 1_800_000, 3_600_000, 2 * 3_600_000, 6 * 3_600_000, 12 * 3_600_000,
    86_400_000,
)  # fmt: skip


def advise(demand: Demand, choice: Choice) -> Findings:
    judged: list[tuple[str, Assessment | None]] = [
        *((option.replace("_", "-"), _sizing(choice, option)) for option in asdict(Sizing())),
        ("seen-fpr", _seen_fpr(demand, choice)),
        ("seen-live-ids", _seen_live(demand, choice)),
        ("seen-segments", _seen_segments(demand, choice)),
        ("shards", _shards(demand)),
    ]
    if (repeats := demand.repeats) is not None:
        judged += [
            ("horizon", _horizon(demand.horizon_ms, repeats)),
            ("lateness", _lateness(demand.lateness_ms, repeats)),
            ("stable-timestamps", _stable_timestamps(demand, repeats, choice)),
        ]
    rows = Facts(settings={"spark.master": "local"}, complete=True, row_bytes=demand.row_bytes)
    judged += [
        ("cache-bytes", _cache(choice.recommended)),
        ("memory", _memory()),
        ("arrow-batches", arrow_batches(rows)),
    ]
    return findings_of(judged)


def _sizing(choice: Choice, option: str) -> Assessment:
    today = choice.today
    value, better = getattr(today.sizing, option), getattr(choice.recommended.sizing, option)
    if better == value:
        tried = dict.fromkeys(value_of(getattr(c.sizing, option)) for c in choice.candidates)
        return fine(
            f"{written(option, value)}: none of {', '.join(tried)} saves more "
            f"than {WORTH:.0%} of time x bytes while the other options stay."
        )
    changed = replace(today.sizing, **{option: better})
    alone = next(c for c in choice.candidates if c.sizing == changed)
    return costs(
        f"{written(option, value)} takes {today.ms_per_million / alone.ms_per_million:.2f} times "
        f"the time and {today.total_bytes / alone.total_bytes:.2f} times the bytes of "
        f"{written(option, better)}: {today.ms_per_million:,.0f} instead of "
        f"{alone.ms_per_million:,.0f} ms per 1 M records, {today.reads_per_s:,.1f} instead "
        f"of {alone.reads_per_s:,.1f} catalog reads/s.",
        written(option, better),
    )


def _seen_fpr(demand: Demand, choice: Choice) -> Assessment | None:
    if demand.seen_fpr is None:
        return None
    wrong, new = demand.seen_fpr
    low, high = interval(wrong, new)
    target = choice.today.sizing.fpr
    seen = (
        f"The running query's filters were wrong for {wrong:,} of {new:,} new IDs: "
        f"{low:.3%} to {high:.3%}, at a target of {target:.3%}."
    )
    if low <= target:
        return fine(seen)
    return costs(
        f"{seen} Filters of an earlier fpr live until their bucket expires. Otherwise "
        "verify the catalog.",
        "dedup catalog verify ROOT --checkpoint DIR",
        Takes.OUTSIDE,
    )


def _seen_live(demand: Demand, choice: Choice) -> Assessment | None:
    if demand.seen_live is None:
        return None
    seen, predicted = demand.seen_live, choice.today.trial.live_ids * demand.shards
    if predicted / SEEN_LIVE_FACTOR <= seen <= predicted * SEEN_LIVE_FACTOR:
        return None
    why = "more IDs came per day than in the log's micro-batches, or the horizon was longer"
    option = "--ids-per-day"
    if seen < predicted:
        why = "fewer IDs came per day than in the log's micro-batches"
        if not demand.forgets_at_late:
            why += ', or the query has stable_timestamps=True and late="drop", which no log shows'
            option = "--stable-timestamps --late drop, or --ids-per-day"
    return unknown(
        f"The log's last micro-batch has {seen:,} live IDs, the trial of the query's options has "
        f"{predicted:,.0f}: {why}. The figures here come from the trial.",
        f"give {option}",
        Takes.OUTSIDE,
    )


def _seen_segments(demand: Demand, choice: Choice) -> Assessment | None:
    if not demand.seen_segments or choice.today.trial.segments:
        return None
    budget = choice.today.sizing.state_budget_bytes
    return unknown(
        f"The query has {demand.seen_segments:,} segments, but under "
        f"{written('state_budget_bytes', budget)} all its IDs fit into Spark state. So its "
        "state_budget_bytes is smaller; no catalog shows it.",
        "give --state-budget-bytes",
        Takes.OUTSIDE,
    )


def _shards(demand: Demand) -> Assessment:
    fullest = demand.fullest
    if fullest is None:
        fill = demand.fill_of_shards()
        mean = sum(fill) / len(fill)
        fullest = max(fill) / mean if mean else 1.0
    skew = f"the fullest shard holds {fullest:.2f} times the mean"
    have = f"shards={demand.shards} on {demand.cores_text}"
    few, many = demand.cores, PER_CORE_MAX * demand.cores
    if few <= demand.shards <= many:
        return fine(f"{have}; {skew}.")
    change = f"spark.sql.shuffle.partitions={few}"
    if demand.shards < few:
        level = Level.COSTS if demand.cores_given else Level.UNKNOWN
        evidence = f"{have}: cores are idle in the group function; {skew}."
        return Assessment(level, evidence, change, Takes.BEGINNING)
    evidence = (
        f"{have}: each state partition costs a Python session in every micro-batch. If "
        f"spark.sql.shuffle.partitions is already smaller, this costs nothing; {skew}."
    )
    if demand.running:
        return unknown(f"{evidence} `dedup check` shows how many partitions there are.")
    return unknown(evidence, change, Takes.BEGINNING)


def _stable_timestamps(demand: Demand, repeats: Repeats, choice: Choice) -> Assessment | None:
    count = len(repeats.apart_ms)
    if demand.stable_timestamps or not count or repeats.same_timestamp != count:
        return None
    return costs(
        f"All {count:,} repeats of the sample carry the timestamp of their first copy. If the "
        "producers guarantee that, a lookup reads one bucket instead of all: now a new ID probes "
        f"{choice.today.trial.filters_asked:.1f} filters.",
        "stable_timestamps=True",
        Takes.BEGINNING,
    )


def _horizon(horizon_ms: int, repeats: Repeats) -> Assessment:
    apart_ms, horizon = repeats.apart_ms, _horizon_of(horizon_ms)
    if not len(apart_ms):
        return unknown(f"The sample holds no repeats, so it proves nothing about {horizon}.")
    beyond, longest_ms = int((apart_ms > horizon_ms).sum()), int(apart_ms[-1])
    most_ms = int(apart_ms[int(np.ceil(0.999 * len(apart_ms))) - 1])
    spread = (
        f"of {len(apart_ms):,} repeats 99.9 % come within {span(most_ms)} of the first copy, the "
        f"last one {span(longest_ms)} after it"
    )
    if beyond:
        return breaks(
            f"{beyond:,} repeats come later than {horizon} and pass as new: {spread}.",
            _horizon_of(round_up(longest_ms)),
        )
    if repeats.span_ms < horizon_ms:
        return unknown(
            f"{spread.capitalize()}. The sample spans {span(repeats.span_ms)}, less than "
            f"{horizon}, so it cannot show repeats further apart.",
            "give a longer sample",
            Takes.OUTSIDE,
        )
    if round_up(4 * longest_ms) < horizon_ms:
        enough_ms = round_up(2 * longest_ms)
        return costs(
            f"{spread.capitalize()}, a fraction of {horizon}; IDs are kept "
            f"{horizon_ms / enough_ms:.0f} times as long as twice that.",
            _horizon_of(enough_ms),
        )
    return fine(f"{horizon}: {spread}.")


def _horizon_of(horizon_ms: int) -> str:
    return f'horizon="{format_ms(horizon_ms)}"'


def _lateness(lateness_ms: int, repeats: Repeats) -> Assessment:
    behind_ms = repeats.behind_ms
    late = int((behind_ms > lateness_ms).sum())
    have = (
        f"{late:,} of {repeats.records:,} records are late under "
        f'lateness="{format_ms(lateness_ms)}"'
    )
    if late / repeats.records <= LATE_SHARE:
        return fine(f"{have}.")
    # At most the share `LATE_SHARE` of the records is further behind.
    enough_ms = int(behind_ms[max(0, len(behind_ms) - 1 - int(LATE_SHARE * repeats.records))])
    return costs(
        f"{have}, file by file. Unknown ones may pass although their IDs have expired, or are "
        f"dropped (`late=`). 99.9 % are behind by {span(enough_ms)} at most.",
        f'lateness="{format_ms(round_up(enough_ms))}"',
    )


def _cache(best: Candidate) -> Assessment | None:
    needed = best.sidecar_bytes + best.segment_bytes
    if needed <= DEFAULT_CACHE_BYTES:
        return None
    return costs(
        f"Segments and sidecars take {needed / 2**30:,.1f} GiB, and the cache of each machine "
        f"holds {DEFAULT_CACHE_BYTES >> 30} GiB at most. If the catalog is in an object store, "
        "files that do not fit are fetched again. Calculate with one machine's share of the "
        "shards.",
        f"cache_bytes={round(1.25 * needed)}",
    )


def _memory() -> Assessment:
    return fine(
        f"A shard's share of a micro-batch may take {SHARE_BYTES >> 20:,} MiB "
        "(max_shard_batch_bytes, its default). For such shares an executor needs "
        f"{workers_bytes(1, SHARE_BYTES) >> 20:,} MiB for each of its cores outside the JVM's heap "
        "(spark.executor.memoryOverhead). `dedup check` compares a query's settings with it."
    )


def round_up(duration_ms: int) -> int:
    for length_ms in _LENGTHS_MS:
        if duration_ms <= length_ms:
            return length_ms
    return -(-duration_ms // 86_400_000) * 86_400_000
