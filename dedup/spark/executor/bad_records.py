"""What to say of records that the user does not want: how many, and where the first one is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from dedup.core.arrays import BOOL
from dedup.errors import DataError
from dedup.spark.executor.values import plain
from dedup.spark.plan import HELPER_PREFIX, Plan

#: Where a record comes from, as Spark's sources name it.
_ORIGIN = ("topic", "partition", "offset", "file_path", "_corrupt_record")
#: Characters of one value, and of the whole record.
_VALUE_CHARS, _RECORD_CHARS = 120, 300


def null_ids(plan: Plan, batch: pa.RecordBatch, bad: BOOL) -> DataError:
    """Return the error for the marked records, which have no ID."""
    names = ", ".join(name for _, name, _ in plan.id_columns)
    return DataError(
        f'{int(bad.sum())} records have a null ID ({names}) and null_ids="error" is set. '
        f"{first_of(plan, batch, bad)} "
        'Mend the records, or choose null_ids="emit" or "drop".',
        remedy="bad-records",
    )


def null_timestamps(plan: Plan, batch: pa.RecordBatch, bad: BOOL) -> DataError:
    """Return the error for the marked records, which have an ID and no timestamp."""
    return DataError(
        f"{int(bad.sum())} records have no timestamp ({plan.time_source}) and "
        f'null_timestamps="error" is set. {first_of(plan, batch, bad)} '
        'Mend the records, or choose null_timestamps="now" to take the time of the micro-batch, '
        '"emit" to let them go on without de-duplication, or "drop".',
        remedy="bad-records",
    )


def first_of(plan: Plan, batch: pa.RecordBatch, bad: BOOL) -> str:
    """Return a sentence that tells the first marked record from all others, as far as it can."""
    row = int(np.flatnonzero(bad)[0])
    parts: list[str] = []
    chars = 0
    for name, column in _by_weight(plan, batch):
        value = plain(column[row])
        if value is None:
            continue
        part = f"{name}={_short(value)}"
        chars += len(part) + 2
        if chars > _RECORD_CHARS and parts:
            parts.append("and more")
            break
        parts.append(part)
    if not parts:
        return (
            "The first of them is null in every column, which is what Spark makes of a line of "
            "JSON or CSV that it cannot read; to be told where it is, also select its origin "
            "(files: _metadata.file_path; Kafka: topic, partition, offset)."
        )
    return f"The first of them: {', '.join(parts)}."


def _by_weight(plan: Plan, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    """Yield columns under the names that the user knows, those first that say whose it is."""
    user = batch.schema.names[: plan.user_columns]
    named = {column: name for column, name, _ in plan.id_columns}
    for column, name in zip(plan.source_columns, plan.policy.source_columns, strict=True):
        named.setdefault(column, name)
    for name in (*(name for name in _ORIGIN if name in user), *user):
        named.setdefault(name, name)
    for column, name in named.items():
        if column not in batch.schema.names:  # what is made of an expression ends in the shuffle
            continue
        values = batch.column(column)
        if not name.startswith(HELPER_PREFIX) and not pa.types.is_nested(values.type):
            yield name, values


def _short(value: object) -> str:
    if not isinstance(value, (str, bytes)):
        return str(value)
    if len(value) <= _VALUE_CHARS:
        return repr(value)
    half = _VALUE_CHARS // 2
    return f"{value[:half]!r}...{value[-half:]!r}"
