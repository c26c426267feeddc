"""Arrow values as text, for names and messages: every value that Spark can hold has one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def plain(value: pa.Scalar) -> Any:
    """Return the value as Python has it, or its text where Python has none.

    Python's datetime ends at the years 1 and 9999 and at microseconds, and some time zones that
    Spark takes, such as ``GMT+8`` or ``Z``, are unknown to pyarrow: such a timestamp is told in
    UTC.
    """
    if pa.types.is_time64(value.type) and value.is_valid and value.value % 1000:
        return str(np.datetime64(value.value, "ns")).partition("T")[2]
    try:
        return value.as_py()
    except UnicodeDecodeError:
        # Spark lets text be that is no UTF-8.
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
