"""The second pass of `dedup_by_sequence`: one shard of one micro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dedup import kernel
from dedup.core.arrays import I64
from dedup.core.clocks import known_ms
from dedup.core.records import Records
from dedup.core.sequence import SequenceVerdict
from dedup.core.sequence_metrics import SEQUENCE_COLUMNS, SEQUENCE_GROUP_STAGES
from dedup.core.sequence_shard import SequenceOutcome, process_sequences
from dedup.core.sequence_state import SequenceState
from dedup.core.sharding import shards_of
from dedup.errors import ConfigError, DataError
from dedup.spark.executor.bad_records import first_of
from dedup.spark.executor.shell import SCHEMA, Call, Engine, judge_batch, judge_stream
from dedup.spark.executor.task import misplaced
from dedup.spark.observations import SEQUENCE_DDL
from dedup.spark.plan import Numbering, Plan

SEQUENCE_OUTPUT_SCHEMA = f"{SCHEMA}, {SEQUENCE_DDL}"
#: By verdict: the option that may be "error", and what its records are.
_REFUSED = {
    SequenceVerdict.GAP: (
        "gaps",
        "out of order: earlier ones of their producer are missing, or they come late",
    ),
    SequenceVerdict.UNKNOWN: ("unknown", "of unknown producers, or older than their memory"),
    SequenceVerdict.FENCED: ("fenced", "of an epoch that a newer one of their producer has ended"),
}


def sequence_stream(
    plan: Plan, key: Any, frames: Iterable[pd.DataFrame], state: Any
) -> Iterator[pd.DataFrame]:
    """Yield one shard's verdicts of a stream's micro-batch, and set its next state."""
    yield from judge_stream(_ENGINE, plan, key, frames, state)


def sequence_batch(plan: Plan, key: Any, frame: pd.DataFrame) -> pd.DataFrame:
    """Return one shard's verdicts of a batch DataFrame."""
    return judge_batch(_ENGINE, plan, key, frame)


def _base(call: Call, row: bytes | None) -> tuple[SequenceState, dict[str, int]]:
    base = SequenceState() if row is None else SequenceState.from_bytes(row)
    if not call.plan.streaming:
        return base, {}
    call.task.check_follows(base.epoch)
    return _bound_to_query(call, base), {}


def _judge(call: Call, base: SequenceState) -> SequenceOutcome:
    plan, rule = call.plan, _numbering(call.plan).rule
    records = call.input.records()
    if not plan.streaming:  # nothing is kept
        rule = replace(rule, max_producers=1 << 62)
    outcome = process_sequences(base, records, rule, plan.policy, call.epoch)
    for verdict, (option, what) in _REFUSED.items():
        bad = np.flatnonzero(outcome.verdicts == verdict)
        if len(bad) and getattr(rule, option) == "error":
            raise _refusal(call, records, bad, option, what)
    call.watch.lap("judge")
    return outcome


def _refusal(call: Call, records: Records, bad: I64, option: str, what: str) -> DataError:
    assert records.numbers is not None
    epochs, sequences = (numbers[bad] for numbers in records.numbers)
    first = np.lexsort((sequences, epochs))[:1]
    (row,) = call.input.rows(bad[first]).to_batches()
    return DataError(
        f'{len(bad)} records are {what}, and {option}="error" is set. '
        f"{first_of(call.plan, row, np.ones(1, np.bool_))} It is sequence {sequences[first[0]]} of "
        f"epoch {epochs[first[0]]}. Nothing of this micro-batch was emitted. Check what "
        f'happened to the producer, then restart with {option}="emit" or "drop".',
        remedy="bad-records",
    )


def _bound_to_query(call: Call, base: SequenceState) -> SequenceState:
    """Return the state with the query's columns and shard, or raise if it has others."""
    made_of, shard = _numbering(call.plan).made_of, call.shard
    shards = len(call.layout.slot_keys)
    if base.epoch < 0:
        return replace(base, shard=(shard, shards), made_of=made_of)
    if base.shard != (shard, shards):
        other = "shard {} of {}".format(*base.shard)
        raise SequenceState.damaged(f"it belongs to {other}, and this is {shard} of {shards}")
    if base.made_of != made_of:
        was, now = _differences(base.made_of, made_of)
        raise ConfigError(
            f"This query was begun with {was}, and is started with {now}: its memory would be "
            "compared with other numbers. Give the options that it was begun with (before the "
            "operator, rename a column back by withColumnRenamed, or cast it back by withColumn), "
            "or start over with another checkpoint.",
            remedy="changed-settings",
        )
    keys = base.producers.keys
    hashes = kernel.hash64(keys.data, keys.offsets, call.layout.shard_key)
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


def _levels(call: Call, outcome: SequenceOutcome) -> dict[str, int | None]:
    clocks, producers = outcome.state.clocks, len(outcome.state.producers)
    policy = call.plan.policy
    return {
        "producers": producers,
        "fullest_shard_producers": producers,
        "now_ms": known_ms(clocks.now_ms),
        "newest_ms": known_ms(clocks.newest_ms),
        "low_watermark_ms": known_ms(clocks.low_watermark_ms),
        "expired_before_ms": known_ms(clocks.gc_watermark_ms) if policy.event_time else None,
        "expire_after_ms": policy.horizon_ms,
        "max_producers": _numbering(call.plan).rule.max_producers,
    }


_ENGINE = Engine(_base, _judge, _levels, SEQUENCE_COLUMNS, SEQUENCE_GROUP_STAGES)
