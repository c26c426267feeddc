"""A record as JSON, for people who look for what a table did not take."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa


def record_as_json(row: pa.RecordBatch) -> str:
    """Return a record as JSON, as the server's own `to_jsonb` has it where that knows the value.

    Parameters
    ----------
    row : RecordBatch
        One row.
    """
    values = {
        name: _plain(column[0]) for name, column in zip(row.schema.names, row.columns, strict=True)
    }
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


def _plain(value: pa.Scalar) -> Any:
    """A value as JSON can hold it; what JSON has no words for, as text."""
    if not value.is_valid:
        return None
    kind = value.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_plain(one) for one in value.values]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # Spark takes any bytes for text.
        return value.as_buffer().to_pybytes().decode(errors="backslashreplace")
    try:
        found = value.as_py()
    except (OverflowError, ValueError):  # a day that Python's calendar does not reach
        return str(value.cast(pa.string()).as_py())
    if isinstance(found, bytes):
        return f"\\x{found.hex()}"
    if isinstance(found, float) and not math.isfinite(found):
        return "NaN" if math.isnan(found) else "Infinity" if found > 0 else "-Infinity"
    if found is None or isinstance(found, bool | int | float):
        return found
    return str(found.isoformat() if hasattr(found, "isoformat") else found)
