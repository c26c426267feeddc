"""How errors describe a record: by its ID, its origin and its values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from dedup.kernel.arrays import BOOL
from dedup.spark.plan import HELPER_PREFIX, Plan

#: Columns of Spark's sources that show where a record comes from.
_ORIGIN = ("topic", "partition", "offset", "file_path", "_corrupt_record")
#: Largest number of characters that an error shows of a value, and of a whole record.
_VALUE_CHARS, _RECORD_CHARS = 120, 300


def first_of(plan: Plan, batch: pa.RecordBatch, bad: BOOL) -> str:
    """Return a sentence that identifies the first record that `bad` marks, by its values."""
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
            "The first of them is null in every column: Spark returns that for a line of JSON or "
            "CSV that it cannot read. To see where it is, also select its origin (files: "
            "_metadata.file_path; Kafka: topic, partition, offset)."
        )
    return f"The first of them: {', '.join(parts)}."


def _by_weight(plan: Plan, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    """Yield columns by the user's names: ID, source partition and origin first."""
    user = batch.schema.names[: plan.user_columns]
    named = {column: name for column, name, _ in plan.id_columns}
    for column, name in zip(plan.source_columns, plan.policy.source_columns, strict=True):
        named.setdefault(column, name)
    for name in (*(name for name in _ORIGIN if name in user), *user):
        named.setdefault(name, name)
    for column, name in named.items():
        if column not in batch.schema.names:  # helper columns do not pass the shuffle
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


def plain(value: pa.Scalar) -> Any:
    """Return an Arrow value as a Python value, or as text if Python has no such value.

    Python's datetime has neither years outside 1 to 9999 nor nanoseconds. pyarrow does not know
    some time zones that Spark accepts, such as ``GMT+8`` or ``Z``. Timestamps in these zones become
    UTC.
    """
    if pa.types.is_time64(value.type) and value.is_valid and value.value % 1000:
        return str(np.datetime64(value.value, "ns")).partition("T")[2]
    try:
        return value.as_py()
    except UnicodeDecodeError:
        # Spark's strings may hold bytes that are not UTF-8.
        return value.as_buffer().to_pybytes().decode(errors="backslashreplace")
    except (LookupError, ValueError, OverflowError):
        return _moment(value)


def _moment(value: pa.Scalar) -> str:
    if pa.types.is_date(value.type):
        return str(np.datetime64(value.value, "D"))
    time_us = value.cast(pa.timestamp("us", value.type.tz)).value
    seconds, rest_us = divmod(time_us, 1_000_000)
    text = str(np.datetime64(seconds, "s")).replace("T", " ")
    fraction = f".{rest_us:06}" if rest_us else ""
    return text + fraction + ("" if value.type.tz is None else "+00:00")
