"""Timestamps inside record IDs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from dedup.core.keys import Keys
from dedup.errors import ConfigError

_UUID_TAG = 1
_UUID_KEY_BYTES = 17


@dataclass(frozen=True, slots=True)
class IdTime:
    """The scheme by which a record ID carries its timestamp."""

    scheme: Literal["uuid7"]


def time_from_id(scheme: str) -> IdTime:
    """Return a value for the option ``timestamp=`` that takes a record's time from its ID.

    Parameters
    ----------
    scheme : {"uuid7"}
        The ID must be one string column of version-7 UUIDs in lower case. The first 48 bits of such
        a UUID are milliseconds since the Unix epoch (RFC 9562, section 5.7).

    Raises
    ------
    ConfigError
        If the scheme is unknown.

    Notes
    -----
    Combine this with ``stable_timestamps=True``, because every copy of a record carries the same ID
    and so the same time. An ID that is not a version-7 UUID has a null timestamp.
    """
    if scheme != "uuid7":
        raise ConfigError(f"time_from_id({scheme!r}): the known scheme is 'uuid7'.")
    return IdTime("uuid7")


def uuid7_ms(keys: Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the milliseconds in the keys of IDs, and which keys are not version-7 UUIDs."""
    times_ms = np.zeros(len(keys), np.int64)
    null = keys.lengths != _UUID_KEY_BYTES
    uuids = np.flatnonzero(~null)
    if len(uuids):
        rows = keys.data[keys.offsets[uuids][:, None] + np.arange(_UUID_KEY_BYTES)]
        wrong = rows[:, 0] != _UUID_TAG
        wrong |= rows[:, 7] >> 4 != 7
        wrong |= rows[:, 9] >> 6 != 0b10
        wide = np.zeros((len(uuids), 8), np.uint8)
        wide[:, 2:] = rows[:, 1:7]
        times_ms[uuids] = wide.reshape(-1).view(">u8").astype(np.int64)
        null[uuids[wrong]] = True
    times_ms[null] = 0
    return times_ms, null
