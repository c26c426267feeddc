"""The second pass of `dedup_by_sequence`: the group function, once per shard and micro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dedup import kernel
from dedup.core.clocks import known_ms
from dedup.core.records import Epoch, Records
from dedup.core.sequence import SequenceVerdict
from dedup.core.sequence_metrics import SEQUENCE_COLUMNS, SEQUENCE_GROUP_STAGES
from dedup.core.sequence_shard import SequenceOutcome, process_sequences
from dedup.core.sequence_state import SequenceState
from dedup.core.sharding import shards_of
from dedup.errors import ConfigError, DataError, faults
from dedup.spark.executor.bad_records import first_of
from dedup.spark.executor.bodies import BodyFile, drop_earlier, handed_on
from dedup.spark.executor.judged import SCHEMA, judged_rows, with_counters
from dedup.spark.executor.shard_input import ShardInput
from dedup.spark.executor.task import Layout, Task, layout, misplaced
from dedup.spark.executor.worker import freeze_gc, release_memory
from dedup.spark.machine import wall_clock_ms
from dedup.spark.observations import Stopwatch
from dedup.spark.plan import Numbering, Plan
from dedup.spark.sequence_observations import SEQUENCE_DDL

SEQUENCE_OUTPUT_SCHEMA = f"{SCHEMA}, {SEQUENCE_DDL}"
#: What an option set to "error" says of the first record that it is about.
_REFUSED = {
    SequenceVerdict.GAP: (
        "gaps",
        "out of order: some of their producer before them are missing, or they come late",
    ),
    SequenceVerdict.UNKNOWN: (
        "unknown",
        "of producers that are not known, or older than what is remembered of them",
    ),
    SequenceVerdict.FENCED: ("fenced", "of an epoch that a newer one of their producer has ended"),
}


def sequence_stream(
    plan: Plan, key: Any, frames: Iterable[pd.DataFrame], state: Any
) -> Iterator[pd.DataFrame]:
    """Yield one shard's verdicts of a stream's micro-batch, and set its next state."""
    freeze_gc()
    yield _judged(plan, key, frames, state)
    faults.point("group.end")
    release_memory()


def _judged(plan: Plan, key: Any, frames: Iterable[pd.DataFrame], state: Any) -> pd.DataFrame:
    faults.point("group.begin")
    watch = Stopwatch()
    task = Task.current(plan)
    if plan.bodies == "group":
        drop_earlier(task)
    lay = layout(plan, task)
    shard = lay.slot_keys.index(int(key[0]))
    shard_input = ShardInput.of(plan, lay, frames)
    base = SequenceState.from_bytes(bytes(state.get[0])) if state.exists else SequenceState()
    task.check_follows(base.epoch)
    born = _named(plan, base, shard, lay)
    watch.lap("read")
    faults.point("group.read")
    now_ms = state.getCurrentProcessingTimeMs()
    outcome = _process(plan, born, shard_input, lay, task, shard, now_ms)
    faults.point("group.judged")
    watch.lap("judge")
    row = outcome.state.to_bytes()
    faults.point("group.update.before")
    state.update((row,))
    faults.point("group.update.after")
    watch.lap("write")
    counts = {**outcome.counts, "state_bytes": len(row), "base_epoch": base.epoch}
    body_file = handed_on(plan, task, shard)
    return _output(plan, shard_input, outcome, shard, counts, watch, body_file)


def sequence_batch(plan: Plan, key: Any, frame: pd.DataFrame) -> pd.DataFrame:
    """Return one shard's verdicts of a batch DataFrame, by the same rule, with nothing kept."""
    freeze_gc()
    watch = Stopwatch()
    task = Task.current(plan)
    lay = layout(plan, task)
    shard = lay.slot_keys.index(int(key[0]))
    shard_input = ShardInput.of(plan, lay, [frame])
    watch.lap("read")
    outcome = _process(plan, SequenceState(), shard_input, lay, task, shard, wall_clock_ms())
    watch.lap("judge")
    return _output(plan, shard_input, outcome, shard, dict(outcome.counts), watch)


def _process(
    plan: Plan,
    state: SequenceState,
    shard_input: ShardInput,
    lay: Layout,
    task: Task,
    shard: int,
    now_ms: int,
) -> SequenceOutcome:
    rule = _numbering(plan).rule
    epoch = Epoch(
        number=task.epoch if plan.streaming else 0,
        run_id=task.run_id,
        now_ms=now_ms,
        worker_now_ms=wall_clock_ms(),
        shard=shard,
        hash_key=lay.filter_key,
    )
    records = shard_input.records()
    if not plan.streaming:  # nothing is kept
        rule = replace(rule, max_producers=1 << 62)
    outcome = process_sequences(state, records, rule, plan.policy, epoch)
    for verdict, (option, what) in _REFUSED.items():
        bad = np.flatnonzero(outcome.verdicts == verdict)
        if len(bad) and getattr(rule, option) == "error":
            raise _refusal(plan, shard_input, records, bad, option, what)
    return outcome


def _refusal(
    plan: Plan, shard_input: ShardInput, records: Records, bad: Any, option: str, what: str
) -> DataError:
    assert records.numbers is not None
    epochs, sequences = (numbers[bad] for numbers in records.numbers)
    first = np.lexsort((sequences, epochs))[:1]
    (row,) = shard_input.rows(bad[first]).to_batches()
    return DataError(
        f'{len(bad)} records are {what}, and {option}="error" is set. '
        f"{first_of(plan, row, np.ones(1, np.bool_))} It is sequence {sequences[first[0]]} of "
        f"epoch {epochs[first[0]]}. Nothing of this micro-batch was emitted. Find out what "
        f'happened to the producer, then go on with {option}="emit" or "drop".',
        remedy="bad-records",
    )


def _named(plan: Plan, base: SequenceState, shard: int, lay: Layout) -> SequenceState:
    """Return the state under what this query is, which it was born with."""
    made_of, shards = _numbering(plan).made_of, len(lay.slot_keys)
    if base.epoch < 0:
        return replace(base, shard=(shard, shards), made_of=made_of)
    if base.shard != (shard, shards):
        found = "shard {} of {}".format(*base.shard)
        raise SequenceState.damaged(f"it is that of {found}, and this is {shard} of {shards}")
    if base.made_of != made_of:
        was, now = _differences(base.made_of, made_of)
        raise ConfigError(
            f"This query was begun with {was}, and is started with {now}: what is remembered "
            "would be compared with other numbers. Give the options that it was begun with (a "
            "renamed column is renamed back by withColumnRenamed, one of another type cast back by "
            "withColumn, before the operator), or begin anew with another checkpoint.",
            remedy="changed-settings",
        )
    keys = base.producers.keys
    hashes = kernel.hash64(keys.data, keys.offsets, lay.shard_key)
    if (shards_of(hashes, shards) != shard).any():
        raise misplaced("names another query than the one whose state it got")
    return base


def _differences(was: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, str]:
    only_was = [text for text in was if text not in now] or list(was)
    only_now = [text for text in now if text not in was] or list(now)
    return ", ".join(only_was), ", ".join(only_now)


def _numbering(plan: Plan) -> Numbering:
    assert plan.numbering is not None
    return plan.numbering


def _output(
    plan: Plan,
    shard_input: ShardInput,
    outcome: SequenceOutcome,
    shard: int,
    counts: dict[str, int],
    watch: Stopwatch,
    body_file: BodyFile | None = None,
) -> pd.DataFrame:
    """Return the control row with the counters, then the blobs of which any row goes on."""
    columns, emitted = judged_rows(plan, shard_input, outcome.verdicts, body_file)
    watch.lap("write")
    clocks, producers = outcome.state.clocks, len(outcome.state.producers)
    control = {
        **counts,
        **{f"{stage}_us": watch.us[stage] for stage in SEQUENCE_GROUP_STAGES},
        "emitted": emitted if plan.verdict_column is None else counts["records_in"],
        "producers": producers,
        "fullest_shard_producers": producers,
        "now_ms": known_ms(clocks.now_ms),
        "newest_ms": known_ms(clocks.newest_ms),
        "low_watermark_ms": known_ms(clocks.low_watermark_ms),
        "expired_before_ms": known_ms(clocks.gc_watermark_ms) if plan.policy.event_time else None,
        "expire_after_ms": plan.policy.horizon_ms,
        "max_producers": _numbering(plan).rule.max_producers,
    }
    numbers = {name: control.get(name, 0) for name in SEQUENCE_COLUMNS}
    return with_counters(columns, shard, numbers, {})
