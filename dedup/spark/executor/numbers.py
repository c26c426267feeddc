"""Epoch and sequence of a batch's records, and which records have none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dedup.core.arrays import BOOL, I64
from dedup.core.sequence import CYCLE
from dedup.errors import DataError
from dedup.spark.executor.bad_records import first_of
from dedup.spark.plan import Numbering, Plan


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """Epoch and sequence of n records, int64, and which lack producer, epoch or sequence."""

    epochs: I64
    sequences: I64
    missing: BOOL


def read_numbers(plan: Plan, numbering: Numbering, batch: pa.RecordBatch) -> Numbers:
    """Return the numbers of a batch's records; of a number that counts on, the remainder.

    Raises
    ------
    DataError
        If a record is not numbered and the user chose that this is an error.
    """
    sequences, missing = _whole(batch.column(numbering.sequence_column))
    epochs = np.zeros(batch.num_rows, np.int64)
    if numbering.epoch_column is not None:
        epochs, none = _whole(batch.column(numbering.epoch_column))
        missing |= none
    for column in numbering.producer_columns:
        if batch.column(column).null_count:
            missing |= batch.column(column).is_null().to_numpy(zero_copy_only=False)
    if numbering.rule.unnumbered == "error" and missing.any():
        raise DataError(
            f"{int(missing.sum())} records have no producer, epoch or sequence (null, or below 0), "
            f'and unnumbered="error" is set. {first_of(plan, batch, missing)} Mend the records, or '
            'choose unnumbered="emit" or "drop".',
            remedy="bad-records",
        )
    return Numbers(epochs, sequences % CYCLE, missing)


def _whole(column: pa.Array) -> tuple[I64, BOOL]:
    """Return the values of an integer column, and which are none: null, or below 0 (Kafka's -1)."""
    values = column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return values, values < 0
