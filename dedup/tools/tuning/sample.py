"""What a sample of the data shows: how many IDs a day, and how its repeats come."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dedup import kernel
from dedup.core.arrays import I64
from dedup.core.keys import Keys
from dedup.errors import ConfigError
from dedup.tools.tuning.demand import DAY_MS, Demand, Repeats
from dedup.tools.tuning.load import HASH_KEY
from dedup.tools.tuning.trial import TRIAL_IDS

#: Default of the option `max_future`.
_MAX_FUTURE_MS = 600_000
#: Timestamps at either end that may be stray ones, as a share.
_STRAY = 0.001


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Records with an ID, in the order in which their files came.

    Parameters
    ----------
    keys : Keys, length n
    times_ms : int64 array, shape (n,), or None
        Timestamps, where a column has them.
    files : int64 array, shape (n,)
        Number of each record's file, never falling.
    one_in : int
        It holds the records of one in so many IDs.
    where : str
        Where it is from, for people.
    """

    keys: Keys
    times_ms: I64 | None
    files: I64
    one_in: int = 1
    where: str = "the sample"

    def __len__(self) -> int:
        return len(self.keys)


def of_sample(base: Demand, sample: Sample, ids_per_day: float | None) -> Demand:
    """Return the demand that a sample shows.

    Parameters
    ----------
    base : Demand
        What it does not tell.
    sample : Sample
    ids_per_day : float or None
        In place of the sample's own.

    Raises
    ------
    ConfigError
        If it is empty, or tells of no time and the number was not given.
    """
    count, where = len(sample), sample.where
    if not count:
        timed = "" if sample.times_ms is None else " and a timestamp"
        raise ConfigError(f"--sample {where} holds no record with an ID{timed}.")
    times_ms, effective_ms = sample.times_ms, None
    order = np.arange(count)
    newest_before = np.zeros(count, np.int64)
    if times_ms is not None:
        newest_before = _newest_before(times_ms, sample.files)
        effective_ms = np.maximum(times_ms, newest_before - base.lateness_ms)
        # As the operator takes them: file by file, in a file by time.
        order = np.lexsort((effective_ms, sample.files))
    keys = sample.keys.take(order)
    hashes = kernel.hash64(keys.data, keys.offsets, HASH_KEY)
    first = kernel.first_occurrence(keys.data, keys.offsets, hashes)
    is_first = first == np.arange(count)
    distinct = int(is_first.sum())
    repeats = None
    if times_ms is not None and effective_ms is not None:
        times_ms, effective_ms = times_ms[order], effective_ms[order]
        again = np.flatnonzero(~is_first)
        behind_ms = newest_before[order] - times_ms
        repeats = Repeats(
            apart_ms=np.sort(effective_ms[again] - effective_ms[first[again]]),
            behind_ms=np.sort(behind_ms[behind_ms > 0]),
            records=count,
            same_timestamp=int((times_ms[again] == times_ms[first[again]]).sum()),
            span_ms=int(np.ptp(_without_strays(times_ms))),
        )
    if ids_per_day is None:
        ids_per_day = _ids_per_day(where, times_ms, is_first, sample.one_in)
    return replace(
        base,
        origin=f"{count * sample.one_in:,} records of {where}",
        ids_per_day=ids_per_day,
        duplicates=1 - distinct / count,
        event_time=times_ms is not None,
        lateness_ms=base.lateness_ms if times_ms is not None else 0,
        key_bytes=max(1, round(len(keys.data) / count)),
        keys=keys.take(np.flatnonzero(is_first)[: 4 * TRIAL_IDS]),
        repeats=repeats,
    )


def without_future(times_ms: I64, files: I64, now_ms: int) -> I64:
    """Return the timestamps; one in the future counts as the newest up to its file that is not.

    The operator takes it for the time of its micro-batch, so that it makes nothing late that
    follows it.

    Parameters
    ----------
    times_ms : int64 array, shape (n,)
    files : int64 array, shape (n,)
        Number of each record's file, never falling.
    now_ms : int
    """
    future = times_ms > now_ms + _MAX_FUTURE_MS
    if not future.any():
        return times_ms
    others = times_ms[~future]
    oldest = others.min() if len(others) else now_ms
    newest = _newest_by_file(np.where(future, oldest, times_ms), files)
    return np.where(future, newest[_file_index(files)], times_ms)


def _newest_by_file(times_ms: I64, files: I64) -> I64:
    starts = np.searchsorted(files, np.unique(files))
    return np.maximum.accumulate(np.maximum.reduceat(times_ms, starts))


def _file_index(files: I64) -> npt.NDArray[np.intp]:
    return np.searchsorted(np.unique(files), files)


def _newest_before(times_ms: I64, files: I64) -> I64:
    """Return the newest timestamp of the files before each record's; in the first its oldest."""
    newest = _newest_by_file(times_ms, files)
    before = np.concatenate([[times_ms[files == files[0]].min()], newest[:-1]])
    return before[_file_index(files)]


def _ids_per_day(
    where: str, times_ms: I64 | None, is_first: npt.NDArray[np.bool_], one_in: int
) -> float:
    if times_ms is None:
        raise ConfigError(
            f"--sample {where} without --timestamp does not tell how many IDs come in a day; give "
            "--ids-per-day as well."
        )
    new_ms = times_ms[is_first]
    within_ms = _without_strays(new_ms)
    span_ms = int(np.ptp(within_ms))
    if span_ms < 1:
        raise ConfigError(
            f"In --sample {where} no time passes between the first records of its IDs; give "
            "--ids-per-day, or a sample of a longer time."
        )
    return len(within_ms) * one_in / span_ms * DAY_MS


def _without_strays(times_ms: I64) -> I64:
    """Return timestamps but for a few at either end; of few timestamps all."""
    strays = int(_STRAY * len(times_ms))
    return np.sort(times_ms)[strays : len(times_ms) - strays]
